//! Fair queueing of request and response bodies between callers (stride scheduling): what one caller can send and receive does not
//! depend on how many streams another has.
//!
//! While several callers have open calls, only so many bytes are carried in a round, which lasts until the thread that runs
//! [`BodyTurns::drive`] has polled its other ready tasks. What is beyond that is queued for the next round, and callers take turns.
//! A round waits for nothing else, so time that one caller does not use is another's. While a frame of a request is queued, nothing
//! more is read from its stream: its flow-control window fills, and the caller must wait.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Buf, Frame, SizeHint};
use telexec_engine::{Share, Turns};
use tokio::sync::oneshot;

use crate::identity::Identity;
use crate::lock::lock;

/// The fixed cost of a turn (a wake-up, a system call), as the number of bytes whose transfer takes as long.
const TURN_COST: u64 = 16 * 1024;
/// The same of a further frame in it.
const FRAME_COST: u64 = 1024;
/// What a stream may carry in its turn: two large frames. More is more efficient, but others wait longer.
const QUANTUM: u64 = TURN_COST + 2 * (64 * 1024 + FRAME_COST);
/// A smaller frame usually ends what a stream has ready, so nothing is reserved behind it.
const LARGE_FRAME_BYTES: usize = 16 * 1024;
/// It may still carry this much: h2 closes a connection of which too many small frames are unread (`too_many_data_frames`).
const SMALL_QUANTUM: u64 = 16 * FRAME_COST;
/// When more callers than this are known, the shares of those without a connection are forgotten.
const MAX_REMEMBERED_SHARES: usize = 4096;

/// The turns of all callers; clones share them.
#[derive(Clone)]
pub(crate) struct BodyTurns(Arc<Shared>);

struct Shared {
    /// What is carried in a round: a quantum for each thread.
    round_cost: u64,
    /// How many callers have open bodies.
    callers: AtomicUsize,
    state: Mutex<State>,
    /// Those who have a connection, or a share other than the default; others are removed when the next caller connects.
    each: Mutex<HashMap<Identity, Arc<Caller>>>,
}

#[derive(Default)]
struct State {
    waiting: Turns<Waiting>,
    /// The number of the current round.
    round: u64,
    /// The cost of what was carried or granted in it.
    cost: u64,
    /// A task begins the rounds: [`BodyTurns::drive`].
    is_driven: bool,
}

/// A frame in the queue.
struct Waiting {
    is_large: bool,
    cost: u64,
    turn: oneshot::Sender<Quantum>,
}

/// What a stream may carry without queueing, in one round.
#[derive(Clone, Copy, Default)]
struct Quantum {
    round: u64,
    left: u64,
}

struct Caller {
    identity: Identity,
    share: Mutex<Share>,
    /// How many bodies are open.
    open: AtomicUsize,
}

/// The turns of one caller; clones share them.
#[derive(Clone)]
pub(crate) struct CallerTurns {
    all: BodyTurns,
    own: Arc<Caller>,
}

impl BodyTurns {
    /// For an agent with this many threads.
    pub(crate) fn new(threads: usize) -> Self {
        let round_cost = QUANTUM.saturating_mul(threads as u64);
        let callers = AtomicUsize::new(0);
        Self(Arc::new(Shared { round_cost, callers, state: Mutex::default(), each: Mutex::default() }))
    }

    /// Those of one identity, over all of its connections.
    pub(crate) fn of(&self, identity: &Identity) -> CallerTurns {
        let mut each = lock(&self.0.each);
        let known = each.get(identity).map(Arc::clone);
        let own = known.unwrap_or_else(|| {
            let remembers = each.len() < MAX_REMEMBERED_SHARES;
            each.retain(|_, own| Arc::strong_count(own) > 1 || remembers && *lock(&own.share) != Share::default());
            let (share, open) = (Mutex::default(), AtomicUsize::new(0));
            let own = Arc::new(Caller { identity: identity.clone(), share, open });
            each.insert(identity.clone(), Arc::clone(&own));
            own
        });
        CallerTurns { all: self.clone(), own }
    }

    /// Sets the share of an identity that is known.
    pub(crate) fn set_share(&self, identity: &Identity, share: Share) {
        if let Some(own) = lock(&self.0.each).get(identity) {
            *lock(&own.share) = share;
        }
    }

    /// Begins one round after another, until nothing is queued.
    async fn drive(self) {
        loop {
            // until this thread has polled its other ready tasks, or many of them
            tokio::task::yield_now().await;
            let Some(granted) = self.next_round() else { return };
            for (turn, quantum) in granted {
                let _ = turn.send(quantum);
            }
        }
    }

