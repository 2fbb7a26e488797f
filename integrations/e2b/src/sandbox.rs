//! A sandbox: a target that was given to a client.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use telexec_client::{Agent, RemoteFiles, Resuming};
use telexec_executor::{Command, Event, Execution, ExecutionId, Executor, FilePath, FileTarget, OutputStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::claim::Claim;
use crate::failure::{Code, Failure};
use crate::room::Room;
use crate::watchers::Watchers;

/// Carried by every execution of a sandbox.
pub(crate) const SANDBOX_LABEL: &str = "e2b.sandbox";
/// Of what is remembered of processes beside what the agent knows: most of it are their variables.
const MAX_REMEMBERED_BYTES: usize = 1024 * 1024;
/// Of a process whose command has no variables.
const REMEMBERED_BYTES: usize = 256;
const MAX_HOMES: usize = 1024;
const MAX_CAPTURED_BYTES: usize = 1024 * 1024;
const CAPTURE_TIMEOUT: Duration = Duration::from_secs(30);

/// How a target's agent is spoken to.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) agent: Agent,
    pub(crate) executor: Resuming,
    pub(crate) files: RemoteFiles,
}

/// What is known of a process only here.
#[derive(Clone)]
pub(crate) struct Process {
    pub(crate) id: ExecutionId,
    pub(crate) envs: BTreeMap<String, String>,
}

impl Process {
    fn bytes(&self) -> usize {
        REMEMBERED_BYTES
            + self.envs.iter().map(|(name, value)| REMEMBERED_BYTES + name.len() + value.len()).sum::<usize>()
    }
}

#[derive(Default)]
struct Remembered {
    processes: HashMap<u32, Process>,
    bytes: usize,
}

impl Remembered {
    fn insert(&mut self, pid: u32, process: Process) {
        self.remove(pid);
        let bytes = process.bytes();
        if self.bytes + bytes > MAX_REMEMBERED_BYTES {
            // the agent knows all but their variables
            *self = Self::default();
        }
        if bytes <= MAX_REMEMBERED_BYTES {
            self.bytes += bytes;
            self.processes.insert(pid, process);
        }
    }

    fn remove(&mut self, pid: u32) {
        if let Some(process) = self.processes.remove(&pid) {
            self.bytes -= process.bytes();
        }
    }
}

pub(crate) struct Sandbox {
    pub(crate) link: Link,
    pub(crate) claim: Claim,
    /// Of commands and files that name none; `None`: the agent's.
    pub(crate) default_user: Option<String>,
    pub(crate) is_paused: bool,
    /// Those that have lived: shared with the same sandbox in its other states.
    pub(crate) shared: Arc<Shared>,
}

/// What stays the same while deadline and state change.
#[derive(Default)]
pub(crate) struct Shared {
    remembered: Mutex<Remembered>,
    /// Where relative paths of other users begin.
    homes: Mutex<HashMap<String, String>>,
    pub(crate) watchers: Watchers,
    pub(crate) room: Room,
    /// Commands that are being started.
    starts: TaskTracker,
    /// Nothing is to reach the target.
    paused: watch::Sender<bool>,
    /// The sandbox is gone.
    pub(crate) ended: CancellationToken,
}

impl Shared {
    /// Nothing is being started any more in the sandbox, which has ended or is paused.
    pub(crate) async fn settled(&self) {
        self.starts.close();
        self.starts.wait().await;
        self.starts.reopen();
    }

    pub(crate) fn set_paused(&self, paused: bool) {
        self.paused.send_replace(paused);
    }
}

impl Sandbox {
    /// The outcome of a call, unless the sandbox ends or is paused before: a call that waits for its body must not reach the
    /// target when others have that, or when nothing is to run there.
    pub(crate) async fn while_running<T>(&self, call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let mut paused = self.shared.paused.subscribe();
        tokio::select! {
            biased;
            () = self.shared.ended.cancelled() => Err(Failure::gone()),
            _ = paused.wait_for(|paused| *paused) => Err(Failure::gone()),
            outcome = call => outcome,
        }
    }

    /// Starts a command, whatever becomes of who asks for it: one that a sandbox does not know of would outlive it.
    pub(crate) async fn execute(&self, command: Command) -> Result<Execution, Failure> {
        let starting = self.shared.starts.token();
        // after the token is taken, or it is not waited for
        if self.shared.ended.is_cancelled() || *self.shared.paused.borrow() {
            return Err(Failure::gone());
        }
        let executor = self.link.executor.clone();
        let started = tokio::spawn(async move {
            let started = executor.execute(command).await;
            drop(starting);
            started
        });
        Ok(started.await.map_err(|_| Failure::new(Code::Internal, "telexec-e2b is shutting down"))??)
    }

    pub(crate) fn id(&self) -> &str {
        &self.claim.id
    }

    pub(crate) fn remembered(&self, pid: u32) -> Option<Process> {
        self.shared.remembered.lock().unwrap_or_else(PoisonError::into_inner).processes.get(&pid).cloned()
    }

    pub(crate) fn remember(&self, pid: u32, process: Process) {
        self.shared.remembered.lock().unwrap_or_else(PoisonError::into_inner).insert(pid, process);
    }

    pub(crate) fn forget(&self, pid: u32) {
        self.shared.remembered.lock().unwrap_or_else(PoisonError::into_inner).remove(pid);
    }

