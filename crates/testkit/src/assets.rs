//! Where the control plane's binaries are.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::TestkitError;

/// The folder of the pinned binaries.
#[derive(Clone, Debug)]
pub struct Assets {
    folder: PathBuf,
}

impl Assets {
    /// The binaries, built now if they have not been.
    pub fn locate() -> Result<Self, TestkitError> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hack/control-plane/build.sh");
        let output = Command::new("bash")
            .arg(&script)
            .stderr(Stdio::inherit())
            .output()
            .map_err(TestkitError::io("running hack/control-plane/build.sh"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        match text.lines().last() {
            Some(folder) if output.status.success() => Ok(Self { folder: folder.into() }),
            _ => Err(TestkitError::Command {
                what: "hack/control-plane/build.sh".into(),
                output: "the reason is above".into(),
            }),
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn binary(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn kubectl(&self) -> PathBuf {
        self.binary("kubectl")
    }

    pub(crate) fn stages(&self) -> PathBuf {
        self.folder.join("kwok-stages.yaml")
    }
}
