//! Ends a command when its caller drops it, also while the connection is lost.

use std::sync::Arc;
use std::time::Duration;

use telexec_executor::{Attach, ExecutionId, Executor, ExecutorError, OnDisconnect};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::outage::Outage;
use crate::{RemoteExecutor, Resume};

/// Any grace makes an attach the continuation of the call that started the command: whoever might make that one may end
/// the command by this one.
const AT_ONCE: Duration = Duration::from_millis(1);

/// Dropping it ends the command, in a spawned task, unless it was disarmed.
pub(crate) struct CancelOnDrop {
    executor: RemoteExecutor,
    resume: Resume,
    id: ExecutionId,
    started: bool,
    /// The caller's read position: output before it is not sent again.
    pub(crate) position: u64,
    /// `None`: disarmed, or there is no runtime to spawn on.
    runtime: Option<(Handle, TaskTracker)>,
}

impl CancelOnDrop {
    /// For a command that may not have started. `tasks`: where to spawn the task; `None`: dropping does not end the command.
    pub(crate) fn new(executor: RemoteExecutor, resume: Resume, id: ExecutionId, tasks: Option<TaskTracker>) -> Self {
        let runtime = Handle::try_current().ok().zip(tasks);
        Self { executor, resume, id, started: false, position: 0, runtime }
    }

    pub(crate) fn id(&self) -> &ExecutionId {
        &self.id
    }

    /// The command is known to run.
    pub(crate) fn started(&mut self) {
        self.started = true;
    }

    /// The command did not start, has ended, or is to run on.
    pub(crate) fn disarm(&mut self) {
        self.runtime = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let Some((runtime, tasks)) = self.runtime.take() else { return };
        let (executor, id, started) = (self.executor.clone(), self.id.clone(), self.started);
        let from =
            Attach { on_disconnect: OnDisconnect::Kill, disconnect_grace: AT_ONCE, ..Attach::position(self.position) };
        let outage = Outage::new(self.resume, None, executor.endpoint(), Arc::default());
        tasks.spawn_on(end(executor, id, from, started, outage), &runtime);
    }
}

/// Attaches so that the agent ends the command with the call, and drops the call.
async fn end(executor: RemoteExecutor, id: ExecutionId, from: Attach, started: bool, mut outage: Outage) {
    loop {
        let error = match outage.limit(executor.attach(&id, from)).await {
            Ok(_dropped) => return,
            // the request to start it may arrive after this one
            Err(error @ ExecutorError::NotFound(_)) if !started => {
                ExecutorError::Unreachable { endpoint: executor.endpoint().to_owned(), source: error.into() }
            }
            Err(error) => error,
        };
        if outage.pause(error).await.is_err() {
            return;
        }
    }
}
