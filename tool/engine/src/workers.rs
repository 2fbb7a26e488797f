//! Threads for what blocks: made before they are needed, bounded, and shared in fair turns.
//!
//! Tokio's blocking pool is one for all: five hundred writers on a dead disk keep a kill from running, and it panics
//! where a thread cannot be made. Here each kind of work has threads of its own, of which some are there from the
//! start.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use crate::lock::{lock, wait_timeout};
use crate::share::Share;
use crate::turns::{Each, HELD_UP, Turn, Turns};
use tokio::sync::oneshot;

/// How long a thread beyond the first ones waits for more work before it ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Enough for what goes through shell texts recursively. What is not touched takes no memory.
const STACK_BYTES: usize = 2 * 1024 * 1024;

type Job = Box<dyn FnOnce() + Send>;

/// A pool of threads for one kind of blocking work.
///
/// Work is queued by owner, and owners take turns: a thousand jobs of one do not hold up the single job of another.
/// Clones share one pool. When the last clone is dropped, what is queued is still done, and then the threads end; a
/// thread that is stuck in a system call is left behind.
#[derive(Clone)]
pub struct Workers {
    handle: Arc<Handle>,
}

/// The work was lost: it panicked.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a worker thread failed: its work panicked")]
pub struct Lost;

/// Closes the queue with the last clone.
struct Handle {
    pool: Arc<Pool>,
}

struct Pool {
    name: &'static str,
    /// Threads that stay.
    core: usize,
    max: usize,
    each: Each,
    stack_bytes: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: Turns<Job>,
    threads: usize,
    idle: usize,
    /// An idle thread looks again when work may be held up.
    is_watched: bool,
    closed: bool,
}

impl Workers {
    /// A pool with `core` threads, which are there from now on, and up to `max` while there is work for them. Where
    /// another thread cannot be had, those that are there do the work.
    ///
    /// # Errors
    /// The first threads cannot be made.
    pub fn new(name: &'static str, core: usize, max: usize) -> io::Result<Self> {
        Self::with_max_each(name, core, max, usize::MAX)
    }

    /// The same, with at most `max_each` threads (at least one) at work for one owner: where work takes long, a turn
    /// alone comes too late.
    ///
    /// # Errors
    /// The first threads cannot be made.
    pub fn with_max_each(name: &'static str, core: usize, max: usize, max_each: usize) -> io::Result<Self> {
        Self::with_stack(name, core, max, max_each, STACK_BYTES)
    }

    /// The same with stacks of this size, for work that is deeply recursive. What is not touched takes no memory.
    ///
    /// # Errors
    /// The first threads cannot be made.
    pub fn with_stack(
        name: &'static str,
        core: usize,
        max: usize,
        max_each: usize,
        stack_bytes: usize,
    ) -> io::Result<Self> {
        let max_each = max_each.max(1);
        Self::start(name, core, max, Each { at_once: max_each, in_all: max_each }, stack_bytes)
    }

    /// The same, where work is short: it counts against the first of these limits only while it may be.
    pub(crate) fn with_turns(name: &'static str, core: usize, max: usize, each: Each) -> io::Result<Self> {
        Self::start(name, core, max, each, STACK_BYTES)
    }

    fn start(name: &'static str, core: usize, max: usize, each: Each, stack_bytes: usize) -> io::Result<Self> {
        let core = core.max(1);
        let state = Mutex::new(State { threads: core, ..State::default() });
        let (max, changed) = (max.max(core), Condvar::new());
        let pool = Arc::new(Pool { name, core, max, each, stack_bytes, state, changed });
        // first, so that a failure below ends the threads that were made
        let workers = Self { handle: Arc::new(Handle { pool: Arc::clone(&pool) }) };
        for _ in 0..core {
            pool.start_thread()?;
        }
        Ok(workers)
    }

    /// How many threads there are, at work or not.
    pub(crate) fn threads(&self) -> usize {
        self.handle.pool.state().threads
    }

