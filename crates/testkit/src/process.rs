//! Processes that cannot outlive us.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::TestkitError;

/// A running program with a log of its own.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program whose output goes to `<logs>/<name>.log`, and which is killed when we die.
    pub(crate) fn start(
        name: &str,
        program: &Path,
        args: &[String],
        logs: &Path,
    ) -> Result<Self, TestkitError> {
        let log = logs.join(format!("{name}.log"));
        let open = || OpenOptions::new().create(true).append(true).open(&log);
        let output = open().map_err(TestkitError::io(format!("opening {}", log.display())))?;
        let child = spawn_tied(program, args, output)
            .map_err(TestkitError::io(format!("starting {}", program.display())))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// What it exited with; `None` while it runs, or if a signal ended it.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        self.child.try_wait().ok().flatten()?.code()
    }

    /// How it ended: `exit status: 70`, `signal: 9 (SIGKILL)`.
    pub(crate) fn ending(&mut self) -> String {
        match self.child.try_wait() {
            Ok(Some(status)) => status.to_string(),
            Ok(None) => "it runs".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    /// Stops it where it is, as a debugger or a frozen machine would.
    pub(crate) fn stand_still(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // A process that has ended already is what the signal was to achieve.
            let _ = kill_process(pid, signal);
        }
    }

    /// Ends it at once, and waits until it has.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to end, and ends it if it has not by then.
    pub(crate) fn terminate(&mut self, patience: Duration) {
        self.signal(Signal::TERM);
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if self.has_ended() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.kill();
    }

    pub(crate) fn not_up(&self, what: &str) -> TestkitError {
        TestkitError::NotUp { what: format!("{} {what}", self.name), log: self.log.display().to_string() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a child that the kernel kills when we die (`PR_SET_PDEATHSIG`).
///
/// The kernel takes "we" to be the starting *thread*, and a test's threads come and go: so one thread,
/// which never ends, starts them all. Each child leads a process group, so that Ctrl-C reaches us alone.
fn spawn_tied(program: &Path, args: &[String], output: File) -> io::Result<Child> {
    type Order = (Command, Sender<io::Result<Child>>);
    static NURSERY: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let nursery = NURSERY.get_or_init(|| {
        let (orders, received) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in received {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(orders)
    });

    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program).args(args);
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
    let (answer, answered) = channel();
    let gone = || io::Error::other("the thread that starts processes is gone");
    nursery.lock().map_err(|_| gone())?.send((command, answer)).map_err(|_| gone())?;
    answered.recv().map_err(|_| gone())?
}

/// A loopback port that nobody listens on.
pub fn free_port() -> Result<u16, TestkitError> {
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(TestkitError::io("looking for a free port"))
}

/// Asks every few milliseconds until the answer is yes; `false` if it never was.
pub async fn wait_until<F: Future<Output = bool>>(patience: Duration, mut ask: impl FnMut() -> F) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        if ask().await {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
