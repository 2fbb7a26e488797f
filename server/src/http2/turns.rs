//! Requests and responses in turns: how much of the agent's time one caller gets does not depend on how many streams another one
//! has.
//!
//! The agent's threads poll all tasks that are ready, pass by pass. While several callers have open calls, only so much is
//! carried in a pass; the rest is queued for the next one, and callers take turns. No pass waits for anything, so time that one
//! caller does not use is another's. What is not read of a request yet fills its flow-control window, and then stays with the
//! caller.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Buf, Frame, SizeHint};
use telexec_engine::{Share, Turns};
use tokio::sync::oneshot;

use crate::identity::Identity;

/// A frame takes about as long as this many bytes more in a larger one.
const FRAME_COST: u64 = 16 * 1024;
/// What is carried of a stream in its turn: two large frames. More at once takes less time in all, and lets others wait longer.
const TURN_COST: u64 = 2 * (64 * 1024 + FRAME_COST);
/// Only behind a frame of at least this size more is expected in the same turn.
const LARGE_FRAME_BYTES: usize = 16 * 1024;

/// The turns of all callers; clones share them.
#[derive(Clone)]
pub(crate) struct BodyTurns(Arc<Shared>);

struct Shared {
    /// What is carried in a pass: a turn for each thread.
    pass_cost: u64,
    /// How many callers have open bodies.
    callers: AtomicUsize,
    state: Mutex<State>,
    each: Mutex<HashMap<Identity, Weak<CallerTurns>>>,
}

#[derive(Default)]
struct State {
    waiting: Turns<Waiting>,
    /// The number of the current pass.
    pass: u64,
    /// What was carried in it, or may be.
    cost: u64,
    /// A task begins the passes: [`BodyTurns::drive`].
    is_driven: bool,
}

/// A frame in the queue.
struct Waiting {
    bytes: usize,
    turn: oneshot::Sender<Turn>,
}

/// What a stream may carry without queueing, in one pass.
#[derive(Clone, Copy, Default)]
struct Turn {
    pass: u64,
    left: u64,
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
        let pass_cost = TURN_COST.saturating_mul(threads as u64);
        let callers = AtomicUsize::new(0);
        Self(Arc::new(Shared { pass_cost, callers, state: Mutex::default(), each: Mutex::default() }))
    }

    /// Those of one identity, over all of its connections.
    pub(crate) fn of(&self, identity: &Identity) -> Arc<CallerTurns> {
        let mut each = lock(&self.0.each);
        if let Some(known) = each.get(identity).and_then(Weak::upgrade) {
            return known;
        }
        each.retain(|_, own| own.strong_count() > 0);
        let (share, open) = (Mutex::default(), AtomicUsize::new(0));
        let own = Arc::new(CallerTurns { all: self.clone(), identity: identity.clone(), share, open });
        each.insert(identity.clone(), Arc::downgrade(&own));
        own
    }

    /// Sets the share of an identity until its last connection is closed.
    pub(crate) fn set_share(&self, identity: &Identity, share: Share) {
        if let Some(own) = lock(&self.0.each).get(identity).and_then(Weak::upgrade) {
            *lock(&own.share) = share;
        }
    }

    /// Begins one pass after another, until nothing is queued.
    async fn drive(self) {
        loop {
            // returns after all tasks that are ready were polled
            tokio::task::yield_now().await;
            let mut state = lock(&self.0.state);
            if state.waiting.is_empty() {
                state.waiting.forget();
                (state.is_driven, state.cost) = (false, 0);
                return;
            }
            (state.pass, state.cost) = (state.pass.wrapping_add(1), 0);
            while state.cost < self.0.pass_cost
                && let Some(Waiting { bytes, turn }) = state.waiting.pop()
            {
                let left = if bytes < LARGE_FRAME_BYTES { 0 } else { TURN_COST.saturating_sub(cost_of(bytes)) };
                state.cost = state.cost.saturating_add(cost_of(bytes)).saturating_add(left);
                let _ = turn.send(Turn { pass: state.pass, left });
            }
        }
    }
}

impl CallerTurns {
    /// Carries this body in turns.
    pub(crate) fn carry<B: Body>(self: &Arc<Self>, body: B) -> InTurns<B> {
        if self.open.fetch_add(1, Ordering::Relaxed) == 0 {
            self.all.0.callers.fetch_add(1, Ordering::Relaxed);
        }
        InTurns { body, turns: Opened(Arc::clone(self)), turn: Turn::default(), waiting: None }
    }

    /// `None`: a frame of this size may be carried now.
    fn queue(self: &Arc<Self>, bytes: usize, turn: &mut Turn) -> Option<Place> {
        if self.all.0.callers.load(Ordering::Relaxed) < 2 {
            return None;
        }
        let (cost, share) = (cost_of(bytes), *lock(&self.share));
        let mut state = lock(&self.all.0.state);
        if turn.pass == state.pass && turn.left > 0 {
            turn.left = turn.left.saturating_sub(cost);
            state.waiting.charge(self.identity.as_str(), share, cost);
            return None;
        }
        if !state.is_driven && state.cost < self.all.0.pass_cost {
            state.cost = state.cost.saturating_add(cost);
            return None;
        }
        let (turn, granted) = oneshot::channel();
        let number = state.waiting.push(self.identity.as_str(), share, cost, Waiting { bytes, turn });
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
    granted: oneshot::Receiver<Turn>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let turn = lock(&self.turns.all.0.state).waiting.remove(self.turns.identity.as_str(), self.number);
        drop(turn);
    }
}

