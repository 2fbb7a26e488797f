//! A queue: requests are taken as there is room, and stay in it until all is said of them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::jetstream::message::{Acker, Info};
use async_nats::jetstream::{AckKind, Message};
use futures_util::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{debug, warn};

use crate::Bridge;
use crate::agents::Pause;
use crate::run::{self, Settled};
use crate::server::{ACK_WAIT, Queue, QueueKind};

/// A pull request is repeated after that.
const PULL_EXPIRES: Duration = Duration::from_secs(30);
/// A request that is being followed is looked at again after that.
const BUSY_DELAY: Duration = Duration::from_secs(5);

/// Takes requests until this program is to end.
pub(crate) async fn serve(bridge: Arc<Bridge>, mut queue: Queue, slots: Arc<Semaphore>, concurrency: u16) {
    let mut pause = Pause::default();
    loop {
        let Some(most) = bridge.stop.run_until_cancelled(room(&bridge, &slots, &queue.kind)).await else { return };
        let mut connected = bridge.server.connected.clone();
        connected.mark_unchanged();
        let pulled = tokio::select! {
            () = bridge.stop.cancelled() => return,
            // what was asked for before the connection was lost is forgotten
            _ = connected.changed() => continue,
            pulled = pull(&bridge, &queue, most, &slots) => pulled,
        };
        if let Err(error) = pulled {
            warn!(error = %crate::chain(&*error), "the queue cannot be read: trying again");
            let repairing = async {
                pause.wait().await;
                bridge.server.repair(queue.kind.clone(), concurrency).await
            };
            let Some(repaired) = bridge.stop.run_until_cancelled(repairing).await else { return };
            queue = repaired;
        } else {
            pause = Pause::default();
        }
    }
}

/// How many requests there is room for, once there is some. Of those that other agents may take just as well it is one at a
/// time, and none while the agent does not answer, so that what is taken here runs here at once.
async fn room(bridge: &Bridge, slots: &Arc<Semaphore>, kind: &QueueKind) -> usize {
    // never closed
    let slot = slots.acquire().await;
    let free = slots.available_permits() + 1;
    drop(slot);
    match kind {
        QueueKind::Own => free,
        QueueKind::Label(_) => {
            bridge.agents.until_answering().await;
            1
        }
    }
}

async fn pull(bridge: &Arc<Bridge>, queue: &Queue, most: usize, slots: &Arc<Semaphore>) -> Result<(), crate::Error> {
    let mut batch = queue.consumer.batch().max_messages(most).expires(PULL_EXPIRES).messages().await?;
    while let Some(message) = batch.next().await {
        let message = message?;
        // at once, or else the next pull takes it for free
        let slot = Arc::clone(slots).try_acquire_owned().ok();
        bridge.tasks.spawn(settle(Arc::clone(bridge), queue.kind.clone(), message, slot, Arc::clone(slots)));
    }
    Ok(())
}

/// Runs one request, and answers the queue.
async fn settle(
    bridge: Arc<Bridge>,
    kind: QueueKind,
    message: Message,
    slot: Option<OwnedSemaphorePermit>,
    slots: Arc<Semaphore>,
) {
    let delivery = message.info().map_or_else(|_| Delivery::default(), |info| Delivery::of(&info));
    let (message, acker) = message.split();
    let settling = async {
        let _slot = match slot {
            Some(slot) => Some(slot),
            // never closed
            None => slots.acquire_owned().await.ok(),
        };
        let settled = run::run(&bridge, &kind, &message, delivery).await;
        if let Settled::Dead(reason) = &settled {
            let payload = message.payload.clone();
            bridge.server.bury(&message.subject, message.headers.as_ref(), payload, reason).await;
        }
        settled
    };
    let settled = tokio::select! {
        biased;
        // the next start of this program continues
        () = bridge.let_go.cancelled() => Settled::Later(Duration::ZERO),
        settled = settling => settled,
        never = keep(&acker) => match never {},
    };
    let answered = match settled {
        Settled::Done => acker.ack().await,
        Settled::Later(delay) => acker.ack_with(AckKind::Nak(Some(delay).filter(|delay| !delay.is_zero()))).await,
        Settled::Dead(_) => acker.ack_with(AckKind::Term).await,
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

/// Which message of its queue it is, how often it was delivered, and how old it is.
#[derive(Clone, Copy, Default)]
pub(crate) struct Delivery {
    pub(crate) delivered: i64,
    pub(crate) sequence: u64,
    /// Since it was published, by this machine's clock.
    pub(crate) age: Duration,
}

impl Delivery {
    fn of(info: &Info<'_>) -> Self {
        let published = Duration::from_secs(u64::try_from(info.published.unix_timestamp()).unwrap_or_default());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { delivered: info.delivered, sequence: info.stream_sequence, age: now.saturating_sub(published) }
    }
}

/// Executions that are followed now, with their requests and the messages that those came with.
#[derive(Default)]
pub(crate) struct Busy(Mutex<HashMap<String, Followed>>);

struct Followed {
    request: String,
    /// Of its message.
    sequence: u64,
    /// It is not to be started any more.
    is_cancelled: bool,
}

/// Ends when it is dropped.
pub(crate) struct Following<'a> {
    busy: &'a Busy,
    id: String,
}

impl Busy {
    /// # Errors
    /// It is followed already.
    pub(crate) fn begin(
        &self,
        id: &str,
        request: &str,
        sequence: u64,
        is_passed: bool,
    ) -> Result<Following<'_>, Settled> {
        match self.ids().entry(id.to_owned()) {
            Entry::Vacant(vacant) => {
                vacant.insert(Followed { request: request.to_owned(), sequence, is_cancelled: false });
                Ok(Following { busy: self, id: id.to_owned() })
            }
            // the same message, delivered again since the queue has heard nothing of it
            Entry::Occupied(other) if other.get().sequence == sequence => Err(Settled::Later(BUSY_DELAY)),
            // a repeat: the message that is followed stays in its queue until the end
            Entry::Occupied(other) if other.get().request == request && !is_passed => Err(Settled::Done),
            // unless that was taken from there, and this one passed on instead
            Entry::Occupied(other) if other.get().request == request => Err(Settled::Later(BUSY_DELAY)),
            Entry::Occupied(_) => Err(Settled::Dead(run::ID_IN_USE.to_owned())),
        }
    }

    /// Has an execution that is followed never be started, if it is not yet; whether there is one.
    pub(crate) fn cancel(&self, id: &str) -> bool {
        self.ids().get_mut(id).map(|followed| followed.is_cancelled = true).is_some()
    }

    pub(crate) fn is_cancelled(&self, id: &str) -> bool {
        self.ids().get(id).is_some_and(|followed| followed.is_cancelled)
    }

    fn ids(&self) -> MutexGuard<'_, HashMap<String, Followed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Following<'_> {
    fn drop(&mut self) {
        self.busy.ids().remove(&self.id);
    }
}
