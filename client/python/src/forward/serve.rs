//! Connects what comes to a socket.

use std::sync::Arc;
use std::time::Duration;

use telexec_client::{Dial, Endpoint, ForwardError, Forwards, Listening, LocalListener};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// How many connections one socket may have at once.
const MAX_CONNECTIONS: usize = 1024;
/// Before the next connection is accepted after an error: most likely there were too many descriptors.
const ACCEPT_DELAY: Duration = Duration::from_millis(100);

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
    pub(super) async fn serve_here(&mut self, listener: &LocalListener, to: &Dial, forwards: &Forwards) {
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
    /// be reached again for as long as `reconnect`.
    pub(super) async fn serve_there(
        &mut self,
        mut listening: Listening,
        asked: &Endpoint,
        to: &Endpoint,
        forwards: &Forwards,
        reconnect: Duration,
    ) -> ForwardError {
        loop {
            let place = Arc::clone(&self.places).acquire_owned().await;
            match listening.accept().await {
                Ok(accepted) => {
                    let (to, forwards) = (to.clone(), forwards.clone());
                    self.add(async move {
                        let _place = place;
                        forwards.join_accepted(accepted, &to).await
                    });
                }
                Err(error) => match forwards.listen_again(asked, &listening, error, reconnect).await {
                    Ok(next) => listening = next,
                    Err(error) => return error,
                },
            }
        }
    }
}
