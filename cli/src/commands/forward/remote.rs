//! `-R`: what connects to the agent's machine is connected from here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use telexec_client::{
    AcceptedConnection, Dial, Endpoint, ForwardError, ForwardFailure, ForwardStep, Forwards, Listening,
};
use telexec_executor::ExecutorError;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::listener::Socket;
use super::{MAX_CONNECTIONS, failure, report};
use crate::output::Failure;
use crate::syntax::Destination;

/// Before a listener whose connection was lost is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Returns when the agent listens no more, and could not be reached again for this long. `at` is where it is to listen
/// again: as it was asked for, since the policy and both families of localhost hang on the name.
pub(super) async fn serve(
    mut listening: Listening,
    at: Endpoint,
    to: Endpoint,
    forwards: Forwards,
    target: Destination,
    limit: Duration,
) -> Result<(), Failure> {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let place = Arc::clone(&places).acquire_owned().await;
        match listening.accept().await {
            Ok(accepted) => {
                let (to, forwards, target) = (to.clone(), forwards.clone(), target.clone());
                connections.spawn(async move {
                    let _place = place;
                    if let Err(error) = take(accepted, &to, &forwards).await {
                        report(&target, &error).await;
                    }
                });
            }
            Err(error) => {
                let again = again(error, &at, &forwards, limit).await;
                listening = again.map_err(|error| failure(&target, &error))?;
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
async fn again(
    lost: ForwardError,
    at: &Endpoint,
    forwards: &Forwards,
    limit: Duration,
) -> Result<Listening, ForwardError> {
    let since = Instant::now();
    let mut failed = lost;
    loop {
        let may_end = match &failed {
            ForwardError::Call(
                ExecutorError::Lost { .. } | ExecutorError::Unreachable { .. } | ExecutorError::ShuttingDown,
            ) => true,
            ForwardError::Failed(failure) => failure.errno == "EADDRINUSE",
            _ => false,
        };
        if !may_end || since.elapsed() >= limit {
            return Err(failed);
        }
        tokio::time::sleep(RETRY_DELAY).await;
        match forwards.listen(at).await {
            Ok(listening) => return Ok(listening),
            Err(error) => failed = error,
        }
    }
}
