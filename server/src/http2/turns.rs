//! Requests and responses in turns: how much of the agent's time one caller gets does not depend on how many streams another one
//! has.
//!
//! While several callers have open calls, only so many bytes are carried in a round, in which the agent's threads poll the tasks that
//! are ready. The rest is queued for the next round, and callers take turns. A round waits for nothing else, so time that one
//! caller does not use is another's. Requests that are not read fill their flow-control windows, and the caller waits.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Buf, Frame, SizeHint};
use telexec_engine::{Share, Turns};
use tokio::sync::oneshot;

use crate::identity::Identity;
use crate::lock::lock;

/// The fixed cost of a turn, in bytes that would take as long: tasks are woken, and the system is called.
const TURN_COST: u64 = 16 * 1024;
/// The fixed cost of a further frame in it.
const FRAME_COST: u64 = 1024;
/// What a stream may carry in its turn: two large frames. More is more efficient, but others wait longer.
const QUANTUM: u64 = TURN_COST + 2 * (64 * 1024 + FRAME_COST);
/// A smaller frame usually ends what a stream has ready, so nothing is reserved behind it.
const LARGE_FRAME_BYTES: usize = 16 * 1024;
/// But this may be carried: HTTP/2's implementations end a connection of which many small frames wait.
const SMALL_QUANTUM: u64 = 16 * FRAME_COST;
/// The shares of this many callers without a connection are remembered.
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
    each: Mutex<HashMap<Identity, Known>>,
}

#[derive(Default)]
struct State {
    waiting: Turns<Waiting>,
    /// The number of the current round.
    round: u64,
    /// What was carried in it, or may be.
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

/// A caller who has a connection, or a share other than the default.
#[derive(Default)]
struct Known {
    turns: Weak<CallerTurns>,
    share: Share,
}

/// The turns of one caller.
pub(crate) struct CallerTurns {
    all: BodyTurns,
    identity: Identity,
    share: Mutex<Share>,
    /// How many bodies are open.
    open: AtomicUsize,
}

impl BodyTurns {
    /// For an agent with this many threads.
    pub(crate) fn new(threads: usize) -> Self {
        let round_cost = QUANTUM.saturating_mul(threads as u64);
        let callers = AtomicUsize::new(0);
        Self(Arc::new(Shared { round_cost, callers, state: Mutex::default(), each: Mutex::default() }))
    }

    /// Those of one identity, over all of its connections.
    pub(crate) fn of(&self, identity: &Identity) -> Arc<CallerTurns> {
        let mut each = lock(&self.0.each);
        let known = each.get(identity);
        if let Some(turns) = known.and_then(|known| known.turns.upgrade()) {
            return turns;
        }
        let share = known.map(|known| known.share).unwrap_or_default();
        let remembers = each.len() < MAX_REMEMBERED_SHARES;
        each.retain(|_, known| known.turns.strong_count() > 0 || remembers && known.share != Share::default());
        let (all, identity, open) = (self.clone(), identity.clone(), AtomicUsize::new(0));
        let turns = Arc::new(CallerTurns { all, identity: identity.clone(), share: Mutex::new(share), open });
        each.insert(identity, Known { turns: Arc::downgrade(&turns), share });
        turns
    }

    /// Sets the share of an identity that has a connection.
    pub(crate) fn set_share(&self, identity: &Identity, share: Share) {
        if let Some(known) = lock(&self.0.each).get_mut(identity) {
            known.share = share;
            if let Some(turns) = known.turns.upgrade() {
                *lock(&turns.share) = share;
            }
        }
    }

