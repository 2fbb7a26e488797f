//! Sockets that listen, here or on the agent's machine, and are connected to the other side.

mod connection;
mod endpoint;
mod serve;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use telexec_client::{Dial, Endpoint, ForwardError, ForwardFailure, ForwardStep, Forwards, Listening, LocalListener};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub(crate) use self::connection::Connection;
pub(crate) use self::endpoint::{dialled, dialled_as, listened};
use self::serve::Connections;
use crate::call::Call;
use crate::failure::Failure;
use crate::owned::Owned;
use crate::process::Process;

/// A socket that listens. Dropping it closes it, and resets its connections.
#[pyclass(frozen, module = "telexec._telexec")]
pub(crate) struct Forward {
    serving: Owned<Serving>,
    at: Endpoint,
}

struct Serving {
    stop: CancellationToken,
    task: TaskTracker,
    /// Why the agent listens no more.
    failed: Arc<OnceLock<Failure>>,
    _stop: DropGuard,
}

/// What listens.
enum Service {
    /// With what is connected to from the agent's machine.
    Here(LocalListener, Dial),
    /// With where it was asked for, what is connected to from here, and how long a lost agent is waited for.
    There(Box<Listening>, Endpoint, Endpoint, Duration),
}

impl Service {
    /// Returns why it cannot go on.
    async fn run(self, connections: &mut Connections, forwards: &Forwards) -> Option<ForwardError> {
        match self {
            Self::Here(listener, to) => {
                connections.serve_here(&listener, &to, forwards).await;
                None
            }
            Self::There(listening, asked, to, reconnect) => {
                Some(connections.serve_there(*listening, &asked, &to, forwards, reconnect).await)
            }
        }
    }
}

impl Forward {
    /// Listens here.
    pub(crate) async fn here(
        process: &'static Process,
        forwards: Forwards,
        listen: Endpoint,
        to: Dial,
    ) -> Result<Self, Failure> {
        let failed = |error| ForwardError::Failed(ForwardFailure::new(ForwardStep::Listen, &listen, &error));
        let listener = LocalListener::bind(&listen).await.map_err(failed)?;
        let at = listener.endpoint().clone();
        Ok(Self::serve(process, at, Service::Here(listener, to), forwards))
    }

    /// Listens on the agent's machine.
    pub(crate) async fn there(
        process: &'static Process,
        forwards: Forwards,
        listen: Endpoint,
        to: Endpoint,
        reconnect: Duration,
    ) -> Result<Self, Failure> {
        let listening = forwards.listen(&listen).await?;
        let at = listening.endpoint().clone();
        Ok(Self::serve(process, at, Service::There(Box::new(listening), listen, to, reconnect), forwards))
    }

    fn serve(process: &'static Process, at: Endpoint, service: Service, forwards: Forwards) -> Self {
        let (stop, task, failed) = (process.closing.child_token(), TaskTracker::new(), Arc::new(OnceLock::new()));
        let work = {
            let (stop, failed) = (stop.clone(), Arc::clone(&failed));
            async move {
                let mut connections = Connections::new();
                let ended = tokio::select! {
                    biased;
                    () = stop.cancelled() => None,
                    ended = service.run(&mut connections, &forwards) => ended,
                };
                if let Some(error) = ended {
                    let _ = failed.set(error.into());
                }
                connections.end().await;
            }
        };
        process.spawn_last(task.track_future(work));
        task.close();
        let _stop = stop.clone().drop_guard();
        Self { serving: Owned::new(Serving { stop, task, failed, _stop }), at }
    }
}

#[pymethods]
impl Forward {
    /// Host and port, or a path.
    #[getter]
    fn address(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match &self.at {
            Endpoint::Tcp { host, port } => (host, *port).into_py_any(py),
            Endpoint::Unix(path) => path.into_py_any(py),
        }
    }

    /// Waits until it is closed, or the agent listens no more.
    fn wait(&self, py: Python<'_>) -> PyResult<Call> {
        let serving = self.serving.get()?;
        let (task, failed) = (serving.task.clone(), Arc::clone(&serving.failed));
        Call::new(py, async move {
            task.wait().await;
            failed.get().cloned().map_or(Ok(()), Err)
        })
    }

    fn close(&self, py: Python<'_>) -> PyResult<Call> {
        let serving = self.serving.get()?;
        let task = serving.task.clone();
        serving.stop.cancel();
        Call::new(py, async move {
            task.wait().await;
            Ok(())
        })
    }
}
