//! Commands that are followed while they run.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use pyo3::prelude::*;
use telexec_client::Resuming;
use telexec_executor::{
    Event, Execution as Followed, ExecutionId, ExecutionState, Executor, ExecutorError, Exited, Signal,
};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::call::Call;
use crate::failure::Failure;
use crate::gather::Settling;
use crate::input::{feed, write};
use crate::owned::Owned;
use crate::process::Process;
use crate::values;

/// Chunks of output that wait for Python. When it does not read, this and the stream's window are full, and the command is
/// slowed down.
const MAX_WAITING: usize = 4;
/// When it is closed: until the command, which the agent was asked to end, has ended.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Between questions whether it has.
const END_INTERVAL: Duration = Duration::from_millis(20);

/// A command that was started or attached to. Dropping it does as the command was started: by default, it ends.
#[pyclass(frozen, module = "telexec._telexec")]
pub(crate) struct Execution {
    handle: Owned<Handle>,
    id: ExecutionId,
}

struct Handle {
    shared: Arc<Shared>,
    /// Ends the task that follows the command when this is dropped.
    _stop: DropGuard,
}

struct Shared {
    executor: Resuming,
    id: ExecutionId,
    reader: Mutex<Reader>,
    /// How much input was written; `None`: not known, after an attach or an interrupted write.
    written: Mutex<Option<u64>>,
    stop: CancellationToken,
    following: TaskTracker,
    /// Closing it ends the command.
    is_bound: bool,
}

struct Reader {
    events: mpsc::Receiver<Result<Event, ExecutorError>>,
    /// The last event, and how many came: one is given again if Python was interrupted before it had it.
    last: Option<Event>,
    number: u64,
    end: Option<Result<Exited, Failure>>,
}

impl Execution {
    /// Follows a command, and writes `input` to it.
    pub(crate) fn follow(
        process: &'static Process,
        executor: Resuming,
        execution: Followed,
        input: Bytes,
        written: Option<u64>,
        is_bound: bool,
    ) -> Self {
        let id = execution.id().clone();
        let (sender, events) = mpsc::channel(MAX_WAITING);
        let (stop, following) = (process.closing.child_token(), TaskTracker::new());
        let settling = Settling { process, executor: executor.clone() };
        let work = {
            let (executor, id, stop) = (executor.clone(), id.clone(), stop.clone());
            async move {
                let _settling = settling;
                let followed = async { tokio::join!(pump(execution, sender), feed(&executor, &id, input)) };
                tokio::select! {
                    biased;
                    () = stop.cancelled() => {}
                    _ = followed => {}
                }
            }
        };
        process.spawn_last(following.track_future(work));
        following.close();
        let reader = Mutex::new(Reader { events, last: None, number: 0, end: None });
        let _stop = stop.clone().drop_guard();
        let shared =
            Shared { executor, id: id.clone(), reader, written: Mutex::new(written), stop, following, is_bound };
        Self { handle: Owned::new(Handle { shared: Arc::new(shared), _stop }), id }
    }

    fn shared(&self) -> PyResult<Arc<Shared>> {
        Ok(Arc::clone(&self.handle.get()?.shared))
    }
}

/// Hands on events while there is room for them.
async fn pump(mut execution: Followed, events: mpsc::Sender<Result<Event, ExecutorError>>) {
    while let Some(event) = execution.next().await {
        if matches!(event, Ok(Event::Started(_))) {
            continue;
        }
        if events.send(event).await.is_err() {
            return;
        }
    }
}

impl Reader {
    /// The event after the `seen`th; `None`: the end.
    async fn next(&mut self, seen: u64) -> Result<Option<(u64, Event)>, Failure> {
        if let Some(last) = self.last.as_ref().filter(|_| seen < self.number) {
            return Ok(Some((self.number, last.clone())));
        }
        if let Some(end) = &self.end {
            return end.clone().map(|_| None);
        }
        match self.events.recv().await {
            Some(Ok(Event::Exited(exited))) => {
                self.end = Some(Ok(exited));
                Ok(None)
            }
            Some(Ok(event)) => {
                self.number += 1;
                self.last = Some(event.clone());
                Ok(Some((self.number, event)))
            }
            ended => {
                let failure = match ended {
                    Some(Err(error)) => error.into(),
                    _ => Failure::new("Error", "it is not followed any more: attach to it again"),
                };
                self.end = Some(Err(failure.clone()));
                Err(failure)
            }
        }
    }

    /// Leaves out what was not read.
    async fn wait(&mut self) -> Result<Exited, Failure> {
        loop {
            if let Some(end) = &self.end {
                return end.clone();
            }
            self.next(self.number).await?;
        }
    }
}

impl Shared {
    async fn write(&self, data: Bytes, close: bool) -> Result<(), Failure> {
        let mut written = self.written.lock().await;
        // if this is dropped, it is not known how much was written
        let offset = written.take();
        *written = Some(write(&self.executor, &self.id, data, close, offset).await?);
        Ok(())
    }

    async fn close(&self) {
        self.stop.cancel();
        self.following.wait().await;
        let has_ended = matches!(self.reader.lock().await.end, Some(Ok(_)));
        if self.is_bound && !has_ended {
            // a stubborn one, or one behind a lost connection, ends later
            let _ = timeout(END_TIMEOUT, self.ended()).await;
        }
    }

    /// Waits until a command that nobody follows any more has ended.
    async fn ended(&self) -> Result<(), ExecutorError> {
        while self.executor.get(&self.id).await?.state != ExecutionState::Exited {
            sleep(END_INTERVAL).await;
        }
        Ok(())
    }
}

#[pymethods]
impl Execution {
    #[getter]
    fn id(&self) -> &str {
        self.id.as_str()
    }

    /// The number and the event after the `seen`th; `None`: the command has ended.
    fn next(&self, py: Python<'_>, seen: u64) -> PyResult<Call> {
        let shared = self.shared()?;
        let work = async move { shared.reader.lock().await.next(seen).await };
        Call::with(py, work, |py, event| {
            let event = event.map(|(number, event)| Ok::<_, PyErr>((number, values::event(py, &event)?)));
            Ok(event.transpose()?.into_pyobject(py)?.unbind())
        })
    }

    /// Waits for the end of the command.
    fn wait(&self, py: Python<'_>) -> PyResult<Call> {
        let shared = self.shared()?;
        let id = self.id.to_string();
        let work = async move { shared.reader.lock().await.wait().await };
        Call::with(py, work, move |py, exited| values::exit(py, &id, &exited))
    }

    fn write(&self, py: Python<'_>, data: Vec<u8>, close: bool) -> PyResult<Call> {
        let shared = self.shared()?;
        Call::new(py, async move { shared.write(data.into(), close).await })
    }

    fn signal(&self, py: Python<'_>, signal: &str) -> PyResult<Call> {
        let shared = self.shared()?;
        let signal: Signal = signal.parse().map_err(Failure::from)?;
        Call::new(py, async move { Ok(shared.executor.signal(&shared.id, signal).await.map(drop)?) })
    }

    /// Follows it no more.
    fn close(&self, py: Python<'_>) -> PyResult<Call> {
        let shared = self.shared()?;
        Call::new(py, async move {
            shared.close().await;
            Ok(())
        })
    }
}
