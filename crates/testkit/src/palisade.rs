//! The real `palisade` binary in front of a control plane, with the rights that we ship and no others.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::TestkitError;
use crate::balancer::Balancer;
use crate::control_plane::ControlPlane;
use crate::process::{Process, free_port, wait_until};

/// Who Palisade is to the API server.
pub const SERVICE_ACCOUNT: &str = "system:serviceaccount:palisade-system:palisade";
const PATIENCE: Duration = Duration::from_secs(60);

/// How to run it.
#[derive(Clone, Debug)]
pub struct PalisadeOptions {
    pub binary: PathBuf,
    pub replicas: usize,
    /// More words for `palisade run`.
    pub args: Vec<String>,
}

/// Running replicas.
pub struct Palisade {
    options: PalisadeOptions,
    folder: PathBuf,
    kubeconfig: PathBuf,
    url: String,
    replicas: Vec<Replica>,
    balancer: Option<Balancer>,
}

struct Replica {
    listen: SocketAddr,
    admin: SocketAddr,
    process: Process,
    started: Instant,
}

impl Palisade {
    /// Installs what Palisade needs, starts its replicas, and waits until all are ready.
    pub async fn start(plane: &ControlPlane, options: PalisadeOptions) -> Result<Self, TestkitError> {
        install(plane, &options)?;
        let folder = plane.folder().join("replicas");
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(TestkitError::io("emptying the replicas' folder"))?;
        }
        fs::create_dir_all(&folder).map_err(TestkitError::io("creating the replicas' folder"))?;

