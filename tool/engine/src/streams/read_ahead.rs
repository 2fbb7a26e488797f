//! What a thread reads of a pipe, chunk by chunk, while what it has read is taken.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::source::CHUNK_BYTES;
use crate::lock::lock;

/// What was read waits no longer than this for what the same thread reads next, since waking a task for each chunk costs as much as
/// reading it.
const PATIENCE: Duration = Duration::from_millis(10);

/// Between a thread that reads and the task that takes.
#[derive(Default)]
pub(super) struct ReadAhead {
    state: Mutex<State>,
    /// There is something to take, or the thread no longer reads.
    changed: Notify,
}

#[derive(Default)]
struct State {
    chunks: Vec<Bytes>,
    /// From when it is asked to on.
    is_reading: bool,
    /// The task is woken for each chunk, not only for the last one.
    wakes_for_each: bool,
    /// What the first read since then has found instead of a chunk: the end of the stream, or an error.
    end: Option<io::Result<()>>,
}

impl ReadAhead {
    /// True: a thread reads, or what it has read was not taken.
    pub(super) fn is_busy(&self) -> bool {
        let state = self.state();
        state.is_reading || !state.chunks.is_empty()
    }

    pub(super) fn has_chunks(&self) -> bool {
        !self.state().chunks.is_empty()
    }

    /// Before a thread is asked to [`fill`](Self::fill) it. At most one does at a time, or chunks would change places.
    pub(super) fn begin(&self, count: usize) {
        let mut state = self.state();
        (state.is_reading, state.wakes_for_each, state.end) = (true, count == 1, None);
    }

    /// For the thread: reads chunks until one is not full, `count` at the most. `read` gets the number of the chunk, from 0 on.
    pub(super) fn fill(&self, count: usize, read: impl Fn(usize) -> io::Result<Bytes>) {
        for number in 0..count {
            let read = catch_unwind(AssertUnwindSafe(|| read(number)));
            let read = read.unwrap_or_else(|_| Err(io::Error::other("a panic")));
            let is_last = number + 1 == count || read.as_ref().map_or(0, Bytes::len) < CHUNK_BYTES;
            self.add(read, number == 0, is_last);
            if is_last {
                return;
            }
        }
    }

    /// Once the last one is added, another thread may begin.
    fn add(&self, read: io::Result<Bytes>, is_first: bool, is_last: bool) {
        let wakes = {
            let mut state = self.state();
            match read {
                Ok(chunk) if !chunk.is_empty() => state.chunks.push(chunk),
                end if is_first => state.end = Some(end.map(drop)),
                // the next read finds it again
                _ => {}
            }
            state.is_reading = !is_last;
            is_last || state.wakes_for_each
        };
        if wakes {
            self.changed.notify_one();
        }
    }

    /// Waits until there is something to take, or, false, no thread reads.
    pub(super) async fn readable(&self) -> bool {
        self.when(|state| match state.chunks.is_empty() && state.end.is_none() {
            false => Some(true),
            true => (!state.is_reading).then_some(false),
        })
        .await
    }

    /// Takes what was read; waits for it while a thread reads. None: the end.
    ///
    /// # Errors
    /// Those of reading; `WouldBlock` too if no thread reads, and all was taken before.
    pub(super) async fn take(&self) -> io::Result<Vec<Bytes>> {
        self.when(|state| match state.chunks.is_empty() {
            false => Some(Ok(std::mem::take(&mut state.chunks))),
            true if state.is_reading => None,
            true => Some(state.end.take().unwrap_or(Err(io::ErrorKind::WouldBlock.into())).map(|()| Vec::new())),
        })
        .await
    }

    /// Takes what was read so far.
    pub(super) fn take_now(&self) -> Vec<Bytes> {
        std::mem::take(&mut self.state().chunks)
    }

    /// Waits until no thread reads; returns how many bytes were read and not taken.
    pub(super) async fn length(&self) -> u64 {
        let length = |chunks: &[Bytes]| chunks.iter().map(|chunk| chunk.len() as u64).sum();
        self.when(|state| (!state.is_reading).then(|| length(&state.chunks))).await
    }

