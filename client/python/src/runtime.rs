//! Starts the runtime, also where the system starts too few threads for it.
//!
//! It panics then, and waits on its way for the threads that it has, which know of nothing. So each waits until there are all,
//! and ends if that takes too long.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};

use crate::failure::Failure;

/// For the start of all threads.
const TIMEOUT: Duration = Duration::from_secs(2);

/// # Errors
/// The system does not start so many threads, or has no descriptors.
pub(crate) fn start(workers: usize) -> PyResult<Runtime> {
    let gate = Arc::new(Gate::default());
    let waiting = Arc::clone(&gate);
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(workers).thread_name("telexec").enable_all().on_thread_start(move || waiting.pass());
    let built = catch_unwind(AssertUnwindSafe(|| builder.build()));
    let runtime = built.map_err(|_| Failure::threads())??;
    if gate.open() {
        return Ok(runtime);
    }
    runtime.shutdown_background();
    Err(Failure::threads().into())
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Closed,
    Open,
    /// A thread has ended.
    GivenUp,
}

#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    /// Lets all threads pass. Returns whether all are there.
    fn open(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if *state == State::Closed {
            *state = State::Open;
            self.changed.notify_all();
        }
        *state == State::Open
    }

    /// Waits until it is open, or ends the thread.
    fn pass(&self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(state, TIMEOUT, |state| *state == State::Closed);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *state != State::Open {
            *state = State::GivenUp;
            drop(state);
            // not a panic, of which standard error would be told
            resume_unwind(Box::new("too few threads"));
        }
    }
}
