//! Where commands run: a target that is connected to when it is first needed, so that one which is not there is the
//! matter of a call.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use telexec_client::{RemoteExecutor, Resume, Resuming};
use telexec_executor::{Attach, Command, Execution, ExecutionId, ExecutionInfo, Executor, ExecutorError, Input};
use telexec_executor::{ListPage, ListQuery, OnDisconnect, Signal, TerminalSize};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::config::Place;
use crate::connect::Session;
use crate::output::Failure;
use crate::syntax::Destination;

/// For an agent to hear that its commands are no longer wanted: clients do not wait much longer before they kill.
const LAST_WORD: Duration = Duration::from_secs(1);

/// The machine of a target. Its commands survive lost connections, if its agent's policy lets them; one that was never
/// reached is told at once.
pub(super) struct Machine {
    name: String,
    place: Place,
    executors: OnceCell<Executors>,
    /// What the executors live by.
    session: Mutex<Option<Session>>,
}

struct Executors {
    /// Commands end with their connection.
    bound: RemoteExecutor,
    /// `None`: the policy would not let it end what it has started.
    resuming: Option<Resuming>,
}

impl Executors {
    async fn over(bound: RemoteExecutor) -> Self {
        // of one that does not exist, a policy says what it would say of the caller's own
        let end = Attach { position: 0, on_disconnect: OnDisconnect::Kill };
        let may_end = bound.attach(&ExecutionId::generate(), end).await;
        let may_end = !matches!(may_end, Err(ExecutorError::Denied { .. }));
        let resuming = may_end.then(|| bound.clone().resuming(Resume::default()));
        Self { bound, resuming }
    }

    async fn execute(&self, command: Command) -> Result<Execution, ExecutorError> {
        if let Some(resuming) = &self.resuming {
            match resuming.execute(command.clone()).await {
                // a policy may let nothing go on in the background, and what is resumed does, for a while
                Err(ExecutorError::Denied { .. }) if !command.may_go_to_background() => {}
                answer => return answer,
            }
        }
        self.bound.execute(command).await
    }

    /// For what runs already.
    fn either(&self) -> &dyn Executor {
        self.resuming.as_ref().map_or(&self.bound, |resuming| resuming as &dyn Executor)
    }
}

impl Machine {
    pub(super) fn new(target: &Destination, place: Place) -> Self {
        Self { name: target.to_string(), place, executors: OnceCell::new(), session: Mutex::default() }
    }

    /// What messages and clients call it.
    pub(super) fn name(&self) -> String {
        self.name.clone()
    }

    /// Whom the configuration says that commands run as.
    pub(super) fn user(&self) -> Option<String> {
        self.place.user.clone()
    }

    async fn executors(&self) -> Result<&Executors, ExecutorError> {
        self.executors.get_or_try_init(|| self.connect()).await
    }

    async fn connect(&self) -> Result<Executors, ExecutorError> {
        let session = Session::reach(&self.place).await;
        let session = session.map_err(|failure| ExecutorError::Internal(failure.to_string()))?;
        let executors = Executors::over(session.agent.executor()).await;
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
        Ok(executors)
    }

    /// Ends what was dropped, and with it an agent in this process.
    ///
    /// # Errors
    /// That agent had failed.
    pub(super) async fn close(&self) -> Result<(), Failure> {
        if let Some(Executors { resuming: Some(resuming), .. }) = self.executors.get() {
            // one that is out of reach is tried for longer than anyone waits
            let _ = timeout(LAST_WORD, resuming.settled()).await;
        }
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
        match session {
            Some(session) => session.close().await,
            None => Ok(()),
        }
    }
}

#[async_trait]
impl Executor for Machine {
    async fn execute(&self, command: Command) -> Result<Execution, ExecutorError> {
        self.executors().await?.execute(command).await
    }

    async fn attach(&self, id: &ExecutionId, from: Attach) -> Result<Execution, ExecutorError> {
        self.executors().await?.either().attach(id, from).await
    }

    async fn write_input(&self, id: &ExecutionId, input: Input) -> Result<u64, ExecutorError> {
        self.executors().await?.either().write_input(id, input).await
    }

    async fn resize(&self, id: &ExecutionId, size: TerminalSize) -> Result<(), ExecutorError> {
        self.executors().await?.either().resize(id, size).await
    }

    async fn signal(&self, id: &ExecutionId, signal: Signal) -> Result<ExecutionInfo, ExecutorError> {
        self.executors().await?.either().signal(id, signal).await
    }

    async fn get(&self, id: &ExecutionId) -> Result<ExecutionInfo, ExecutorError> {
        self.executors().await?.either().get(id).await
    }

    async fn list(&self, query: ListQuery) -> Result<ListPage, ExecutorError> {
        self.executors().await?.either().list(query).await
    }
}