    /// Waits until `find` finds something. For one task at a time.
    async fn when<T>(&self, find: impl Fn(&mut State) -> Option<T>) -> T {
        loop {
            let wakes_for_each = {
                let mut state = self.state();
                if let Some(found) = find(&mut state) {
                    return found;
                }
                state.wakes_for_each
            };
            match wakes_for_each {
                true => self.changed.notified().await,
                false => {
                    let woken = timeout(PATIENCE, self.changed.notified()).await;
                    self.state().wakes_for_each |= woken.is_err();
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;

    use futures_util::FutureExt;

    use super::*;

    /// A thread that reads up to four chunks: those that are sent.
    fn begin() -> (Arc<ReadAhead>, mpsc::Sender<io::Result<Bytes>>) {
        let (send, receive) = mpsc::channel();
        let ahead = Arc::new(ReadAhead::default());
        ahead.begin(4);
        let thread = Arc::clone(&ahead);
        thread::spawn(move || thread.fill(4, |_| receive.recv().unwrap()));
        (ahead, send)
    }

    fn full() -> Bytes {
        vec![b'x'; CHUNK_BYTES].into()
    }

    #[tokio::test]
    async fn what_was_read_is_taken_while_the_next_read_is_held_up() {
        let (ahead, read) = begin();
        assert!(ahead.take().now_or_never().is_none());
        for _ in 0..2 {
            read.send(Ok(full())).unwrap();
            assert_eq!(ahead.take().await.unwrap(), [full()]);
            assert!(ahead.is_busy());
        }
        assert!(ahead.length().now_or_never().is_none(), "it still reads");
        // less than a full chunk is the last one
        read.send(Ok("rest".into())).unwrap();
        assert_eq!(ahead.length().await, 4);
        assert!(ahead.is_busy(), "that is to be taken");
        assert_eq!(ahead.take_now(), ["rest"]);
        assert!(!ahead.is_busy());
        assert!(ahead.take().await.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
    }

    #[tokio::test]
    async fn four_chunks_are_read_at_the_most() {
        let (ahead, read) = begin();
        (0..5).for_each(|_| drop(read.send(Ok(full()))));
        assert_eq!(ahead.length().await, 4 * CHUNK_BYTES as u64);
        assert_eq!(ahead.take().await.unwrap().concat(), full().repeat(4));
    }

    #[tokio::test]
    async fn an_end_or_an_error_comes_with_the_read_that_finds_it_first() {
        for end in [Ok(Bytes::new()), Err(io::ErrorKind::WouldBlock.into()), Err(io::ErrorKind::OutOfMemory.into())] {
            let expected = end.as_ref().map(Bytes::len).map_err(io::Error::kind);
            let (ahead, read) = begin();
            read.send(end).unwrap();
            assert_eq!(ahead.take().await.map(|chunks| chunks.len()).map_err(|error| error.kind()), expected);
            assert!(!ahead.is_busy());
        }
        // after a chunk, the next read finds it again
        let (ahead, read) = begin();
        read.send(Ok(full())).unwrap();
        read.send(Ok(Bytes::new())).unwrap();
        assert_eq!(ahead.length().await, CHUNK_BYTES as u64);
        assert_eq!(ahead.take_now(), [full()]);
        assert!(ahead.take().await.is_err());
    }

    #[tokio::test]
    async fn the_next_read_begins_as_soon_as_the_last_chunk_is_taken() {
        let (ahead, (begin, begun)) = (Arc::new(ReadAhead::default()), mpsc::channel());
        let thread = Arc::clone(&ahead);
        thread::spawn(move || begun.iter().for_each(|()| thread.fill(1, |_| Ok("x".into()))));
        for _ in 0..20_000 {
            ahead.begin(1);
            begin.send(()).unwrap();
            assert_eq!(ahead.take().await.unwrap(), ["x"]);
        }
    }

    #[tokio::test]
    async fn an_end_that_nobody_took_is_not_that_of_the_next_read() {
        let (ahead, read) = begin();
        read.send(Err(io::ErrorKind::WouldBlock.into())).unwrap();
        assert!(ahead.readable().await, "there is an error to take");
        assert!(!ahead.is_busy());
        ahead.begin(1);
        assert!(ahead.readable().now_or_never().is_none(), "a thread reads");
        ahead.fill(1, |_| Ok("x".into()));
        assert!(ahead.readable().await);
        assert_eq!(ahead.take().await.unwrap(), ["x"]);
        assert!(!ahead.readable().await);
    }

    #[tokio::test]
    async fn a_panic_ends_reading() {
        let (ahead, read) = begin();
        drop(read);
        assert!(ahead.take().await.is_err());
        assert!(!ahead.is_busy());
    }
}
