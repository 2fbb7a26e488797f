//! A remote executor whose executions survive the loss of a connection.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use telexec_executor::{
    Attach, Command, Execution, ExecutionId, ExecutionInfo, Executor, ExecutorError, ListPage, ListQuery, OnDisconnect,
    forward_executor,
};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::RemoteExecutor;
use crate::cancel_on_drop::CancelOnDrop;
use crate::error::{Restarted, gone, lost};
use crate::outage::{Outage, is_loss};
use crate::resumed::{Bounds, Resumed};

/// How to retry while an agent is out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// From the detection of a loss until giving up; also how long the agent is asked to wait before it ends the command.
    /// Default: 30 s.
    pub give_up_after: Duration,
    /// The delay before the first attempt is random, up to this; the limit doubles with each attempt. Default: 100 ms.
    pub initial_delay: Duration,
    /// The longest delay. Default: 5 s.
    pub max_delay: Duration,
}

impl Default for Resume {
    fn default() -> Self {
        let (give_up_after, max_delay) = (Duration::from_secs(30), Duration::from_secs(5));
        Self { give_up_after, initial_delay: Duration::from_millis(100), max_delay }
    }
}

/// The machine of an [`Agent`](crate::Agent), whose executions survive the loss of a connection: they are followed again
/// from where they were, so that their output is exact and each command runs once. Made by [`RemoteExecutor::resuming`].
///
/// - An execution ends with [`ExecutorError::Lost`] when the agent is out of reach for longer than [`Resume::give_up_after`],
///   or when it no longer knows the execution, as after a restart. At the command's deadline, an agent that is out of
///   reach is [`ExecutorError::DeadlineExceeded`].
/// - A start whose response is lost is repeated with the same id, which does not run it twice. That needs the agent's start
///   time from before, so the very first start takes one more round trip: keep this value, and clone it.
/// - Output that the agent no longer has is an [`Event::Gap`](telexec_executor::Event::Gap). It keeps what may have been lost
///   with the connection; and of detached commands the first `spool_max_bytes` (64 MiB unless configured).
///
/// **Dropping.** A command with [`OnDisconnect::Kill`] has a [`disconnect_grace`](Command::disconnect_grace) of
/// [`Resume::give_up_after`]: the agent ends it when its caller has been gone for that long, as when this process dies.
/// Dropping its [`Execution`] before the end ends it at once, with
/// [`ExitCause::Cancelled`](telexec_executor::ExitCause::Cancelled) and its grace: during an outage a task does that, also
/// after [`ExecutorError::Lost`], which tries for as long as [`Resume::give_up_after`] and needs the runtime to stay alive. Of
/// several callers that share an `execution_id`, the first that drops it ends it for all.
///
/// Queries are repeated too. Input and signals are not: they fail with [`ExecutorError::Lost`] or [`ExecutorError::Unreachable`],
/// and may be tried again.
#[derive(Clone, Debug)]
pub struct Resuming {
    executor: RemoteExecutor,
    resume: Resume,
    /// The agent's start time, as last reported.
    agent_start: Arc<Mutex<Option<SystemTime>>>,
    /// Tasks that end dropped executions.
    cancellations: TaskTracker,
    /// Whether a call waits for a lost connection.
    outages: Arc<watch::Sender<bool>>,
}

impl Resuming {
    pub(crate) fn new(executor: RemoteExecutor, resume: Resume) -> Self {
        Self {
            executor,
            resume,
            agent_start: Arc::default(),
            cancellations: TaskTracker::new(),
            outages: Arc::default(),
        }
    }

    /// Waits until the agent was asked to end every dropped execution, or was out of reach for too long. Call it before the
    /// runtime shuts down.
    pub async fn settled(&self) {
        self.cancellations.close();
        self.cancellations.wait().await;
    }

    /// Whether a call waits for a lost connection at the moment.
    pub fn outages(&self) -> watch::Receiver<bool> {
        self.outages.subscribe()
    }

    /// How it retries.
    pub fn resume(&self) -> Resume {
        self.resume
    }

    fn cancel_on_drop(&self, id: &ExecutionId, on_disconnect: OnDisconnect) -> CancelOnDrop {
        let ends = on_disconnect == OnDisconnect::Kill;
        CancelOnDrop::new(self.executor.clone(), self.resume, id.clone(), ends.then(|| self.cancellations.clone()))
    }

    /// The command, which the agent keeps for a caller that has lost its connection.
    fn with_grace(&self, command: Command) -> Command {
        let grace = match command.on_disconnect() {
            OnDisconnect::Kill => command.disconnect_grace().max(self.resume.give_up_after),
            OnDisconnect::Detach => Duration::ZERO,
        };
        command.with_disconnect_grace(grace)
    }

