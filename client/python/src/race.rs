//! Calls that are made at once, and answered as they end.

use std::sync::Arc;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::call::{Call, Done, finish};
use crate::owned::Owned;
use crate::process::Process;

/// Calls, each with a number. Dropping it ends them.
#[pyclass(frozen, module = "telexec._telexec")]
pub(crate) struct Race {
    calls: Owned<Calls>,
    process: &'static Process,
}

struct Calls {
    ended: Arc<Mutex<Ended>>,
    end: mpsc::UnboundedSender<(u64, Done)>,
    tasks: TaskTracker,
    stop: CancellationToken,
    _stop: DropGuard,
}

struct Ended {
    calls: mpsc::UnboundedReceiver<(u64, Done)>,
    /// The next one.
    next: Option<(u64, Done)>,
    /// The same for Python, which has not said yet that it has got it: a wait that is interrupted loses nothing.
    given: Option<Py<PyAny>>,
    /// How many it has got.
    seen: u64,
}

#[pymethods]
impl Race {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let (end, calls) = mpsc::unbounded_channel();
        let ended = Arc::new(Mutex::new(Ended { calls, next: None, given: None, seen: 0 }));
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let _stop = stop.clone().drop_guard();
        let calls = Calls { ended, end, tasks, stop, _stop };
        Ok(Self { calls: Owned::new(calls), process: Process::current(py)? })
    }

    /// Makes a call.
    fn add(&self, number: u64, call: PyRef<'_, Call>) -> PyResult<()> {
        let calls = self.calls.get()?;
        let (work, end, stop) = (call.take()?, calls.end.clone(), calls.stop.clone());
        let task = async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                // fails only if nobody asks any more
                done = work => drop(end.send((number, Some(done)))),
            }
        };
        drop(self.process.spawn(calls.tasks.track_future(task)));
        Ok(())
    }

    /// The number of the next call that has ended after as many, with its value or its exception; `None`: all were ended.
    fn next(&self, py: Python<'_>, seen: u64) -> PyResult<Call> {
        let calls = self.calls.get()?;
        let (ended, stop) = (Arc::clone(&calls.ended), calls.stop.clone());
        let work = async move {
            let mut ended = ended.lock_owned().await;
            if seen > ended.seen {
                ended.seen = seen;
                ended.given = None;
            }
            if ended.given.is_none() && ended.next.is_none() {
                ended.next = stop.run_until_cancelled(ended.calls.recv()).await.flatten();
            }
            Ok(ended)
        };
        Call::with(py, work, |py, mut ended| {
            if let Some(given) = &ended.given {
                return Ok(given.clone_ref(py));
            }
            let Some((number, done)) = ended.next.take() else { return Ok(py.None()) };
            let given = match finish(py, done) {
                Ok(value) => (number, value, py.None()).into_py_any(py),
                Err(error) => (number, py.None(), error.into_value(py)).into_py_any(py),
            }?;
            ended.given = Some(given.clone_ref(py));
            Ok(given)
        })
    }

    /// Ends all of them.
    fn close(&self, py: Python<'_>) -> PyResult<Call> {
        let calls = self.calls.get()?;
        calls.stop.cancel();
        calls.tasks.close();
        let tasks = calls.tasks.clone();
        Call::new(py, async move {
            tasks.wait().await;
            Ok(())
        })
    }
}
