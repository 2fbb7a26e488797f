//! A call, for which Python waits in either way.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::FutureExt;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::deliver::Delivery;
use crate::failure::{Failure, poisoned};
use crate::owned::Owned;
use crate::process::Process;

/// How often a blocking call looks for signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);
/// For a future that is dropped.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

/// A value that becomes Python's in a thread that holds the GIL.
pub(crate) type Value = Box<dyn for<'py> FnOnce(Python<'py>) -> PyResult<Py<PyAny>> + Send>;
pub(crate) type Work = Pin<Box<dyn Future<Output = Result<Value, Failure>> + Send>>;
/// `None`: it was dropped at exit.
pub(crate) type Done = Option<Result<Value, Failure>>;

/// A call that has not begun. `call.wait()` or `await call` makes it, once; if the wait is interrupted, it is dropped.
#[pyclass(frozen, module = "telexec._telexec")]
pub(crate) struct Call {
    work: Owned<Mutex<Option<Work>>>,
    process: &'static Process,
}

impl Call {
    pub(crate) fn new<T>(
        py: Python<'_>,
        work: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> PyResult<Self>
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
    {
        Self::with(py, work, |py, value| value.into_py_any(py))
    }

    /// A call whose value needs more than a conversion. A panic is its failure: whoever waits must not wait forever.
    pub(crate) fn with<T: Send + 'static>(
        py: Python<'_>,
        work: impl Future<Output = Result<T, Failure>> + Send + 'static,
        convert: impl for<'py> FnOnce(Python<'py>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Self> {
        let work = async move {
            let value = AssertUnwindSafe(work).catch_unwind().await.map_err(Failure::panicked)??;
            let convert = move |py: Python<'_>| {
                let converted = catch_unwind(AssertUnwindSafe(|| convert(py, value)));
                converted.map_err(|panic| PyErr::from(Failure::panicked(panic))).flatten()
            };
            Ok(Box::new(convert) as Value)
        };
        Ok(Self { work: Owned::new(Mutex::new(Some(Box::pin(work)))), process: Process::current(py)? })
    }

    pub(crate) fn take(&self) -> PyResult<Work> {
        let work = self.work.get()?.lock().map_err(poisoned)?.take();
        work.ok_or_else(|| PyRuntimeError::new_err("a call is made once"))
    }
}

#[pymethods]
impl Call {
    /// Makes the call, and blocks this thread until it is done.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mut task = self.process.spawn(self.take()?);
        loop {
            let waited = py.detach(|| self.process.block_on(async { timeout(SIGNAL_INTERVAL, &mut task).await }));
            if let Ok(done) = waited {
                return finish(py, done.ok().flatten());
            }
            if let Err(signal) = py.check_signals() {
                task.abort();
                let _ = py.detach(|| self.process.block_on(async { timeout(ABORT_TIMEOUT, &mut task).await }));
                return Err(signal);
            }
        }
    }

    /// Makes the call, in the running event loop.
    fn __await__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let event_loop = py.import("asyncio")?.call_method0("get_running_loop")?;
        let future = event_loop.call_method0("create_future")?;
        let (process, work) = (self.process, self.take()?);
        let (to, waiting) = (event_loop.unbind(), future.clone().unbind());
        let task = process.spawn(async move {
            let done = work.await;
            process.deliver(Delivery { event_loop: to, future: waiting, done: Some(done) });
        });
        future.call_method1("add_done_callback", (AbortOnCancel(task.abort_handle()),))?;
        future.call_method0("__await__")
    }
}

pub(crate) fn finish(py: Python<'_>, done: Done) -> PyResult<Py<PyAny>> {
    match done {
        Some(Ok(value)) => value(py),
        Some(Err(failure)) => Err(failure.into()),
        None => Err(Failure::exiting().into()),
    }
}

/// The callback of a future: drops the call if nobody waits for it any more.
#[pyclass(frozen)]
struct AbortOnCancel(AbortHandle);

#[pymethods]
impl AbortOnCancel {
    fn __call__(&self, future: &Bound<'_, PyAny>) -> PyResult<()> {
        if future.call_method0("cancelled")?.is_truthy()? {
            self.0.abort();
        }
        Ok(())
    }
}

/// A call that panics, for the tests: nothing else does on purpose.
#[cfg(debug_assertions)]
#[pyfunction]
#[expect(clippy::panic, reason = "this is what it is for")]
pub(crate) fn panicking(py: Python<'_>, when_converted: bool) -> PyResult<Call> {
    let work = async move { if when_converted { Ok(()) } else { panic!("on purpose") } };
    Call::with(py, work, |_, ()| panic!("on purpose"))
}