/// A body whose frames are carried in turns.
pub(crate) struct InTurns<B: Body> {
    body: B,
    turns: Opened,
    turn: Turn,
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
            let place = bytes.and_then(|bytes| this.turns.0.queue(bytes, &mut this.turn));
            match place {
                Some(place) => this.waiting = Some((place, frame)),
                None => return Poll::Ready(Some(Ok(frame))),
            }
        }
        if let Some((place, _)) = &mut this.waiting {
            // an error: the agent shuts down
            this.turn = ready!(Pin::new(&mut place.granted).poll(cx)).unwrap_or_default();
        }
        Poll::Ready(this.waiting.take().map(|(_, frame)| Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.waiting.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn cost_of(bytes: usize) -> u64 {
    FRAME_COST.saturating_add(bytes as u64)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicU64;

    use bytes::Bytes;
    use futures_util::FutureExt;

    use super::*;

    const LARGE: usize = 64 * 1024;

    /// Frames of this size without end; 0: none.
    struct Frames(usize);

    impl Body for Frames {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            match self.0 {
                0 => Poll::Pending,
                bytes => Poll::Ready(Some(Ok(Frame::data(vec![0; bytes].into())))),
            }
        }
    }

    async fn next(body: &mut InTurns<Frames>) -> u64 {
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await;
        frame.unwrap().unwrap().into_data().unwrap().len() as u64
    }

    /// Two callers: the share, the number of streams and the size of the frames of each. Which part of all bytes is the second's.
    async fn part_of_second(callers: [(&str, usize, usize); 2]) -> f64 {
        let all = BodyTurns::new(1);
        let sent: Arc<[AtomicU64; 2]> = Arc::default();
        let mut streams = tokio::task::JoinSet::new();
        for (number, (share, count, bytes)) in callers.into_iter().enumerate() {
            let turns = all.of(&Identity::from_cid(number as u32));
            all.set_share(&turns.identity, Share::parse(share).unwrap());
            for _ in 0..count {
                let (mut body, sent) = (turns.carry(Frames(bytes)), Arc::clone(&sent));
                streams.spawn(async move {
                    loop {
                        sent[number].fetch_add(next(&mut body).await, Ordering::Relaxed);
                    }
                });
            }
        }
        let sums = || [0, 1].map(|number: usize| sent[number].load(Ordering::Relaxed));
        while sums().iter().sum::<u64>() < 400 << 20 {
            tokio::task::yield_now().await;
        }
        let [first, second] = sums().map(|sum| sum as f64);
        second / (first + second)
    }

    #[tokio::test]
    async fn one_stream_gets_as_much_as_fifty_of_another_caller() {
        let part = part_of_second([("1", 50, LARGE), ("1", 1, LARGE)]).await;
        assert!((0.49..0.51).contains(&part), "{part}");
    }

    #[tokio::test]
    async fn a_caller_gets_its_share() {
        for (share, expected) in [("3", 0.75), ("0.25", 0.2)] {
            let part = part_of_second([("1", 50, LARGE), (share, 1, LARGE)]).await;
            assert!((expected - 0.01..expected + 0.01).contains(&part), "{share}: {part}");
        }
    }

    #[tokio::test]
    async fn small_frames_count_for_the_time_that_they_take() {
        let part = part_of_second([("1", 50, 1), ("1", 1, LARGE)]).await;
        assert!(part > 0.99, "{part}");
    }

    #[tokio::test]
    async fn what_one_caller_does_not_use_is_anothers() {
        let part = part_of_second([("100", 50, 0), ("0.01", 1, LARGE)]).await;
        assert!(part > 0.99, "{part}");
    }

    #[tokio::test]
    async fn who_goes_away_is_not_waited_for() {
        let all = BodyTurns::new(1);
        let [first, second] = [1, 2].map(|number| all.of(&Identity::from_cid(number)));
        let mut staying = first.carry(Frames(LARGE));
        let mut leaving: Vec<_> = (0..100).map(|_| second.carry(Frames(LARGE))).collect();
        let waiting = leaving.iter_mut().filter_map(|body| next(body).now_or_never().is_none().then_some(())).count();
        assert!(waiting > 90, "{waiting}");
        drop(leaving);
        for _ in 0..100 {
            next(&mut staying).await;
        }
        assert!(lock(&all.0.state).waiting.is_empty());
        drop(second);
        all.of(&Identity::from_cid(3));
        assert_eq!(lock(&all.0.each).len(), 2);
    }

    #[tokio::test]
    async fn a_caller_who_is_alone_never_waits() {
        let all = BodyTurns::new(1);
        let turns = all.of(&Identity::from_cid(1));
        let mut bodies = [turns.carry(Frames(LARGE)), turns.carry(Frames(LARGE))];
        for _ in 0..1000 {
            for body in &mut bodies {
                assert_eq!(next(body).now_or_never(), Some(LARGE as u64));
            }
        }
    }
}
