//! A queue: requests are taken as there is room, and stay in it until all is said of them.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::{AckKind, Message, message::Acker};
use futures_util::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::Bridge;
use crate::agents::Pause;
use crate::run::{self, Settled};
use crate::server::{ACK_WAIT, Queue, QueueKind};

/// A pull request is repeated after that.
const PULL_EXPIRES: Duration = Duration::from_secs(30);
/// An execution that another delivery of the same request follows is looked at again after that.
const BUSY_DELAY: Duration = Duration::from_secs(5);

/// Takes requests until this program is to end.
pub(crate) async fn serve(bridge: Arc<Bridge>, queue: Queue, concurrency: u16, tasks: TaskTracker) {
    let slots = Arc::new(Semaphore::new(concurrency.into()));
    let mut pause = Pause::default();
    loop {
        let Some(free) = bridge.stop.run_until_cancelled(acquire(&slots)).await else { return };
        let mut connected = bridge.server.connected.clone();
        connected.mark_unchanged();
        let pulling = pull(&bridge, &queue, free, &tasks);
        tokio::select! {
            () = bridge.stop.cancelled() => return,
            // what was asked for before the connection was lost is forgotten
            _ = connected.changed() => {}
            pulled = pulling => match pulled {
                Ok(()) => pause = Pause::default(),
                Err(error) => {
                    if pause.is_first() {
                        warn!(error = %crate::chain(&*error), "the queue cannot be read: trying again");
                    }
                    pause.wait().await;
                }
            },
        }
    }
}

/// All slots that are free, at least one.
async fn acquire(slots: &Arc<Semaphore>) -> Vec<OwnedSemaphorePermit> {
    // never closed
    let mut free: Vec<_> = Arc::clone(slots).acquire_owned().await.into_iter().collect();
    free.extend(std::iter::from_fn(|| Arc::clone(slots).try_acquire_owned().ok()));
    free
}

async fn pull(
    bridge: &Arc<Bridge>,
    queue: &Queue,
    mut free: Vec<OwnedSemaphorePermit>,
    tasks: &TaskTracker,
) -> Result<(), crate::Error> {
    let mut batch = queue.consumer.batch().max_messages(free.len()).expires(PULL_EXPIRES).messages().await?;
    while let Some(message) = batch.next().await {
        let (message, slot) = (message?, free.pop());
        tasks.spawn(settle(Arc::clone(bridge), queue.kind.clone(), message, slot));
    }
    Ok(())
}

/// Runs one request, and answers the queue.
async fn settle(bridge: Arc<Bridge>, kind: QueueKind, message: Message, _slot: Option<OwnedSemaphorePermit>) {
    let delivered = message.info().map_or(1, |info| info.delivered);
    let (message, acker) = message.split();
    let settled = tokio::select! {
        biased;
        // the next start of this program continues
        () = bridge.stop.cancelled() => Settled::Later(Duration::ZERO),
        settled = run::run(&bridge, &kind, &message, delivered) => settled,
        never = keep(&acker) => match never {},
    };
    let answered = match settled {
        Settled::Done => acker.ack().await,
        Settled::Later(delay) => acker.ack_with(AckKind::Nak(Some(delay).filter(|delay| !delay.is_zero()))).await,
        Settled::Dead(reason) => {
            let burying = bridge.server.bury(&message.subject, message.headers.as_ref(), message.payload, &reason);
            match bridge.stop.run_until_cancelled(burying).await {
                Some(()) => acker.ack_with(AckKind::Term).await,
                None => Ok(()),
            }
        }
    };
    if let Err(error) = answered {
        debug!(error = %error, "the queue was not answered: the request will be delivered again");
    }
}

/// Says that it is being worked at, for as long as it is.
async fn keep(acker: &Acker) -> Infallible {
    loop {
        tokio::time::sleep(ACK_WAIT / 3).await;
        if let Err(error) = acker.ack_with(AckKind::Progress).await {
            debug!(error = %error, "the request may be delivered again");
        }
    }
}

/// Executions that are followed now.
#[derive(Default)]
pub(crate) struct Busy(Mutex<HashSet<String>>);

/// Ends when it is dropped.
pub(crate) struct Following<'a> {
    busy: &'a Busy,
    id: String,
}

impl Busy {
    /// `Err`: it is followed already.
    pub(crate) fn begin(&self, id: &str) -> Result<Following<'_>, Settled> {
        match self.ids().insert(id.to_owned()) {
            true => Ok(Following { busy: self, id: id.to_owned() }),
            false => Err(Settled::Later(BUSY_DELAY)),
        }
    }

    fn ids(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Following<'_> {
    fn drop(&mut self) {
        self.busy.ids().remove(&self.id);
    }
}