    /// Begins one round after another, until nothing is queued.
    async fn drive(self) {
        loop {
            // until this thread finds no other task to poll, or has polled many
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
                true => (QUANTUM, QUANTUM.saturating_sub(cost)),
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
    pub(crate) fn carry<B: Body>(self: &Arc<Self>, body: B) -> InTurns<B> {
        if self.open.fetch_add(1, Ordering::Relaxed) == 0 {
            self.all.0.callers.fetch_add(1, Ordering::Relaxed);
        }
        InTurns { body, turns: Opened(Arc::clone(self)), quantum: Quantum::default(), waiting: None }
    }

    /// Queues a frame of this size; `None`: it may be carried now.
    fn queue(self: &Arc<Self>, bytes: usize, quantum: &mut Quantum) -> Option<Place> {
        if self.all.0.callers.load(Ordering::Relaxed) < 2 {
            return None;
        }
        let (share, further) = (*lock(&self.share), FRAME_COST.saturating_add(bytes as u64));
        let mut state = lock(&self.all.0.state);
        if quantum.round == state.round
            && let Some(left) = quantum.left.checked_sub(further)
        {
            quantum.left = left;
            state.waiting.charge(self.identity.as_str(), share, kib(further));
            return None;
        }
        let cost = TURN_COST.saturating_add(bytes as u64);
        if !state.is_driven && state.cost < self.all.0.round_cost {
            state.cost = state.cost.saturating_add(cost);
            return None;
        }
        let (turn, granted) = oneshot::channel();
        let waiting = Waiting { is_large: bytes >= LARGE_FRAME_BYTES, cost, turn };
        let number = state.waiting.push(self.identity.as_str(), share, kib(cost), waiting);
        if !std::mem::replace(&mut state.is_driven, true) {
            tokio::spawn(self.all.clone().drive());
        }
        Some(Place { turns: Arc::clone(self), number, granted })
    }
}

/// Counts a body, until this is dropped.
struct Opened(Arc<CallerTurns>);

impl Drop for Opened {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.all.0.callers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// In the queue, until this is dropped.
struct Place {
    turns: Arc<CallerTurns>,
    number: u64,
    granted: oneshot::Receiver<Quantum>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let waiting = lock(&self.turns.all.0.state).waiting.remove(self.turns.identity.as_str(), self.number);
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
            // no error: the queue has the sender
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicU64;

    use bytes::Bytes;
    use futures_util::FutureExt;
    use hyper::HeaderMap;

    use super::*;

    const LARGE: usize = 64 * 1024;

    /// This many frames of this size, then trailers.
    struct Frames {
        left: usize,
        bytes: usize,
    }

    impl Body for Frames {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let frame = match self.left.checked_sub(1) {
                Some(left) => {
                    self.left = left;
                    Frame::data(vec![0; self.bytes].into())
                }
                None => Frame::trailers(HeaderMap::new()),
            };
            Poll::Ready(Some(Ok(frame)))
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact((self.left * self.bytes) as u64)
        }
    }

    fn endless(bytes: usize) -> Frames {
        Frames { left: usize::MAX / LARGE, bytes }
    }

    fn identity(number: u32) -> Identity {
        Identity::from_cid(number)
    }

    /// The length of the next frame; `None`: it is the trailers.
    async fn next(body: &mut InTurns<Frames>) -> Option<usize> {
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await;
        frame.unwrap().unwrap().into_data().ok().map(|data| data.len())
    }

    /// Two callers: the share, the number of streams and the size of the frames of each. How many frames each has sent of this
    /// many.
    async fn frames(callers: [(&str, usize, usize); 2], all: u64) -> [f64; 2] {
        let turns = BodyTurns::new(1);
        let sent: Arc<[AtomicU64; 2]> = Arc::default();
        let mut streams = tokio::task::JoinSet::new();
        let mut bodies = Vec::new();
        for (number, (share, count, bytes)) in callers.into_iter().enumerate() {
            let identity = identity(number as u32);
            let of_caller = turns.of(&identity);
            turns.set_share(&identity, Share::parse(share).unwrap());
            bodies.extend((0..count).map(|_| (number, of_caller.carry(endless(bytes)))));
        }
        for (number, mut body) in bodies {
            let sent = Arc::clone(&sent);
            streams.spawn(async move {
                while next(&mut body).await.is_some() {
                    sent[number].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let counts = || [0, 1].map(|number: usize| sent[number].load(Ordering::Relaxed));
        while counts().iter().sum::<u64>() < all {
            tokio::task::yield_now().await;
        }
        counts().map(|count| count as f64)
    }

    /// Which part is the second's.
    fn part([first, second]: [f64; 2]) -> f64 {
        second / (first + second)
    }

    #[tokio::test]
    async fn one_stream_gets_as_much_as_fifty_of_another_caller() {
        let part = part(frames([("1", 50, LARGE), ("1", 1, LARGE)], 10_000).await);
        assert!((0.49..0.51).contains(&part), "{part}");
    }

    #[tokio::test]
    async fn a_caller_gets_its_share() {
        for (share, expected) in [("3", 0.75), ("0.25", 0.2)] {
            let part = part(frames([("1", 50, LARGE), (share, 1, LARGE)], 10_000).await);
            assert!((expected - 0.01..expected + 0.01).contains(&part), "{share}: {part}");
        }
    }

    #[tokio::test]
    async fn small_frames_count_for_the_time_that_they_take() {
        let [small, large] = frames([("1", 50, 1), ("1", 1, LARGE)], 10_000).await;
        let small_for_large = small / large;
        // two large ones cost 145 KiB, and 16 small ones 47
        assert!((20.0..30.0).contains(&small_for_large), "{small_for_large}");
    }

    #[tokio::test]
    async fn many_small_frames_of_a_stream_do_not_pile_up() {
        let [_, small] = frames([("1", 50, LARGE), ("1", 1, 1)], 10_000).await;
        assert!(small > 8_000.0, "{small}");
    }

    #[tokio::test]
    async fn what_one_caller_does_not_use_is_anothers() {
        let turns = BodyTurns::new(1);
        let [idle, busy] = [1, 2].map(|number| turns.of(&identity(number)));
        let (_open, mut body) = (idle.carry(endless(LARGE)), busy.carry(endless(LARGE)));
        for _ in 0..1000 {
            assert_eq!(next(&mut body).await, Some(LARGE));
        }
    }

    #[tokio::test]
    async fn a_frame_that_waits_is_part_of_its_body() {
        let turns = BodyTurns::new(1);
        let [first, second] = [1, 2].map(|number| turns.of(&identity(number)));
        let (_open, mut body) = (first.carry(endless(LARGE)), second.carry(Frames { left: 8, bytes: LARGE }));
        let mut left = 8 * LARGE as u64;
        while next(&mut body).now_or_never().is_some() {
            left -= LARGE as u64;
        }
        assert!(left > 0 && body.waiting.is_some());
        assert_eq!(body.size_hint().exact(), Some(left));
        while next(&mut body).await.is_some() {
            left -= LARGE as u64;
        }
        assert_eq!((left, body.size_hint().exact()), (0, Some(0)));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn all_streams_end_whatever_the_number_of_threads() {
        let turns = BodyTurns::new(4);
        let mut streams = tokio::task::JoinSet::new();
        for number in 0..120 {
            let turns = turns.of(&identity(number % 3));
            let mut body = turns.carry(Frames { left: 200, bytes: LARGE >> (number % 5) });
            streams.spawn(async move {
                let mut frames = 0;
                while next(&mut body).await.is_some() {
                    frames += 1;
                }
                assert_eq!(frames, 200);
            });
        }
        streams.join_all().await;
        until_idle(&turns).await;
        let state = lock(&turns.0.state);
        assert!(state.waiting.is_empty() && turns.0.callers.load(Ordering::Relaxed) == 0);
    }

    async fn until_idle(turns: &BodyTurns) {
        while lock(&turns.0.state).is_driven {
            tokio::task::yield_now().await;
        }
    }

    /// Lets a frame of it wait.
    fn fill(body: &mut InTurns<Frames>) {
        while next(body).now_or_never().is_some() {}
    }

    #[tokio::test]
    async fn who_goes_away_is_not_waited_for() {
        let turns = BodyTurns::new(1);
        let [first, second] = [1, 2].map(|number| turns.of(&identity(number)));
        let mut staying = first.carry(endless(LARGE));
        let mut leaving: Vec<_> = (0..100).map(|_| second.carry(endless(LARGE))).collect();
        leaving.iter_mut().for_each(fill);
        drop(leaving);
        for _ in 0..100 {
            next(&mut staying).await;
        }
        let state = lock(&turns.0.state);
        assert!(state.waiting.is_empty() && turns.0.callers.load(Ordering::Relaxed) == 1);
    }

    #[tokio::test]
    async fn a_quantum_is_for_one_round() {
        let turns = BodyTurns::new(1);
        let [first, second] = [1, 2].map(|number| turns.of(&identity(number)));
        let (_open, mut body) = (first.carry(endless(LARGE)), second.carry(endless(LARGE)));
        fill(&mut body);
        next(&mut body).await;
        until_idle(&turns).await;
        let quantum = body.quantum;
        assert!(quantum.left > 0 && quantum.round != lock(&turns.0.state).round);
        next(&mut body).await;
        assert_eq!(body.quantum.left, quantum.left, "it was not used");
    }

    #[tokio::test]
    async fn a_caller_who_is_alone_never_waits() {
        let turns = BodyTurns::new(1).of(&identity(1));
        let mut bodies = [turns.carry(endless(LARGE)), turns.carry(endless(LARGE))];
        for _ in 0..1000 {
            for body in &mut bodies {
                assert_eq!(next(body).now_or_never(), Some(Some(LARGE)));
            }
        }
    }

    #[test]
    fn a_share_is_remembered_without_a_connection_but_not_those_of_all() {
        let turns = BodyTurns::new(1);
        let share = Share::parse("0.25").unwrap();
        let share_of = |number| *lock(&turns.of(&identity(number)).share);
        drop(turns.of(&identity(1)));
        turns.set_share(&identity(1), share);
        assert_eq!((share_of(1), share_of(2)), (share, Share::default()));
        for number in 2..6000 {
            let connected = turns.of(&identity(number));
            turns.set_share(&identity(number), share);
            drop(connected);
            assert!(lock(&turns.0.each).len() <= MAX_REMEMBERED_SHARES + 1);
        }
        assert_eq!(share_of(5999), share);
    }
}