    /// The user of a call.
    pub(crate) fn user(&self, asked: Option<&str>) -> Option<String> {
        asked.map(str::to_owned).or_else(|| self.default_user.clone())
    }

    /// Whether the sandbox's own home is that of this user.
    pub(crate) fn is_default(&self, user: Option<&str>) -> bool {
        user == self.default_user.as_deref()
    }

    /// Where relative paths of the user begin.
    pub(crate) async fn home(&self, user: Option<&str>) -> Result<String, Failure> {
        if self.is_default(user) {
            return Ok(self.claim.home.clone());
        }
        let key = user.unwrap_or_default().to_owned();
        if let Some(home) = self.shared.homes.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(home.clone());
        }
        let home = start_directory(&self.link.executor, user).await?;
        let mut homes = self.shared.homes.lock().unwrap_or_else(PoisonError::into_inner);
        if homes.len() < MAX_HOMES {
            homes.insert(key, home.clone());
        }
        Ok(home)
    }

    /// The absolute path, for a user. What it leads to, through "..", links and permissions, is for the kernel to say.
    pub(crate) async fn path(&self, path: &str, user: Option<&str>) -> Result<String, Failure> {
        if path.contains('\0') {
            return Err(Failure::invalid("path: contains a NUL byte"));
        }
        if path.starts_with('/') {
            return Ok(plain(path));
        }
        let home = self.home(user).await?;
        Ok(plain(&format!(
            "{home}/{}",
            path.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/')).unwrap_or(path)
        )))
    }

    /// The file at a path, and that path.
    pub(crate) async fn file(&self, path: &str, user: Option<&str>) -> Result<(FileTarget, String), Failure> {
        let path = self.path(path, user).await?;
        Ok((FileTarget { path: FilePath::new(path.as_str()), user: user.map(str::to_owned) }, path))
    }

    /// What is in its time yet.
    pub(crate) fn left(&self) -> Duration {
        self.claim.deadline.duration_since(SystemTime::now()).unwrap_or_default()
    }
}

/// Without what changes nothing: "//", "/./" and a slash at the end.
fn plain(path: &str) -> String {
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    let plain: String = parts.flat_map(|part| ["/", part]).collect();
    if plain.is_empty() { "/".to_owned() } else { plain }
}

/// Where commands of a user start.
pub(crate) async fn start_directory(executor: &Resuming, user: Option<&str>) -> Result<String, Failure> {
    let output = capture(executor, Command::argv(["pwd"]), user).await?;
    let text = String::from_utf8(output).unwrap_or_default();
    match text.strip_suffix('\n') {
        Some(path) if path.starts_with('/') => Ok(path.to_owned()),
        _ => Err(Failure::new(Code::Internal, "the target does not say where commands start")),
    }
}

/// The standard output of a short command of this program's own.
pub(crate) async fn capture(
    executor: &Resuming,
    command: telexec_executor::CommandBuilder,
    user: Option<&str>,
) -> Result<Vec<u8>, Failure> {
    let command = match user {
        Some(user) => command.user(user),
        None => command,
    };
    let command = command.timeout(CAPTURE_TIMEOUT).build().map_err(telexec_executor::ExecutorError::from)?;
    let mut execution = executor.execute(command).await?;
    let mut output = Vec::new();
    while let Some(event) = execution.next().await {
        match event? {
            Event::Output(piece) if piece.stream == OutputStream::Stdout => output.extend_from_slice(&piece.data),
            Event::Exited(exited) if exited.exit_code() == 0 => return Ok(output),
            Event::Exited(exited) => {
                let message = format!("a command of telexec-e2b on the target failed: {:?}", exited.cause);
                return Err(Failure::new(Code::Internal, message));
            }
            Event::Started(_) | Event::Promoted | Event::Gap(_) | Event::Output(_) => {}
        }
        if output.len() > MAX_CAPTURED_BYTES {
            return Err(Failure::new(Code::Internal, "a command of telexec-e2b on the target says too much"));
        }
    }
    Err(Failure::new(Code::Unavailable, "a command of telexec-e2b on the target has no end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_limited_in_bytes() {
        let process = |bytes: usize| Process {
            id: ExecutionId::generate(),
            envs: BTreeMap::from([("A".to_owned(), "x".repeat(bytes))]),
        };
        let mut remembered = Remembered::default();
        for pid in 0..10_000 {
            remembered.insert(pid, process(1000));
            assert!(remembered.bytes <= MAX_REMEMBERED_BYTES && remembered.processes.contains_key(&pid));
        }
        let sum = |remembered: &Remembered| remembered.processes.values().map(Process::bytes).sum::<usize>();
        assert_eq!(remembered.bytes, sum(&remembered));
        remembered.insert(9_999, process(1));
        remembered.remove(9_998);
        assert_eq!(remembered.bytes, sum(&remembered));
        remembered.insert(1, process(MAX_REMEMBERED_BYTES));
        assert!(remembered.processes.is_empty() && remembered.bytes == 0);
    }

    #[test]
    fn paths_keep_what_only_the_kernel_knows() {
        for (path, expected) in
            [("/", "/"), ("//a/./b//", "/a/b"), ("/a/../b", "/a/../b"), ("/.", "/"), ("/..a", "/..a")]
        {
            assert_eq!(plain(path), expected);
        }
    }
}