    fn outage(&self, bounds: &Bounds) -> Outage {
        Outage::new(self.resume, bounds.deadline, self.executor.endpoint(), Arc::clone(&self.outages))
    }

    /// Makes a call that has no effect.
    async fn repeat<T, F>(&self, call: impl Fn() -> F) -> Result<T, ExecutorError>
    where
        F: Future<Output = Result<T, ExecutorError>>,
    {
        let mut outage = self.outage(&Bounds::of_attach(Attach::start()));
        outage.repeat(call).await
    }

    /// Starts a command that has an id.
    async fn start(
        &self,
        command: &Command,
        outage: &mut Outage,
        cancel_on_drop: &mut CancelOnDrop,
    ) -> Result<Execution, ExecutorError> {
        let asked = self.known_agent(outage).await?;
        let mut may_run = false;
        loop {
            cancel_on_drop.sent();
            let error = match outage.limit(self.executor.execute(command.clone())).await {
                Ok(execution) => {
                    outage.answered();
                    cancel_on_drop.started();
                    return Ok(execution);
                }
                Err(error) => error,
            };
            may_run |= matches!(error, ExecutorError::Lost { .. });
            cancel_on_drop.unanswered(may_run);
            let as_lost = |error| if may_run { gone(error) } else { error };
            outage.pause(error).await.map_err(as_lost)?;
            // a restarted agent does not know the id, and would run it again
            if may_run && (asked.is_none() || self.agent(outage).await.map_err(gone)? != asked) {
                return Err(lost(self.executor.endpoint(), Restarted));
            }
        }
    }

    /// The agent's start time, known or asked for now.
    async fn known_agent(&self, outage: &mut Outage) -> Result<Option<SystemTime>, ExecutorError> {
        let known = *self.agent_start.lock().unwrap_or_else(PoisonError::into_inner);
        match known {
            Some(known) => Ok(Some(known)),
            None => self.agent(outage).await,
        }
    }

    /// Asks for the agent's start time; `None`: not reported.
    async fn agent(&self, outage: &mut Outage) -> Result<Option<SystemTime>, ExecutorError> {
        let start = match outage.repeat(|| self.executor.agent_start()).await {
            Err(error) if is_loss(&error) || matches!(error, ExecutorError::DeadlineExceeded) => return Err(error),
            answer => answer.ok().flatten(),
        };
        *self.agent_start.lock().unwrap_or_else(PoisonError::into_inner) = start;
        Ok(start)
    }
}

#[async_trait]
impl Executor for Resuming {
    async fn execute(&self, command: Command) -> Result<Execution, ExecutorError> {
        let id = command.execution_id().cloned().unwrap_or_else(ExecutionId::generate);
        let mut cancel_on_drop = self.cancel_on_drop(&id, command.on_disconnect());
        let command = self.with_grace(command.with_execution_id(id));
        let bounds = Bounds::of(&command);
        let mut outage = self.outage(&bounds);
        match self.start(&command, &mut outage, &mut cancel_on_drop).await {
            Ok(execution) => {
                Ok(Resumed::new(self.executor.clone(), execution, bounds, outage, cancel_on_drop).into_execution())
            }
            Err(error) => {
                // only after Lost the command may be running
                if !matches!(error, ExecutorError::Lost { .. }) {
                    cancel_on_drop.disarm();
                }
                Err(error)
            }
        }
    }

    async fn attach(&self, id: &ExecutionId, from: Attach) -> Result<Execution, ExecutorError> {
        let from = match from.on_disconnect {
            OnDisconnect::Kill => {
                Attach { disconnect_grace: from.disconnect_grace.max(self.resume.give_up_after), ..from }
            }
            OnDisconnect::Detach => from,
        };
        let bounds = Bounds::of_attach(from);
        let mut outage = self.outage(&bounds);
        let execution = outage.repeat(|| self.executor.attach(id, from)).await?;
        outage.answered();
        let mut cancel_on_drop = self.cancel_on_drop(id, from.on_disconnect);
        cancel_on_drop.started();
        cancel_on_drop.position = from.position;
        Ok(Resumed::new(self.executor.clone(), execution, bounds, outage, cancel_on_drop).into_execution())
    }

    async fn get(&self, id: &ExecutionId) -> Result<ExecutionInfo, ExecutorError> {
        self.repeat(|| self.executor.get(id)).await
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ExecutorError> {
        self.repeat(|| self.executor.list(query.clone())).await
    }

    forward_executor!(self => self.executor; write_input, resize, signal);
}
