//! The cluster that all tests share, and the words they use.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kube::Client;
use palisade_testkit::{Assets, ControlPlane, Palisade, PalisadeOptions, wait_until};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::runtime::Runtime;
use tokio::sync::{OnceCell, RwLock};

/// How long something that takes effect by itself may take.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// For what comes by itself, however busy the machine is.
pub(crate) const EVENTUALLY: Duration = Duration::from_secs(30);

/// What every replica is started with.
const ARGS: [&str; 7] = [
    "--watchdog=10s",
    "--drain=2s",
    // Longer than a webhook may take, and no longer than tests want to wait.
    "--reservation-expiry=35s",
    "--enable-etcd-components-webhook",
    "--reconciler-service-account=system:serviceaccount:garden:etcd-druid",
    "--etcd-components-webhook-exempt-service-accounts=system:serviceaccount:kube-system:generic-garbage-collector,system:serviceaccount:garden:care",
    "--etcd-components-webhook-exempt-groups=etcd-admins",
];

pub(crate) struct Cluster {
    pub(crate) plane: ControlPlane,
    pub(crate) palisade: Palisade,
    pub(crate) client: Client,
}

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));
static CLUSTER: OnceCell<RwLock<Cluster>> = OnceCell::const_new();

pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The binary under test: `make test` builds it just before.
pub(crate) fn palisade_binary() -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from);
    target.join("debug/palisade")
}

async fn start() -> RwLock<Cluster> {
    let assets = Assets::locate().expect("the control plane's binaries");
    let folder = workspace().join("target/e2e");
    let plane = ControlPlane::start_audited(&assets, &folder).await.expect("a control plane");
    let options =
        PalisadeOptions { binary: palisade_binary(), replicas: 2, args: ARGS.map(str::to_owned).to_vec() };
    let palisade = Palisade::start(&plane, options).await.expect("Palisade");
    let client = plane.client().await.expect("a client");
    RwLock::new(Cluster { plane, palisade, client })
}

/// Runs a test beside others.
pub(crate) fn shared(test: impl AsyncFnOnce(&Cluster)) {
    RUNTIME.block_on(async { test(&*CLUSTER.get_or_init(start).await.read().await).await });
}

/// Runs a test that may break things, with nobody else about, and leaves a whole cluster behind.
pub(crate) fn alone(test: impl AsyncFnOnce(&mut Cluster)) {
    RUNTIME.block_on(async {
        let mut cluster = CLUSTER.get_or_init(start).await.write().await;
        test(&mut cluster).await;
        cluster.revive().await;
    });
}

/// Runs a test that leaves nothing whole, on a control plane of its own with one replica.
pub(crate) fn separate(name: &str, test: impl AsyncFnOnce(&mut Cluster)) {
    RUNTIME.block_on(async {
        let assets = Assets::locate().expect("the control plane's binaries");
        let folder = workspace().join("target").join(format!("e2e-{name}"));
        let plane = ControlPlane::start(&assets, &folder).await.expect("a control plane");
        let options = PalisadeOptions { binary: palisade_binary(), replicas: 1, args: Vec::new() };
        let palisade = Palisade::start(&plane, options).await.expect("Palisade");
        let client = plane.client().await.expect("a client");
        test(&mut Cluster { plane, palisade, client }).await;
    });
}

/// The same with two replicas that are told more, and with an audit log of what they ask for.
pub(crate) fn separate_with(name: &str, args: &[&str], test: impl AsyncFnOnce(&mut Cluster)) {
    RUNTIME.block_on(async {
        let assets = Assets::locate().expect("the control plane's binaries");
        let folder = workspace().join("target").join(format!("e2e-{name}"));
        let plane = ControlPlane::start_audited(&assets, &folder).await.expect("a control plane");
        let args = args.iter().map(|&word| word.to_owned()).collect();
        let options = PalisadeOptions { binary: palisade_binary(), replicas: 2, args };
        let palisade = Palisade::start(&plane, options).await.expect("Palisade");
        let client = plane.client().await.expect("a client");
        test(&mut Cluster { plane, palisade, client }).await;
    });
}

/// What a command said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) ok: bool,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    /// Without what kubectl itself warns of.
    pub(crate) fn quiet(self) -> Self {
        let kept = |line: &&str| !line.starts_with("Warning: Immediate deletion");
        Self { err: self.err.lines().filter(kept).collect::<Vec<_>>().join("\n"), ..self }
    }
}

impl Cluster {
    /// `kubectl` with words that are split at spaces.
    pub(crate) async fn kubectl(&self, words: &str) -> Said {
        self.kubectl_with(words.split_whitespace(), "").await
    }

    /// `kubectl apply` of a manifest, which must work.
    pub(crate) async fn apply(&self, manifest: &str) {
        let said = self.kubectl_with(["apply", "-f", "-"], manifest).await;
        assert!(said.ok, "applying {manifest}: {said:?}");
    }

    /// `kubectl` with words that must work.
    pub(crate) async fn must(&self, words: &str) -> String {
        let said = self.kubectl(words).await;
        assert!(said.ok, "kubectl {words}: {said:?}");
        said.out
    }

