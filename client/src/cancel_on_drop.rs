//! Ends a command when its caller drops it, also while the connection is lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use telexec_executor::{Attach, ExecutionId, Executor, ExecutorError, OnDisconnect};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::outage::{Outage, is_loss};
use crate::{RemoteExecutor, Resume};

/// Any grace makes an attach the continuation of the call that started the command: whoever might make that one may end
/// the command by this one.
const AT_ONCE: Duration = Duration::from_millis(1);
/// While the connection lasts, the agent gets the request to start the command first, and the end of that call too: one that
/// it does not know by then will never run.
const STARTING: Duration = Duration::from_secs(1);

/// How far a command has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The agent was not asked to start it.
    Unsent,
    /// On the connection with this number.
    Sent(u64),
    /// The connection was lost before there was an answer: the request may arrive at any time.
    Lost,
    /// It is known to run.
    Started,
}

/// Dropping it ends the command, in a spawned task, if that may run and this was not disarmed.
pub(crate) struct CancelOnDrop {
    executor: RemoteExecutor,
    resume: Resume,
    id: ExecutionId,
    progress: Progress,
    /// The caller's read position: output before it is not sent again.
    pub(crate) position: u64,
    /// `None`: disarmed, or there is no runtime to spawn on.
    runtime: Option<(Handle, TaskTracker)>,
}

impl CancelOnDrop {
    /// For a command that was not sent. `tasks`: where to spawn the task; `None`: dropping does not end the command.
    pub(crate) fn new(executor: RemoteExecutor, resume: Resume, id: ExecutionId, tasks: Option<TaskTracker>) -> Self {
        let runtime = Handle::try_current().ok().zip(tasks);
        Self { executor, resume, id, progress: Progress::Unsent, position: 0, runtime }
    }

    pub(crate) fn id(&self) -> &ExecutionId {
        &self.id
    }

    /// The agent is asked to start the command from now on.
    pub(crate) fn sent(&mut self) {
        if self.progress == Progress::Unsent {
            self.progress = Progress::Sent(self.executor.connection());
        }
    }

    /// There was no answer. `may_run`: but for that, the command may have started.
    pub(crate) fn unanswered(&mut self, may_run: bool) {
        self.progress = if may_run { Progress::Lost } else { Progress::Unsent };
    }

    /// The command is known to run.
    pub(crate) fn started(&mut self) {
        self.progress = Progress::Started;
    }

    /// The command did not start, has ended, or is to run on.
    pub(crate) fn disarm(&mut self) {
        self.runtime = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let Some((runtime, tasks)) = self.runtime.take().filter(|_| self.progress != Progress::Unsent) else { return };
        let (executor, id, progress) = (self.executor.clone(), self.id.clone(), self.progress);
        let from =
            Attach { on_disconnect: OnDisconnect::Kill, disconnect_grace: AT_ONCE, ..Attach::position(self.position) };
        let outage = Outage::new(self.resume, None, executor.endpoint(), Arc::default());
        tasks.spawn_on(end(executor, id, from, progress, outage), &runtime);
    }
}

/// Attaches so that the agent ends the command with the call, and drops the call.
async fn end(executor: RemoteExecutor, id: ExecutionId, from: Attach, mut progress: Progress, mut outage: Outage) {
    let dropped = Instant::now();
    loop {
        let error = match outage.limit(executor.attach(&id, from)).await {
            Ok(_dropped) => return,
            // the request to start it may arrive after this one
            Err(error @ ExecutorError::NotFound(_)) if may_come(progress, dropped, executor.connection()) => {
                ExecutorError::Unreachable { endpoint: executor.endpoint().to_owned(), source: error.into() }
            }
            Err(error) => {
                if is_loss(&error) && matches!(progress, Progress::Sent(_)) {
                    progress = Progress::Lost;
                }
                error
            }
        };
        if outage.pause(error).await.is_err() {
            return;
        }
    }
}

/// Whether the agent may yet start a command that it does not know.
fn may_come(progress: Progress, dropped: Instant, connection: u64) -> bool {
    match progress {
        // what was sent on another connection may be held up on its way
        Progress::Sent(on) => on != connection || dropped.elapsed() < STARTING,
        Progress::Lost => true,
        Progress::Unsent | Progress::Started => false,
    }
}
