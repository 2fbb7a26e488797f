//! Threads for what may take as long as others like, in the kernel, where nothing ends it.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// If no work has begun for so long, though there is some, all threads are held up, and there is another one.
const PATIENCE: Duration = Duration::from_millis(10);
/// Work here does little but call the system.
const STACK_BYTES: usize = 256 * 1024;

type Job = Box<dyn FnOnce() + Send>;

/// A pool of a few threads, and another one whenever all are held up: work that takes for ever holds up nothing else for long.
///
/// Clones share one pool. When the last one is dropped, what is queued is still done, and then the threads end; one that is held
/// up is left behind.
#[derive(Clone, Debug)]
pub struct ElasticPool(Arc<Handle>);

/// Closes the queue with the last clone.
#[derive(Debug)]
struct Handle(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    name: &'static str,
    /// Threads that stay.
    core: usize,
    state: Mutex<State>,
    work: Condvar,
    /// For the thread that sees to it that work begins.
    watch: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    /// How much work has begun.
    begun: u64,
    threads: usize,
    /// Of these, those that wait for work.
    idle: usize,
    /// Somebody sees to it that work begins.
    is_watched: bool,
    is_closed: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("queued", &self.queue.len())
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl ElasticPool {
    /// A pool with `core` threads (at least one), and one that sees whether they are held up. `name`: of the threads.
    ///
    /// # Errors
    /// There can be no threads.
    pub fn new(name: &'static str, core: usize) -> io::Result<Self> {
        let core = core.max(1);
        let (state, [work, watch]) = (Mutex::default(), [const { Condvar::new() }; 2]);
        let pool = Arc::new(Pool { name, core, state, work, watch });
        // first, so that a failure below ends the threads that were made
        let this = Self(Arc::new(Handle(Arc::clone(&pool))));
        pool.start_thread(Pool::watch)?;
        for _ in 0..core {
            pool.add_worker(&mut pool.state())?;
        }
        Ok(this)
    }

    /// Has work done soon, in the order in which it comes.
    pub fn run(&self, work: impl FnOnce() + Send + 'static) {
        self.add([Box::new(work) as Job]);
    }

    /// The same for several pieces: a thread is woken once.
    pub fn run_all<Work: FnOnce() + Send + 'static>(&self, all: impl IntoIterator<Item = Work>) {
        // before the lock: what the caller does for each may take its time
        self.add(all.into_iter().map(|work| Box::new(work) as Job).collect::<Vec<_>>());
    }

    fn add(&self, all: impl IntoIterator<Item = Job>) {
        let pool = &self.0.0;
        let mut state = pool.state();
        state.queue.extend(all);
        let (is_idle, is_enough) = (state.idle > 0, state.queue.len() <= state.idle);
        let asks = !is_enough && !std::mem::replace(&mut state.is_watched, true);
        // who is woken finds it unlocked
        drop(state);
        if is_idle {
            pool.work.notify_one();
        }
        if asks {
            pool.watch.notify_one();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.state().is_closed = true;
        self.0.work.notify_all();
        self.0.watch.notify_all();
    }
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_thread(self: &Arc<Self>, run: fn(&Arc<Self>)) -> io::Result<()> {
        let pool = Arc::clone(self);
        let thread = thread::Builder::new().name(self.name.to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || run(&pool)).map(drop)
    }

    fn add_worker(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        self.start_thread(Self::work)?;
        state.threads += 1;
        Ok(())
    }

    fn work(self: &Arc<Self>) {
        let mut state = self.state();
        loop {
            if let Some(job) = state.queue.pop_front() {
                state.begun += 1;
                drop(state);
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.state();
            } else if state.is_closed || state.threads > self.core && state.idle > 0 {
                state.threads -= 1;
                return;
            } else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }

    /// Adds a thread whenever all are held up. However much work comes, it looks no more often than that may be so.
    fn watch(self: &Arc<Self>) {
        let mut state = self.state();
        loop {
            if !state.is_watched {
                if state.is_closed {
                    return;
                }
                state = self.watch.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.is_watched |= state.is_closed && !state.queue.is_empty();
                continue;
            }
            let begun = state.begun;
            drop(state);
            thread::sleep(PATIENCE);
            state = self.state();
            if state.queue.is_empty() {
                state.is_watched = false;
            } else if state.begun == begun {
                // if there can be none now, it is tried again
                let _ = self.add_worker(&mut state);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn work_that_is_held_up_holds_up_no_other() {
        let pool = ElasticPool::new("test", 2).unwrap();
        let (done, is_done) = channel();
        let mut held = Vec::new();
        for number in 0..20 {
            let (hold, wait) = channel::<()>();
            held.push(hold);
            pool.run(move || {
                let _ = wait.recv();
            });
            let done = done.clone();
            pool.run(move || done.send(number).unwrap());
            assert_eq!(is_done.recv_timeout(LIMIT).unwrap(), number);
        }
        assert!(pool.0.0.state().threads > 20);
        drop(held);
        // those that are not needed any more end
        while pool.0.0.state().threads > 2 {
            let done = done.clone();
            pool.run(move || done.send(0).unwrap());
            is_done.recv_timeout(LIMIT).unwrap();
        }
    }

    #[test]
    fn much_work_takes_no_more_threads() {
        let pool = ElasticPool::new("test", 2).unwrap();
        let (done, is_done) = channel();
        for number in 0..10_000 {
            let done = done.clone();
            pool.run(move || done.send(number).unwrap());
        }
        drop(done);
        assert_eq!(is_done.iter().count(), 10_000);
        // a busy machine may have held up both for a moment
        assert!(pool.0.0.state().threads < 100);
    }

    #[test]
    fn a_panic_takes_no_thread_and_what_is_queued_is_done() {
        let pool = ElasticPool::new("test", 1).unwrap();
        let (done, is_done) = channel();
        pool.run(|| panic!("on purpose"));
        pool.run(move || done.send(()).unwrap());
        drop(pool);
        is_done.recv_timeout(LIMIT).unwrap();
    }
}
