//! `make run`: a real API server on this machine, guarded by Palisade, until Ctrl-C.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use palisade_testkit::{Assets, ControlPlane, Palisade, PalisadeOptions};
use tokio::signal::unix::{SignalKind, signal};

type Error = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("make run: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Error> {
    let (folder, binary) = match &std::env::args_os().skip(1).map(PathBuf::from).collect::<Vec<_>>()[..] {
        [folder, binary] => (folder.clone(), binary.clone()),
        _ => return Err("usage: local-cluster FOLDER PALISADE".into()),
    };
    let options = PalisadeOptions {
        binary: binary.canonicalize().map_err(|error| format!("{}: {error}", binary.display()))?,
        replicas: replicas()?,
        args: words(&std::env::var("PALISADE_ARGS").unwrap_or_default()),
    };
    fs::create_dir_all(&folder)?;
    // Held as long as we live; the kernel lets go of it even if we are killed.
    let lock = File::create(folder.join("lock"))?;
    if lock.try_lock().is_err() {
        return Err(
            format!("another one is running in {}; stop it with Ctrl-C first", folder.display()).into()
        );
    }
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let stopped = async {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
    };
    let cluster = cluster(&folder, options);
    let ended = tokio::select! {
        ended = cluster => ended,
        () = stopped => {
            say("stopping");
            Ok(())
        }
    };
    // Gone is gone: a kubeconfig that leads nowhere would only puzzle people.
    for file in ["kubeconfig", "admin-url"] {
        let _ = fs::remove_file(folder.join(file));
    }
    let _ = fs::remove_dir_all(folder.join("replicas"));
    ended
}

/// Runs until something that cannot be mended happens. Dropped, everything stops.
async fn cluster(folder: &Path, options: PalisadeOptions) -> Result<(), Error> {
    let assets = Assets::locate()?;
    say("starting the control plane");
    let mut plane = ControlPlane::start(&assets, folder).await?;
    say("starting Palisade");
    let replicas = options.replicas;
    let mut palisade = Palisade::start(&plane, options).await?;
    fs::write(folder.join("admin-url"), format!("{}\n", palisade.admin_url(0)))?;
    let kubectl = assets.kubectl();
    let kubeconfig = plane.kubeconfig();
    say(&format!(
        "ready: {replicas} replica{} of Palisade in front of a real API server; Ctrl-C stops it\n\n\
         \x20 kubeconfig  {}\n\
         \x20 kubectl     {}\n\
         \x20 logs        {}\n\n\
         Try:\n\n\
         \x20 export KUBECONFIG={} PATH={}:$PATH\n\
         \x20 kubectl create namespace minio && kubectl label namespace minio policy.kruise.io/delete-protection=Always\n\
         \x20 kubectl delete namespace minio\n",
        if replicas == 1 { "" } else { "s" },
        kubeconfig.display(),
        kubectl.display(),
        plane.folder().join("logs").display(),
        kubeconfig.display(),
        assets.folder().display(),
    ));
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        if let Some(error) = plane.failed() {
            return Err(error.into());
        }
        for (replica, how) in palisade.revive()? {
            say(&format!("replica {} of Palisade had ended ({how}); started it again", replica + 1));
        }
    }
}

fn replicas() -> Result<usize, Error> {
    let text = std::env::var("PALISADE_REPLICAS").unwrap_or_default();
    match text.trim() {
        "" => Ok(1),
        text => match text.parse() {
            Ok(number @ 1..=9) => Ok(number),
            _ => Err(format!("PALISADE_REPLICAS is \"{text}\"; expected a number from 1 to 9").into()),
        },
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// To whoever reads, also through a pipe.
fn say(text: &str) {
    let mut out = std::io::stdout();
    // Nobody reads any more: that is no reason to stop.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}
