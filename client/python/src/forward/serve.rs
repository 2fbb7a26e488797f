//! Connects what comes to a socket.

use std::sync::Arc;
use std::time::Duration;

use telexec_client::{
    AcceptedConnection, Dial, Endpoint, ForwardError, ForwardFailure, ForwardStep, Forwards, Listening, Resume,
};
use telexec_executor::ExecutorError;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::socket::{Listener, Socket};

/// How many connections one socket may have at once.
const MAX_CONNECTIONS: usize = 1024;
/// Before the next connection is accepted after an error: most likely there were too many descriptors.
const ACCEPT_DELAY: Duration = Duration::from_millis(100);
/// Before a listener whose connection was lost is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// The connections of one socket.
pub(super) struct Connections {
    tasks: JoinSet<()>,
    places: Arc<Semaphore>,
}

impl Connections {
    pub(super) fn new() -> Self {
        Self { tasks: JoinSet::new(), places: Arc::new(Semaphore::new(MAX_CONNECTIONS)) }
    }

    /// What fails is reset at both ends, which is how they learn of it.
    fn add(&mut self, work: impl Future<Output = Result<(), ForwardError>> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(async move { drop(work.await) });
    }

    /// Ends all.
    pub(super) async fn end(mut self) {
        self.tasks.shutdown().await;
    }

    /// What connects here is connected from the agent's machine. Never returns.
    pub(super) async fn serve_here(&mut self, listener: &Listener, to: &Endpoint, forwards: &Forwards) {
        loop {
            let place = Arc::clone(&self.places).acquire_owned().await;
            let Ok(socket) = listener.accept().await else {
                sleep(ACCEPT_DELAY).await;
                continue;
            };
            let (to, forwards) = (to.clone(), forwards.clone());
            self.add(async move {
                let _place = place;
                socket.join(forwards.connect(to).await?).await
            });
        }
    }

    /// What connects to the agent's machine is connected from here. Returns when the agent listens no more, and could not
    /// be reached again. `at` is where it is to listen again.
    pub(super) async fn serve_there(
        &mut self,
        mut listening: Listening,
        at: &Endpoint,
        to: &Endpoint,
        forwards: &Forwards,
    ) -> ForwardError {
        loop {
            let place = Arc::clone(&self.places).acquire_owned().await;
            match listening.accept().await {
                Ok(accepted) => {
                    let (to, forwards) = (to.clone(), forwards.clone());
                    self.add(async move {
                        let _place = place;
                        take(accepted, &to, &forwards).await
                    });
                }
                Err(error) => match again(error, at, forwards).await {
                    Ok(next) => listening = next,
                    Err(error) => return error,
                },
            }
        }
    }
}

async fn take(accepted: AcceptedConnection, to: &Endpoint, forwards: &Forwards) -> Result<(), ForwardError> {
    // first, since it does not wait for long; dropped it is reset
    let connection = forwards.connect(Dial::Accepted(accepted.id)).await?;
    let socket = Socket::dial(to).await;
    let socket = socket.map_err(|error| ForwardError::Failed(ForwardFailure::new(ForwardStep::Dial, to, &error)))?;
    socket.join(connection).await
}

/// Listens again on the same address. An agent that has not noticed the loss yet still has it in use.
async fn again(lost: ForwardError, at: &Endpoint, forwards: &Forwards) -> Result<Listening, ForwardError> {
    let end = Instant::now() + Resume::default().give_up_after;
    let mut failed = lost;
    loop {
        let may_end = match &failed {
            ForwardError::Call(
                ExecutorError::Lost { .. } | ExecutorError::Unreachable { .. } | ExecutorError::ShuttingDown,
            ) => true,
            ForwardError::Failed(failure) => failure.errno == "EADDRINUSE",
            _ => false,
        };
        if !may_end || Instant::now() >= end {
            return Err(failed);
        }
        sleep(RETRY_DELAY).await;
        match forwards.listen(at).await {
            Ok(listening) => return Ok(listening),
            Err(error) => failed = error,
        }
    }
}