        let addresses = (0..options.replicas)
            .map(|_| Ok((loopback(free_port()?), loopback(free_port()?))))
            .collect::<Result<Vec<_>, TestkitError>>()?;
        let (front, balancer) = if let [(listen, _)] = addresses[..] {
            (listen, None)
        } else {
            let front = loopback(free_port()?);
            let replicas = addresses.iter().map(|&(listen, _)| listen).collect();
            let balancer = Balancer::start(front.port(), replicas)
                .await
                .map_err(TestkitError::io("listening for the replicas"))?;
            (front, Some(balancer))
        };
        let mut palisade = Self {
            kubeconfig: plane.kubeconfig_of(SERVICE_ACCOUNT)?,
            url: format!("https://{front}"),
            options,
            folder,
            replicas: Vec::new(),
            balancer,
        };
        for (number, (listen, admin)) in addresses.into_iter().enumerate() {
            let process = palisade.start_process(number, listen, admin)?;
            palisade.replicas.push(Replica { listen, admin, process, started: Instant::now() });
        }
        palisade.wait_ready().await?;
        Ok(palisade)
    }

    /// The address under which the API server calls the replicas.
    pub fn webhook_url(&self) -> &str {
        &self.url
    }

    /// `http://127.0.0.1:PORT` of a replica's admin port.
    pub fn admin_url(&self, replica: usize) -> String {
        format!("http://{}", self.replicas[replica].admin)
    }

    pub fn process_id(&self, replica: usize) -> u32 {
        self.replicas[replica].process.id()
    }

    /// Kills a replica with -9. It stays dead until [`Self::revive`].
    pub fn kill(&mut self, replica: usize) {
        self.replicas[replica].process.kill();
    }

    /// Asks a replica to end, as Kubernetes would.
    pub fn terminate(&self, replica: usize) {
        self.replicas[replica].process.signal(Signal::TERM);
    }

    /// Stops a replica where it is, until [`Self::go_on`]: connections to it are taken, and nobody answers.
    pub fn stand_still(&self, replica: usize) {
        self.replicas[replica].process.stand_still();
    }

    pub fn go_on(&self, replica: usize) {
        self.replicas[replica].process.go_on();
    }

    /// Blocks the runtime of a replica for ever. Only builds with debug assertions can be told to.
    pub fn stall(&self, replica: usize) {
        self.replicas[replica].process.signal(Signal::USR2);
    }

    /// What a replica that ended by itself exited with.
    pub fn exit_code(&mut self, replica: usize) -> Option<i32> {
        self.replicas[replica].process.exit_code()
    }

    /// Sends the API server to one replica only, or to all again. Connections that there are end.
    pub fn send_only_to(&self, replica: Option<usize>) {
        if let Some(balancer) = &self.balancer {
            balancer.send_only_to(replica);
        }
    }

    /// Starts every replica that has ended again, and says which, and how each ended.
    ///
    /// One that ended within a second of its start is left for a later call, so that a replica which cannot
    /// start does not keep the machine busy.
    pub fn revive(&mut self) -> Result<Vec<(usize, String)>, TestkitError> {
        let mut revived = Vec::new();
        for number in 0..self.replicas.len() {
            let Replica { listen, admin, process, started } = &mut self.replicas[number];
            if process.has_ended() && started.elapsed() > Duration::from_secs(1) {
                let (listen, admin, how) = (*listen, *admin, process.ending());
                let process = self.start_process(number, listen, admin)?;
                self.replicas[number] = Replica { listen, admin, process, started: Instant::now() };
                revived.push((number, how));
            }
        }
        Ok(revived)
    }

    /// Waits until every replica says that it is ready; one that has ended never will.
    pub async fn wait_ready(&mut self) -> Result<(), TestkitError> {
        for replica in &mut self.replicas {
            let (admin, process) = (replica.admin, &mut replica.process);
            let ready = wait_until(PATIENCE, || {
                let ended = process.has_ended();
                async move { ended || is_ready(admin).await }
            });
            if !ready.await || process.has_ended() {
                return Err(process.not_up("did not become ready"));
            }
        }
        Ok(())
    }

    /// Ends all replicas, in the way that lets them finish what they have begun.
    pub fn stop(&mut self) {
        for replica in &self.replicas {
            replica.process.signal(Signal::TERM);
        }
        for replica in &mut self.replicas {
            replica.process.terminate(Duration::from_secs(10));
        }
    }

    /// Starts all replicas again after [`Self::stop`], with other words for `palisade run`, and waits until they are ready.
    pub async fn start_with(&mut self, args: Vec<String>) -> Result<(), TestkitError> {
        self.options.args = args;
        for number in 0..self.replicas.len() {
            let Replica { listen, admin, .. } = self.replicas[number];
            let process = self.start_process(number, listen, admin)?;
            self.replicas[number] = Replica { listen, admin, process, started: Instant::now() };
        }
        self.wait_ready().await
    }

    fn start_process(
        &self,
        number: usize,
        listen: SocketAddr,
        admin: SocketAddr,
    ) -> Result<Process, TestkitError> {
        let mut args: Vec<String> = vec!["run".into()];
        args.push(format!("--kubeconfig={}", self.kubeconfig.display()));
        args.push(format!("--webhook-url={}", self.url));
        args.push(format!("--listen={listen}"));
        args.push(format!("--admin-listen={admin}"));
        // There are no endpoints to propagate here: whoever wants to drain says so.
        args.push("--drain=0s".into());
        args.extend(self.options.args.iter().cloned());
        let logs = self.folder.with_file_name("logs");
        let process = Process::start(&format!("palisade-{number}"), &self.options.binary, &args, &logs)?;
        let pid = self.folder.join(format!("{}.pid", number + 1));
        fs::write(&pid, format!("{}\n", process.id())).map_err(TestkitError::io("writing a process id"))?;
        Ok(process)
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Applies the namespace, the rights and the kinds that the binary itself prints. The rights are for what the replicas
/// are told to search.
fn install(plane: &ControlPlane, options: &PalisadeOptions) -> Result<(), TestkitError> {
    let PalisadeOptions { binary, args, .. } = options;
    let failed = |what: &str, output: &[u8]| TestkitError::Command {
        what: what.to_owned(),
        output: String::from_utf8_lossy(output).into_owned(),
    };
    let manifests = Command::new(binary)
        .arg("manifests")
        .args(search_groups(args))
        .output()
        .map_err(TestkitError::io(format!("running {}", binary.display())))?;
    if !manifests.status.success() {
        return Err(failed("palisade manifests", &manifests.stderr));
    }
    let mut kubectl = Command::new(plane.assets().kubectl())
        .arg("--kubeconfig")
        .arg(plane.kubeconfig())
        .args(["apply", "--server-side", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(TestkitError::io("running kubectl"))?;
    if let Some(mut stdin) = kubectl.stdin.take() {
        stdin.write_all(&manifests.stdout).map_err(TestkitError::io("writing to kubectl"))?;
    }
    let applied = kubectl.wait_with_output().map_err(TestkitError::io("waiting for kubectl"))?;
    if applied.status.success() { Ok(()) } else { Err(failed("kubectl apply", &applied.stderr)) }
}

/// What the replicas are told to search, in one word or in two.
fn search_groups(args: &[String]) -> Vec<String> {
    let mut words = args.iter();
    let mut found = Vec::new();
    while let Some(word) = words.next() {
        if word == "--search-groups" {
            found = [word].into_iter().chain(words.next()).cloned().collect();
        } else if word.starts_with("--search-groups=") {
            found = vec![word.clone()];
        }
    }
    found
}

/// Asks `/readyz` in the plainest HTTP there is.
async fn is_ready(admin: SocketAddr) -> bool {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let ask = async {
        let mut stream = tokio::net::TcpStream::connect(admin).await?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: palisade\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer.starts_with("HTTP/1.1 200"))
    };
    matches!(tokio::time::timeout(Duration::from_secs(1), ask).await, Ok(Ok(true)))
}