    pub(crate) async fn kubectl_with<'a>(
        &self,
        words: impl IntoIterator<Item = &'a str>,
        input: &str,
    ) -> Said {
        let kubectl = self.plane.assets().kubectl();
        run(&kubectl, &self.plane.kubeconfig(), words, input).await
    }

    /// A shell command such as a message prints, with our kubectl.
    pub(crate) async fn shell(&self, command: &str) -> Said {
        let path = format!("{}:/usr/bin:/bin", self.plane.assets().folder().display());
        let output = Command::new("bash")
            .args(["-c", command])
            .env("PATH", path)
            .env("KUBECONFIG", self.plane.kubeconfig())
            .output()
            .await
            .expect("bash runs");
        said(&output)
    }

    /// A new namespace with a service account, so that pods can be made in it.
    pub(crate) async fn namespace(&self) -> String {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("test-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        self.must(&format!("create namespace {name}")).await;
        self.eventually(&format!("get serviceaccount default -n {name}")).await;
        name
    }

    /// A running pod.
    pub(crate) async fn pod(&self, namespace: &str, name: &str) {
        self.must(&format!("run {name} --image=example/app -n {namespace} --restart=Never")).await;
        self.must(&format!("wait pod/{name} -n {namespace} --for=condition=Ready --timeout=30s")).await;
    }

    /// A Node that takes no pods: it can be deleted without taking other tests' pods with it.
    pub(crate) async fn node(&self, name: &str) {
        let node = format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}, spec: {{unschedulable: true}}}}"
        );
        self.apply(&node).await;
    }

    /// Repeats a command until it works.
    pub(crate) async fn eventually(&self, words: &str) -> String {
        let mut last = None;
        let worked = wait_until(EVENTUALLY, || async { self.kubectl(words).await.ok }).await;
        if worked {
            last = Some(self.kubectl(words).await);
        }
        last.unwrap_or_else(|| panic!("kubectl {words} did not work in time")).out
    }

    /// Repeats a command until what it prints is as expected.
    pub(crate) async fn eventually_prints(&self, words: &str, expected: impl Fn(&str) -> bool) {
        let mut last = String::new();
        let deadline = std::time::Instant::now() + EVENTUALLY;
        while std::time::Instant::now() < deadline {
            last = self.kubectl(words).await.out;
            if expected(&last) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("kubectl {words} still prints {last}");
    }

    pub(crate) async fn exists(&self, words: &str) -> bool {
        let said = self.kubectl(&format!("get {words}")).await;
        assert!(said.ok || said.err.contains("NotFound"), "{said:?}");
        said.ok
    }

    /// One number of a replica's `/metrics`.
    pub(crate) async fn metric(&self, replica: usize, series: &str) -> f64 {
        let text = self.admin(replica, "/metrics").await;
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series} in {text}")).parse().expect("a number")
    }

    /// What a replica's admin port answers, head and all.
    pub(crate) async fn admin(&self, replica: usize, path: &str) -> String {
        use tokio::io::AsyncReadExt;
        let address = self.palisade.admin_url(replica).replace("http://", "");
        let mut stream = tokio::net::TcpStream::connect(&address).await.expect("the admin port listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("written");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("read");
        answer
    }

    /// Starts replicas again that ended, and waits until all are ready.
    pub(crate) async fn revive(&mut self) {
        tokio::time::sleep(Duration::from_millis(1100)).await;
        self.palisade.revive().expect("replicas start again");
        self.palisade.wait_ready().await.expect("replicas become ready again");
    }
}

pub(crate) async fn run<'a>(
    program: &Path,
    kubeconfig: &Path,
    words: impl IntoIterator<Item = &'a str>,
    input: &str,
) -> Said {
    let mut child = Command::new(program)
        .kill_on_drop(true)
        .args(words)
        .env("KUBECONFIG", kubeconfig)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input.as_bytes()).await.expect("written");
    drop(stdin);
    // A command that waits for ever has found a deletion that does not end.
    let ended = tokio::time::timeout(Duration::from_secs(90), child.wait_with_output()).await;
    said(&ended.expect("it ends in time").expect("it ends"))
}

fn said(output: &std::process::Output) -> Said {
    Said {
        ok: output.status.success(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The command was refused by Palisade, with this word for the code, and said this.
#[track_caller]
pub(crate) fn denied(said: &Said, reason: &str, text: &str) {
    assert!(!said.ok, "should have been refused: {said:?}");
    let start = format!("Error from server ({reason}): ");
    assert!(said.err.contains(&start), "should have said ({reason}): {said:?}");
    assert!(said.err.contains("denied the request: "), "{said:?}");
    assert!(said.err.contains(text), "should have said \"{text}\": {said:?}");
}

/// The command worked, and nobody warned.
#[track_caller]
pub(crate) fn allowed(said: &Said) {
    assert!(said.ok, "should have worked: {said:?}");
    assert!(!said.err.contains("Warning"), "should not have warned: {said:?}");
}

/// The command worked, with this warning.
#[track_caller]
pub(crate) fn warned(said: &Said, text: &str) {
    assert!(said.ok, "should have worked: {said:?}");
    assert!(
        said.err.contains("Warning: ") && said.err.contains(text),
        "should have warned \"{text}\": {said:?}"
    );
}

/// The command that a refusal prints.
#[track_caller]
pub(crate) fn lifting(said: &Said) -> String {
    let (_, command) = said.err.trim_end().split_once("To lift it: ").unwrap_or_else(|| panic!("{said:?}"));
    command.to_owned()
}
