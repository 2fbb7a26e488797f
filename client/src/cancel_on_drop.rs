//! Ends a command whose caller goes, since the agent was told to let it go on.

use telexec_executor::{Attach, ExecutionId, Executor, ExecutorError, OnDisconnect};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::outage::Outage;
use crate::{RemoteExecutor, Resume};

/// Dropping it ends the command, in a task, unless it was released.
pub(crate) struct CancelOnDrop {
    executor: RemoteExecutor,
    resume: Resume,
    id: ExecutionId,
    started: bool,
    /// Where the caller has read to: nothing before it is sent again.
    pub(crate) position: u64,
    /// `None`: nothing is to be ended, or there is nowhere to do it.
    runtime: Option<(Handle, TaskTracker)>,
}

impl CancelOnDrop {
    /// Of a command that may not have started. `tasks`: its caller's going ends it, in one of these.
    pub(crate) fn new(executor: RemoteExecutor, resume: Resume, id: ExecutionId, tasks: Option<TaskTracker>) -> Self {
        let runtime = Handle::try_current().ok().zip(tasks);
        Self { executor, resume, id, started: false, position: 0, runtime }
    }

    pub(crate) fn id(&self) -> &ExecutionId {
        &self.id
    }

    /// The command runs.
    pub(crate) fn started(&mut self) {
        self.started = true;
    }

    /// It did not start, has ended, or is to go on.
    pub(crate) fn disarm(&mut self) {
        self.runtime = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let Some((runtime, tasks)) = self.runtime.take() else { return };
        let (executor, id, started) = (self.executor.clone(), self.id.clone(), self.started);
        let from = Attach { position: self.position, on_disconnect: OnDisconnect::Kill };
        let outage = Outage::new(self.resume, None, executor.endpoint());
        tasks.spawn_on(end(executor, id, from, started, outage), &runtime);
    }
}

/// The agent ends what it was asked to end with the call, when the call goes.
async fn end(executor: RemoteExecutor, id: ExecutionId, from: Attach, started: bool, mut outage: Outage) {
    loop {
        let error = match outage.limit(executor.attach(&id, from)).await {
            Ok(_dropped) => return,
            // its request may arrive after this one
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
