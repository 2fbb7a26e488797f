//! Callers that take turns.

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
    let share_of = |number| *lock(&turns.of(&identity(number)).own.share);
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
