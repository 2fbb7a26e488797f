//! The process of the run-as user, over the pipes to it.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use telexec_engine::LocalExecutor;
use telexec_executor::{
    Event, Execution, ExecutionId, Executor, ExecutorError, ExitCause, Exited, Input, OutputStream,
};
use telexec_files::frame::{self, Kind};
use tracing::Instrument;

use super::frames::{Frame, Frames};
use crate::run_as::{Process, Purpose, start};

/// Shorter frames are gathered before they are written.
const GATHERED_BYTES: usize = 64 * 1024;
/// As much of its complaints is logged.
const MAX_COMPLAINT_BYTES: usize = 512;

/// A running process. Dropping it ends that, in the background.
pub(super) struct Helper {
    requests: Requests,
    answers: Answers,
    user: String,
}

/// What goes to the process.
struct Requests {
    engine: LocalExecutor,
    id: ExecutionId,
    /// To be written, the first perhaps in part.
    queue: VecDeque<Bytes>,
    /// After that.
    gathered: BytesMut,
    /// Bytes that were written before.
    offset: u64,
}

/// What comes from the process.
struct Answers {
    execution: Execution,
    frames: Frames,
    complaint: Vec<u8>,
}

impl Helper {
    /// Starts it, as `user` or the default one, for this identity.
    ///
    /// # Errors
    /// As of a command.
    pub(super) async fn start(
        engine: &LocalExecutor,
        identity: &str,
        user: Option<&str>,
    ) -> Result<Self, ExecutorError> {
        let Process { execution, owner, user } = start(engine, Purpose::Files, identity, user, None).await?;
        let requests = Requests {
            engine: engine.acting_as(&owner),
            id: execution.id().clone(),
            queue: VecDeque::new(),
            gathered: BytesMut::new(),
            offset: 0,
        };
        let answers = Answers { execution, frames: Frames::default(), complaint: Vec::new() };
        Ok(Self { requests, answers, user })
    }

    /// Has it end in an orderly way, in the background: it has nothing to do any more.
    pub(super) fn finish(mut self) {
        let close = Input { close: true, ..Input::default() };
        let end = async move {
            let _ = self.requests.engine.write_input(&self.requests.id, close).await;
            let _ = self.next().await;
        };
        tokio::spawn(end.in_current_span());
    }

    /// The name of the user that it runs as.
    pub(super) fn user(&self) -> &str {
        &self.user
    }

    /// Queues a frame for the next [`flush`](Self::flush).
    pub(super) fn queue(&mut self, kind: Kind, data: Bytes) {
        let Requests { queue, gathered, .. } = &mut self.requests;
        gathered.extend_from_slice(&frame::header(kind, data.len()));
        if data.len() < GATHERED_BYTES {
            gathered.extend_from_slice(&data);
        } else {
            queue.push_back(gathered.split().freeze());
            queue.push_back(data);
        }
    }

    /// Whether there is more in the queue than is worth gathering.
    pub(super) fn is_due(&self) -> bool {
        !self.requests.queue.is_empty() || self.requests.gathered.len() >= GATHERED_BYTES
    }

    /// Whether the queue is empty.
    pub(super) fn is_written(&self) -> bool {
        self.requests.queue.is_empty() && self.requests.gathered.is_empty()
    }

    /// Writes the queue. May be interrupted: what is left is written the next time.
    ///
    /// # Errors
    /// The process has ended.
    pub(super) async fn flush(&mut self) -> Result<(), ExecutorError> {
        match self.requests.write().await {
            Ok(()) => Ok(()),
            // its own words say more
            Err(error) => Err(self.next().await.err().unwrap_or(error)),
        }
    }

    /// Its next frame, of data perhaps a part. May be interrupted.
    ///
    /// # Errors
    /// It has ended, or said what no such process says.
    pub(super) async fn next(&mut self) -> Result<Frame, ExecutorError> {
        self.answers.next().await
    }

    /// Writes the queue, and returns its next frame, or `None` if all is written before that. May be interrupted.
    ///
    /// # Errors
    /// As of [`next`](Self::next).
    pub(super) async fn advance(&mut self) -> Result<Option<Frame>, ExecutorError> {
        if self.is_written() {
            return self.answers.next().await.map(Some);
        }
        tokio::select! {
            biased;
            frame = self.answers.next() => return frame.map(Some),
            // a process that has ended says why
            written = self.requests.write() => if written.is_ok() {
                return Ok(None);
            },
        }
        self.answers.next().await.map(Some)
    }
}

impl Requests {
    async fn write(&mut self) -> Result<(), ExecutorError> {
        if !self.gathered.is_empty() {
            self.queue.push_back(self.gathered.split().freeze());
        }
        while let Some(data) = self.queue.front() {
            let (length, input) =
                (data.len() as u64, Input { data: data.clone(), offset: Some(self.offset), close: false });
            self.engine.write_input(&self.id, input).await?;
            self.offset += length;
            self.queue.pop_front();
        }
        Ok(())
    }
}

impl Answers {
    async fn next(&mut self) -> Result<Frame, ExecutorError> {
        loop {
            let frame = self.frames.next();
            if let Some(frame) = frame.map_err(|error| failed(&error.to_string()))? {
                return Ok(frame);
            }
            match self.execution.next().await.transpose()? {
                Some(Event::Output(output)) => match output.stream {
                    OutputStream::Stdout => self.frames.add(output.data),
                    OutputStream::Stderr => {
                        let room = MAX_COMPLAINT_BYTES.saturating_sub(self.complaint.len());
                        self.complaint.extend(output.data.iter().take(room));
                    }
                },
                Some(Event::Started(_)) => {}
                Some(Event::Exited(exited)) => return Err(self.ended(&exited)),
                Some(Event::Gap(_) | Event::Promoted) | None => return Err(failed("its output is incomplete")),
            }
        }
    }

    fn ended(&self, exited: &Exited) -> ExecutorError {
        match exited.cause {
            ExitCause::Shutdown => ExecutorError::ShuttingDown,
            ExitCause::TimedOut | ExitCause::DeadlineExceeded => ExecutorError::DeadlineExceeded,
            _ => {
                let complaint = String::from_utf8_lossy(&self.complaint);
                failed(&format!("it ended with code {} {}", exited.exit_code(), complaint.trim()))
            }
        }
    }
}

fn failed(what: &str) -> ExecutorError {
    ExecutorError::Internal(format!("the process for files: {}", what.trim_end()))
}