    /// Queues work in the turn of `owner`, an identity for example. It is done also if the answer is not awaited.
    pub fn spawn<T: Send + 'static>(
        &self,
        owner: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (answer, answered) = oneshot::channel();
        self.handle.pool.queue(owner, Share::default(), Box::new(move || drop(answer.send(work()))));
        answered
    }

    /// Does work in the turn of `owner` and waits for it. If this is dropped before its turn has come, it is not done,
    /// and nothing of it is kept.
    ///
    /// # Errors
    /// It panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        owner: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Lost> {
        self.run_with(owner, Share::default(), work).await
    }

    /// The same for an owner with this share of the turns.
    pub(crate) async fn run_with<T: Send + 'static>(
        &self,
        owner: &str,
        share: Share,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Lost> {
        let (answer, answered) = oneshot::channel();
        let job = move || {
            if !answer.is_closed() {
                let _ = answer.send(work());
            }
        };
        let number = self.handle.pool.queue(owner, share, Box::new(job));
        let _queued = Queued { pool: &self.handle.pool, owner, number };
        answered.await.map_err(|_| Lost)
    }
}

/// A job in the queue, removed from it when this is dropped.
struct Queued<'a> {
    pool: &'a Pool,
    owner: &'a str,
    number: u64,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let job = self.pool.state().queue.remove(self.owner, self.number);
        // what it holds is dropped without the lock
        drop(job);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.pool.state().closed = true;
        self.pool.changed.notify_all();
    }
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns its number in the queue.
    fn queue(self: &Arc<Self>, owner: &str, share: Share, job: Job) -> u64 {
        let mut state = self.state();
        let number = state.queue.push(owner, share, 1, job);
        // one waits for work that is held up now
        let lacks = state.idle == 0 || state.queue.has_more_than(state.idle, self.each, Instant::now());
        let grow = lacks && state.threads < self.max;
        if grow {
            state.threads += 1;
        }
        drop(state);
        self.changed.notify_one();
        if grow {
            self.grow();
        }
        number
    }

    /// More may be done when what is at work now turns out to be held up.
    fn may_be_held_up(&self, state: &State) -> bool {
        self.each.at_once < self.each.in_all && !state.queue.is_empty()
    }

    /// Starts a thread that is counted already. Without it the others do the work.
    fn grow(self: &Arc<Self>) {
        if self.start_thread().is_err() {
            self.state().threads -= 1;
        }
    }

    /// Starts a thread that is counted already.
    fn start_thread(self: &Arc<Self>) -> io::Result<()> {
        let pool = Arc::clone(self);
        let builder = thread::Builder::new().name(self.name.to_owned()).stack_size(self.stack_bytes);
        builder.spawn(move || pool.work()).map(drop)
    }

    fn work(self: &Arc<Self>) {
        while let Some(turn) = self.next() {
            let (job, turn) = turn.split();
            // the answer is dropped with the work, so that its receiver gets an error
            let _ = catch_unwind(AssertUnwindSafe(job));
            self.state().queue.done(&turn);
        }
    }

    /// `None`: this thread is to end.
    fn next(self: &Arc<Self>) -> Option<Turn<Job>> {
        let mut state = self.state();
        loop {
            if let Some(next) = state.queue.start(self.each, Instant::now()) {
                let lacks_watcher = self.may_be_held_up(&state) && !state.is_watched;
                let grow = lacks_watcher && state.idle == 0 && state.threads < self.max;
                if grow {
                    state.threads += 1;
                }
                drop(state);
                match grow {
                    true => self.grow(),
                    false if lacks_watcher => self.changed.notify_one(),
                    false => {}
                }
                return Some(next);
            }
            // what is left then is for the threads that work for its owners
            if state.closed {
                state.threads -= 1;
                return None;
            }
            state.idle += 1;
            let watches = self.may_be_held_up(&state) && !std::mem::replace(&mut state.is_watched, true);
            // those that stay need no clock
            let timeout = match state.threads > self.core {
                _ if watches => HELD_UP,
                true => IDLE_TIMEOUT,
                false => Duration::MAX,
            };
            let (waited, timed_out) = wait_timeout(&self.changed, state, timeout);
            state = waited;
            state.idle -= 1;
            state.is_watched &= !watches;
            if timed_out && !watches && state.threads > self.core && state.queue.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn work_is_done_and_a_panic_takes_no_thread() {
        let workers = Workers::new("test", 1, 1).unwrap();
        assert_eq!(workers.run("a", || 1).await.unwrap(), 1);
        assert!(workers.run("a", || panic!("on purpose")).await.is_err());
        assert_eq!(workers.run("a", || 2).await.unwrap(), 2);
    }

    #[tokio::test]
    async fn owners_take_turns() {
        let workers = Workers::new("test", 1, 1).unwrap();
        let (hold, held) = mpsc::channel::<()>();
        let ((begin, begun), (done, order)) = (mpsc::channel(), mpsc::channel());
        let _first = workers.spawn("a", move || begin.send(()).map(|()| held.recv()));
        begun.recv().unwrap();
        for owner in ["a", "a", "a", "b"] {
            let done = done.clone();
            drop(workers.spawn(owner, move || done.send(owner)));
        }
        drop((hold, done));
        assert_eq!(order.iter().collect::<Vec<_>>(), ["a", "b", "a", "a"]);
    }

    #[tokio::test]
    async fn a_stuck_thread_holds_up_nobody_while_others_may_be_made() {
        let workers = Workers::new("test", 1, 2).unwrap();
        let (hold, held) = mpsc::channel::<()>();
        let stuck = workers.spawn("a", move || held.recv());
        assert_eq!(workers.run("a", || 1).await.unwrap(), 1);
        drop(hold);
        let _ = stuck.await;
    }

    #[tokio::test]
    async fn one_owner_does_not_take_all_threads() {
        let workers = Workers::with_max_each("test", 1, 2, 1).unwrap();
        let (hold, held) = mpsc::channel::<()>();
        let (done, order) = mpsc::channel();
        let first = workers.spawn("a", move || held.recv());
        let second = done.clone();
        let second = workers.spawn("a", move || second.send("a"));
        workers.run("b", move || done.send("b")).await.unwrap().unwrap();
        drop(hold);
        let _ = (first.await, second.await);
        assert_eq!(order.iter().collect::<Vec<_>>(), ["b", "a"]);
    }

    #[tokio::test]
    async fn what_is_held_up_is_not_waited_for_also_if_threads_are_idle() {
        let workers = Workers::with_turns("test", 1, 16, Each { at_once: 2, in_all: 6 }).unwrap();
        let (done, all_done) = mpsc::channel();
        // which leaves threads that have nothing to do
        let quick: Vec<_> = (0..8).map(|owner| workers.spawn(&owner.to_string(), || ())).collect();
        for quick in quick {
            quick.await.unwrap();
        }
        let gate = Arc::new(Mutex::new(()));
        let locked = lock(&gate);
        let stick = |_| {
            let (begun, gate) = (done.clone(), Arc::clone(&gate));
            workers.spawn("a", move || begun.send(()).map(|()| drop(lock(&gate))))
        };
        let stuck: Vec<_> = (0..6).map(stick).collect();
        for _ in 0..6 {
            // long before an idle thread would look by itself
            all_done.recv_timeout(IDLE_TIMEOUT / 2).unwrap();
        }
        drop((locked, stuck));
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_is_forgotten() {
        let workers = Workers::new("test", 1, 1).unwrap();
        let (hold, held) = mpsc::channel::<()>();
        let _first = workers.spawn("a", move || held.recv());
        for owner in ["a", "b"] {
            let (done, was_done) = mpsc::channel();
            let waiting = workers.run(owner, move || done.send(()));
            drop(tokio::time::timeout(Duration::ZERO, waiting).await);
            assert!(was_done.recv().is_err(), "nothing of it is kept");
        }
        drop(hold);
        assert_eq!(workers.run("b", || 1).await.unwrap(), 1);
    }
}