    /// Begins a round, and returns whose turn it is; `None`: nothing is queued.
    fn next_round(&self) -> Option<Vec<(oneshot::Sender<Quantum>, Quantum)>> {
        let mut state = lock(&self.0.state);
        (state.round, state.cost) = (state.round.wrapping_add(1), 0);
        if state.waiting.is_empty() {
            state.waiting.forget();
            state.is_driven = false;
            return None;
        }
        let mut granted = Vec::new();
        while state.cost < self.0.round_cost
            && let Some(Waiting { is_large, cost, turn }) = state.waiting.pop()
        {
            let (reserved, left) = match is_large {
                true => (cost.max(QUANTUM), QUANTUM.saturating_sub(cost)),
                false => (cost, SMALL_QUANTUM),
            };
            state.cost = state.cost.saturating_add(reserved);
            granted.push((turn, Quantum { round: state.round, left }));
        }
        Some(granted)
    }
}

impl CallerTurns {
    /// Carries this body in turns.
    pub(crate) fn carry<B: Body>(&self, body: B) -> InTurns<B> {
        if self.own.open.fetch_add(1, Ordering::Relaxed) == 0 {
            self.all.0.callers.fetch_add(1, Ordering::Relaxed);
        }
        InTurns { body, turns: Opened(self.clone()), quantum: Quantum::default(), waiting: None }
    }

    /// Queues a frame of this size; `None`: it may be carried now.
    fn queue(&self, bytes: usize, quantum: &mut Quantum) -> Option<Place> {
        if self.all.0.callers.load(Ordering::Relaxed) < 2 {
            return None;
        }
        let (share, further) = (*lock(&self.own.share), FRAME_COST.saturating_add(bytes as u64));
        let mut state = lock(&self.all.0.state);
        if quantum.round == state.round
            && let Some(left) = quantum.left.checked_sub(further)
        {
            quantum.left = left;
            state.waiting.charge(self.own.identity.as_str(), share, kib(further));
            return None;
        }
        let cost = TURN_COST.saturating_add(bytes as u64);
        if !state.is_driven && state.cost < self.all.0.round_cost {
            state.cost = state.cost.saturating_add(cost);
            return None;
        }
        let (turn, granted) = oneshot::channel();
        let waiting = Waiting { is_large: bytes >= LARGE_FRAME_BYTES, cost, turn };
        let number = state.waiting.push(self.own.identity.as_str(), share, kib(cost), waiting);
        if !std::mem::replace(&mut state.is_driven, true) {
            tokio::spawn(self.all.clone().drive());
        }
        Some(Place { turns: self.clone(), number, granted })
    }
}

/// Counts a body, until this is dropped.
struct Opened(CallerTurns);

impl Drop for Opened {
    fn drop(&mut self) {
        if self.0.own.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.all.0.callers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// In the queue, until this is dropped.
struct Place {
    turns: CallerTurns,
    number: u64,
    granted: oneshot::Receiver<Quantum>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let waiting = lock(&self.turns.all.0.state).waiting.remove(self.turns.own.identity.as_str(), self.number);
        // it wakes a task, without the lock
        drop(waiting);
    }
}

/// A body whose frames are carried in turns.
pub(crate) struct InTurns<B: Body> {
    body: B,
    turns: Opened,
    quantum: Quantum,
    /// The next frame.
    waiting: Option<(Place, Frame<B::Data>)>,
}

impl<B: Body<Data: Unpin> + Unpin> Body for InTurns<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.get_mut();
        if this.waiting.is_none() {
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            let bytes = frame.data_ref().map(Buf::remaining);
            match bytes.and_then(|bytes| this.turns.0.queue(bytes, &mut this.quantum)) {
                Some(place) => this.waiting = Some((place, frame)),
                None => return Poll::Ready(Some(Ok(frame))),
            }
        }
        if let Some((place, _)) = &mut this.waiting {
            // an error only when the runtime shuts down: else a sender leaves the queue to be used, or with this body
            this.quantum = ready!(Pin::new(&mut place.granted).poll(cx)).unwrap_or_default();
        }
        Poll::Ready(this.waiting.take().map(|(_, frame)| Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.waiting.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let next = self.waiting.as_ref().and_then(|(_, frame)| frame.data_ref());
        let bytes = next.map_or(0, |data| data.remaining() as u64);
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(bytes));
        }
        hint.set_lower(hint.lower().saturating_add(bytes));
        hint
    }
}

/// The unit in which costs are scheduled.
fn kib(bytes: u64) -> u64 {
    bytes.div_ceil(1024)
}
