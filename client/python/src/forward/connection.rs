//! A connection that Python reads and writes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use telexec_client::{Connection as Stream, Dial, Endpoint, ForwardError, ForwardFailure, ForwardStep, Forwards};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, sink, split};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::call::Call;
use crate::failure::Failure;
use crate::owned::Owned;
use crate::process::Process;

/// How long what was written is still delivered after it was closed; then it is reset.
const LINGER: Duration = Duration::from_secs(1);
/// Room for one read.
const READ_BYTES: usize = 64 * 1024;

/// A connection from the agent's machine. Dropping it closes it.
#[pyclass(frozen, module = "telexec._telexec")]
pub(crate) struct Connection(Owned<Handle>);

struct Handle {
    shared: Arc<Shared>,
    process: &'static Process,
}

struct Shared {
    to: Endpoint,
    reader: Arc<Mutex<Reader>>,
    /// `None`: closed.
    writer: Mutex<Option<WriteHalf<Stream>>>,
    closed: CancellationToken,
}

struct Reader {
    /// `None`: closed.
    stream: Option<ReadHalf<Stream>>,
    /// What Python has not said yet that it has got: a wait that is interrupted loses nothing.
    data: BytesMut,
    /// Bytes before that.
    seen: u64,
    is_ended: bool,
}

impl Connection {
    pub(crate) async fn open(
        process: &'static Process,
        forwards: Forwards,
        to: Endpoint,
        dial: Dial,
    ) -> Result<Self, Failure> {
        let (stream, writer) = split(forwards.connect(dial).await?);
        let reader = Reader { stream: Some(stream), data: BytesMut::new(), seen: 0, is_ended: false };
        let shared = Shared {
            to,
            reader: Arc::new(Mutex::new(reader)),
            writer: Mutex::new(Some(writer)),
            closed: CancellationToken::new(),
        };
        Ok(Self(Owned::new(Handle { shared: Arc::new(shared), process })))
    }
}

impl Reader {
    /// Python has got as many bytes.
    fn forget(&mut self, seen: u64) {
        let length = usize::try_from(seen.saturating_sub(self.seen)).unwrap_or(usize::MAX);
        self.data.advance(length.min(self.data.len()));
        self.seen = self.seen.max(seen);
    }

    /// Reads until there is something, or everything.
    async fn fill(&mut self, all: bool) -> io::Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        while !self.is_ended && (all || self.data.is_empty()) {
            self.data.reserve(READ_BYTES);
            self.is_ended = stream.read_buf(&mut self.data).await? == 0;
        }
        Ok(())
    }
}

impl Shared {
    /// The outcome of some work, unless it is closed before.
    async fn unless_closed<T>(&self, work: impl Future<Output = io::Result<T>>) -> Result<T, Failure> {
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(Failure::new("Error", "the connection is closed")),
            done = work => done.map_err(|error| self.failed(error)),
        }
    }

    fn failed(&self, error: io::Error) -> Failure {
        match error.downcast::<ForwardError>() {
            Ok(error) => error.into(),
            // this direction was closed, or the agent takes no more
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                broken(&self.to, "EPIPE", "nothing can be written any more")
            }
            Err(error) => broken(&self.to, "ECONNRESET", &error.to_string()),
        }
    }

    async fn write(&self, data: Bytes) -> Result<(), Failure> {
        let work = async {
            match &mut *self.writer.lock().await {
                Some(writer) => writer.write_all(&data).await,
                None => Ok(()),
            }
        };
        self.unless_closed(work).await
    }

    async fn close_write(&self) -> Result<(), Failure> {
        let work = async {
            match &mut *self.writer.lock().await {
                Some(writer) => writer.shutdown().await,
                None => Ok(()),
            }
        };
        self.unless_closed(work).await
    }

    /// Delivers what was written, as long as the other side closes it soon.
    async fn linger(self: Arc<Self>) {
        let writer = self.writer.lock().await.take();
        let reader = self.reader.lock().await.stream.take();
        let (Some(mut writer), Some(mut reader)) = (writer, reader) else { return };
        let rest = async {
            writer.shutdown().await?;
            tokio::io::copy(&mut reader, &mut sink()).await?;
            // an error means that it is reset already
            let _ = reader.unsplit(writer).finish().await;
            Ok::<_, io::Error>(())
        };
        let _ = timeout(LINGER, rest).await;
    }
}

fn broken(to: &Endpoint, errno: &str, reason: &str) -> Failure {
    ForwardError::Failed(ForwardFailure::because(ForwardStep::Carry, to, errno, reason)).into()
}

impl Handle {
    fn close(&self) {
        if !self.shared.closed.is_cancelled() {
            self.shared.closed.cancel();
            self.process.spawn_last(Arc::clone(&self.shared).linger());
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

#[pymethods]
impl Connection {
    /// What has arrived after the bytes that were `seen`, at most `n`; negative: all, to the end.
    fn read(&self, py: Python<'_>, n: i64, seen: u64) -> PyResult<Call> {
        let length = usize::try_from(n).ok();
        let shared = Arc::clone(&self.0.get()?.shared);
        let work = async move {
            let mut reader = Arc::clone(&shared.reader).lock_owned().await;
            reader.forget(seen);
            if length != Some(0) {
                shared.unless_closed(reader.fill(length.is_none())).await?;
            }
            Ok(reader)
        };
        Call::with(py, work, move |py, reader| {
            let length = reader.data.len().min(length.unwrap_or(usize::MAX));
            Ok(PyBytes::new(py, reader.data.get(..length).unwrap_or_default()).into_any().unbind())
        })
    }

    fn write(&self, py: Python<'_>, data: Vec<u8>) -> PyResult<Call> {
        let shared = Arc::clone(&self.0.get()?.shared);
        Call::new(py, async move { shared.write(data.into()).await })
    }

    fn close_write(&self, py: Python<'_>) -> PyResult<Call> {
        let shared = Arc::clone(&self.0.get()?.shared);
        Call::new(py, async move { shared.close_write().await })
    }

    fn close(&self, py: Python<'_>) -> PyResult<Call> {
        self.0.get()?.close();
        Call::new(py, async { Ok(()) })
    }
}
