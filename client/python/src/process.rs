//! The runtime of this process, made when it is needed first: a fork gets its own.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::deliver::{Deliverer, Delivery};
use crate::failure::Failure;
use crate::runtime;

/// For all connections: what they do is copy bytes.
const WORKERS: usize = 2;
/// At exit: until agents were asked to end what this process has started, if they can be reached. They end it later by
/// themselves.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);

/// Locked only by threads that hold the GIL, and never for long: a fork does not find it locked.
static CURRENT: Mutex<Option<&'static Process>> = Mutex::new(None);

/// The runtime of one process. It is never dropped, since a fork would wait for threads that it does not have.
pub(crate) struct Process {
    pid: u32,
    handle: Handle,
    /// Taken at exit.
    runtime: Mutex<Option<Runtime>>,
    deliverer: Deliverer,
    /// Cancelled at exit.
    pub(crate) closing: CancellationToken,
    /// What is waited for at exit.
    tasks: TaskTracker,
}

impl Process {
    /// # Errors
    /// The interpreter is exiting, or no thread can be started.
    pub(crate) fn current(_: Python<'_>) -> PyResult<&'static Self> {
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        match *current {
            Some(process) if process.pid != std::process::id() => {}
            Some(process) if process.closing.is_cancelled() => return Err(Failure::exiting().into()),
            Some(process) => return Ok(process),
            None => {}
        }
        let process: &'static Self = Box::leak(Box::new(Self::start()?));
        *current = Some(process);
        Ok(process)
    }

    fn start() -> PyResult<Self> {
        // first: it fails by an error alone
        let deliverer = Deliverer::start().map_err(|_| Failure::threads())?;
        let runtime = runtime::start(WORKERS)?;
        Ok(Self {
            pid: std::process::id(),
            handle: runtime.handle().clone(),
            runtime: Mutex::new(Some(runtime)),
            deliverer,
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
        })
    }

    /// Runs a future, at the latest until exit; then it is dropped, and there is no result.
    pub(crate) fn spawn<F>(&'static self, work: F) -> JoinHandle<Option<F::Output>>
    where
        F: Future + Send + 'static,
        F::Output: Send,
    {
        let bounded = async move {
            tokio::select! {
                done = work => Some(done),
                () = self.closing.cancelled() => None,
            }
        };
        self.tasks.spawn_on(bounded, &self.handle)
    }

    /// Runs a future also during the exit.
    pub(crate) fn spawn_last(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(work, &self.handle);
    }

    /// Waits for a future in this thread, which must not hold the GIL.
    pub(crate) fn block_on<F: Future>(&self, work: F) -> F::Output {
        self.handle.block_on(work)
    }

    /// Hands a result to an event loop.
    pub(crate) fn deliver(&self, delivery: Delivery) {
        self.deliverer.deliver(delivery);
    }

    fn shut_down(&self) {
        // `None`: it was done before, or another thread does it
        let Some(runtime) = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        self.closing.cancel();
        self.tasks.close();
        let _ = runtime.block_on(async { timeout(SETTLE_TIMEOUT, self.tasks.wait()).await });
        runtime.shutdown_timeout(Duration::from_secs(1));
        self.deliverer.stop();
    }
}

/// At exit: ends all executions of this process that are bound to it, and every thread of this module.
#[pyfunction]
pub(crate) fn shut_down(py: Python<'_>) {
    let current = *CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(process) = current.filter(|process| process.pid == std::process::id()) {
        py.detach(|| process.shut_down());
    }
}
