//! `-R`: what connects to the agent's machine is connected from here.

use std::sync::Arc;
use std::time::Duration;

use telexec_client::{Endpoint, Forwards, Listening};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{MAX_CONNECTIONS, failure, report};
use crate::output::Failure;
use crate::syntax::Destination;

/// Returns when the agent listens no more, and could not be reached again for this long.
pub(super) async fn serve(
    mut listening: Listening,
    asked: Endpoint,
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
                    if let Err(error) = forwards.join_accepted(accepted, &to).await {
                        report(&target, &error).await;
                    }
                });
            }
            Err(error) => {
                let again = forwards.listen_again(&asked, &listening, error, limit).await;
                listening = again.map_err(|error| failure(&target, &error))?;
            }
        }
    }
}
