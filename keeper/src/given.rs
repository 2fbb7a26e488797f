//! Descriptors that came from an agent. What is done to one may take as long as others like: a socket may linger (socket(7)), a
//! file system may not answer, and a command may hold the lock of its pipe.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::sockopt::set_socket_linger;
use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};

/// What closes them; `None`: there is to be no thread for that.
static CLOSER: OnceLock<Closer> = OnceLock::new();

/// How many there are, also of those that are to be closed.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Beyond these, what is to be closed waits until one of them is free.
const MAX_THREADS: usize = 1024;
/// Beyond these, one that has nothing to do ends.
const MAX_IDLE: usize = 2;
/// They do nothing but call the system.
const STACK_BYTES: usize = 64 * 1024;
/// What a pipe of output holds until the next agent reads it: what anyone may set, see pipe(7).
const PIPE_BYTES: usize = 1024 * 1024;

/// A descriptor. Dropping it closes it: by a thread, in a keeper.
#[derive(Debug)]
pub struct Given(Option<OwnedFd>);

/// Threads that close descriptors: one that is held up holds up nothing else.
#[derive(Default)]
struct Closer {
    state: Mutex<State>,
    wake: Condvar,
}

/// What is to be done.
enum Work {
    Close(OwnedFd),
    /// Enlarges a pipe.
    MakeRoom(OwnedFd),
}

#[derive(Default)]
struct State {
    queue: VecDeque<Work>,
    threads: usize,
    /// Of these, those that wait for work.
    idle: usize,
}

/// From now on threads close them. If there can be none now, they wait: call this again.
///
/// # Errors
/// There can be no thread.
pub(crate) fn close_by_thread() -> io::Result<()> {
    let closer = CLOSER.get_or_init(Closer::default);
    let mut state = closer.state();
    if state.threads == 0 { closer.start_thread(&mut state) } else { Ok(()) }
}

/// How many are open.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Acquire)
}

impl Closer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn do_soon(&'static self, work: Work) {
        let mut state = self.state();
        state.queue.push_back(work);
        // the one that is woken for the first sees to the others
        if state.queue.len() == 1 || state.idle == 0 {
            self.call(&mut state);
        }
    }

    /// Has a thread that is not at work see to the queue. If there is none, and can be none, one that is at work does.
    fn call(&'static self, state: &mut State) {
        match state.idle {
            0 if state.threads < MAX_THREADS => drop(self.start_thread(state)),
            0 => {}
            _ => self.wake.notify_one(),
        }
    }

    fn start_thread(&'static self, state: &mut State) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("closer".into()).stack_size(STACK_BYTES);
        thread.spawn(|| self.work())?;
        state.threads += 1;
        Ok(())
    }

    fn work(&'static self) {
        let mut state = self.state();
        loop {
            if let Some(work) = state.queue.pop_front() {
                if !state.queue.is_empty() {
                    self.call(&mut state);
                }
                drop(state);
                match work {
                    Work::Close(file) => close(file),
                    Work::MakeRoom(file) => make_room(file),
                }
                state = self.state();
            } else if state.idle < MAX_IDLE {
                state.idle += 1;
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            } else {
                state.threads -= 1;
                return;
            }
        }
    }
}

fn make_room(pipe: OwnedFd) {
    if fcntl_getpipe_size(&pipe).is_ok_and(|size| size < PIPE_BYTES) {
        // best effort: the pipes of a user who is not root are limited together
        let _ = fcntl_setpipe_size(&pipe, PIPE_BYTES);
    }
    close(pipe);
}

fn close(file: OwnedFd) {
    // of what is no socket this is an error
    let _ = set_socket_linger(&file, None);
    drop(file);
    // after close(2) has returned: what is not counted any more holds up nothing
    COUNT.fetch_sub(1, Ordering::Release);
}

impl From<OwnedFd> for Given {
    fn from(file: OwnedFd) -> Self {
        COUNT.fetch_add(1, Ordering::Relaxed);
        Self(Some(file))
    }
}

impl Given {
    /// If it is read from, and a pipe: for as long as nobody does that it holds more. What is written to it takes memory of the
    /// writer's cgroup.
    pub(crate) fn make_room(&self) {
        let is_read = fcntl_getfl(self).is_ok_and(|flags| flags & OFlags::ACCMODE == OFlags::RDONLY);
        if let Some(closer) = CLOSER.get().filter(|_| is_read)
            && let Ok(pipe) = fcntl_dupfd_cloexec(self, 0)
        {
            COUNT.fetch_add(1, Ordering::Relaxed);
            closer.do_soon(Work::MakeRoom(pipe));
        }
    }

    /// As any other descriptor, for who trusts the agent.
    pub fn into_inner(mut self) -> Option<OwnedFd> {
        COUNT.fetch_sub(1, Ordering::Relaxed);
        self.0.take()
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        match (self.0.take(), CLOSER.get()) {
            (Some(file), Some(closer)) => closer.do_soon(Work::Close(file)),
            (Some(file), None) => close(file),
            (None, _) => {}
        }
    }
}

impl AsFd for Given {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // it is taken only with the value
        self.0.as_ref().map_or(rustix::stdio::stdin(), OwnedFd::as_fd)
    }
}

impl AsRawFd for Given {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
