//! Standard input of one command: what it starts with, and what is written to it later.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::{Buf, Bytes};
use rustix::pipe::fcntl_setpipe_size;
use telexec_executor::{ExecutorError, Input};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};

use super::InputState;
use super::end::{StreamEnd, StreamThreads};
use super::source::{BUSY_BYTES, BUSY_PIPE_BYTES};
use super::terminal::Terminal;
use crate::lock::lock;
use crate::observer::Observers;
use crate::process::control;
use crate::state::checkpoint::{Checkpoint, Closed};
use crate::state::input_file::{InputFile, MAX_PIPE_BYTES};

/// The most that observers are shown before the command gets it.
const PIECE_BYTES: usize = 256 * 1024;

/// Where input goes.
pub(crate) enum Sink {
    Pipe {
        pipe: AsyncFd<Arc<InputPipe>>,
        /// The write that has begun.
        write: Option<oneshot::Receiver<io::Result<usize>>>,
    },
    Terminal(Arc<Terminal>, Option<Arc<Checkpoint>>),
    /// Nowhere.
    Closed,
}

/// The pipe to a command, for who writes to it.
pub(crate) struct InputPipe {
    end: StreamEnd,
    enlarged: AtomicBool,
    kept: Option<KeptInput>,
}

impl InputPipe {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() >= BUSY_BYTES && !self.enlarged.swap(true, Ordering::Relaxed) {
            // best effort: the pipes of a user are limited together
            let _ = fcntl_setpipe_size(&self.end, BUSY_PIPE_BYTES);
        }
        let Some(kept) = &self.kept else { return Ok(rustix::io::write(&self.end, bytes)?) };
        match kept.file.send(self.end.as_fd(), bytes) {
            // each piece takes a page of it, however short it is
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock && !kept.is_largest.swap(true, Ordering::Relaxed) =>
            {
                let _ = fcntl_setpipe_size(&self.end, MAX_PIPE_BYTES);
                kept.file.send(self.end.as_fd(), bytes)
            }
            sent => sent,
        }
    }
}

impl AsFd for InputPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

impl AsRawFd for InputPipe {
    fn as_raw_fd(&self) -> RawFd {
        self.end.as_raw_fd()
    }
}

/// The input of an execution that the next agent is to have. Dropping it closes the keeper's end of the pipe too.
pub(crate) struct KeptInput {
    file: InputFile,
    checkpoint: Arc<Checkpoint>,
    number: u8,
    /// The pipe is as large as it can be.
    is_largest: AtomicBool,
}

impl KeptInput {
    /// `number`: by which the keeper has the pipe.
    pub(super) fn new(file: InputFile, checkpoint: &Arc<Checkpoint>, number: u8) -> Self {
        Self { file, checkpoint: Arc::clone(checkpoint), number, is_largest: AtomicBool::new(false) }
    }
}

impl Drop for KeptInput {
    fn drop(&mut self) {
        self.checkpoint.set_input_closed(Closed::Yes);
        self.checkpoint.close(self.number);
    }
}

impl Sink {
    /// # Errors
    /// The runtime cannot watch another descriptor.
    pub(crate) fn pipe(file: Option<OwnedFd>, kept: Option<KeptInput>, threads: &StreamThreads) -> io::Result<Self> {
        let Some(file) = file else { return Ok(Self::Closed) };
        let pipe = InputPipe { end: StreamEnd::new(file, threads)?, enlarged: AtomicBool::new(false), kept };
        Ok(Self::Pipe { pipe: control::watch_for(Arc::new(pipe), Interest::WRITABLE)?, write: None })
    }

    /// Waits for a write that was cancelled after it had begun; returns how much it has written.
    async fn settle(&mut self) -> io::Result<usize> {
        let Self::Pipe { write, .. } = self else { return Ok(0) };
        match written(write).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            written => written,
        }
    }

    /// Writes some of the bytes, which come after `before` others and may begin a line. Cancelling this may write some
    /// nevertheless: see [`settle`](Self::settle).
    async fn write(
        &mut self,
        bytes: &Bytes,
        (before, at_line_start): (u64, bool),
        writing: &tokio::sync::Mutex<()>,
    ) -> io::Result<usize> {
        match self {
            Self::Pipe { pipe, write } => loop {
                let mut guard = pipe.writable().await?;
                let (writer, bytes) = (Arc::clone(pipe.get_ref()), bytes.clone());
                let _writing = writing.lock().await;
                *write = Some(pipe.get_ref().end.begin(move || writer.write(&bytes)));
                match written(write).await {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                    written => return written,
                }
            },
            Self::Terminal(terminal, checkpoint) => {
                let typed = |more: usize| {
                    let at_line_start = if more == 0 { at_line_start } else { ends_line(bytes.get(..more)) };
                    let note = |checkpoint: &Arc<Checkpoint>| checkpoint.set_typed(before + more as u64, at_line_start);
                    checkpoint.iter().for_each(note);
                };
                terminal.write(bytes, typed).await
            }
            Self::Closed => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Whether what is written now is not to be seen by who looks at the terminal.
    async fn hides_input(&self) -> bool {
        match self {
            Self::Terminal(terminal, _) => terminal.hides_input().await,
            Self::Pipe { .. } | Self::Closed => false,
        }
    }
}

/// Waits for a write, if one has begun.
async fn written(write: &mut Option<oneshot::Receiver<io::Result<usize>>>) -> io::Result<usize> {
    let Some(written) = write else { return Ok(0) };
    let written = written.await.map_err(io::Error::other);
    *write = None;
    written?
}

/// A terminal's user ends a line by a carriage return.
fn ends_line(typed: Option<&[u8]>) -> bool {
    matches!(typed.and_then(<[u8]>::last), Some(b'\n' | b'\r'))
}

/// What is to be written; `None` once it is no longer awaited, or it is being written.
type Pending = Arc<Mutex<Option<Input>>>;

/// One write, and who waits for it.
struct Request {
    input: Pending,
    reply: oneshot::Sender<Result<u64, ExecutorError>>,
}

/// Writes to the input of a command that accepts some.
#[derive(Clone)]
pub(crate) struct InputSender(mpsc::Sender<Request>);

/// What is written, to be given to an [`InputWriter`]. Once it is dropped, writers get the error that the command has
/// ended.
pub(crate) struct InputReceiver(mpsc::Receiver<Request>);

/// For a command that accepts input. Writers wait for each other.
pub(crate) fn channel() -> (InputSender, InputReceiver) {
    let (sender, receiver) = mpsc::channel(1);
    (InputSender(sender), InputReceiver(receiver))
}

impl InputSender {
    /// Returns how much the command has got.
    ///
    /// # Errors
    /// It takes no more, or has not got what comes before.
    pub(crate) async fn write(&self, input: Input) -> Result<u64, ExecutorError> {
        let (reply, answer) = oneshot::channel();
        let ended = || refused("the command has ended");
        let input = GivenUp(Arc::new(Mutex::new(Some(input))));
        let request = Request { input: Arc::clone(&input.0), reply };
        self.0.send(request).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }
}

/// A write that waits for its turn. Dropping it drops what was to be written, wherever in the queue it is.
struct GivenUp(Pending);

impl Drop for GivenUp {
    fn drop(&mut self) {
        drop(take(&self.0));
    }
}

fn take(pending: &Pending) -> Option<Input> {
    lock(pending).take()
}

fn refused(reason: &str) -> ExecutorError {
    ExecutorError::FailedPrecondition { reason: reason.into() }
}

/// The input of one command.
pub(crate) struct InputWriter<'a> {
    sink: Sink,
    /// Get what the command gets.
    observers: &'a Observers,
    /// Locked while a write is on its way.
    writing: &'a tokio::sync::Mutex<()>,
    /// Bytes that the command has got.
    committed: u64,
    /// No more comes.
    closed: bool,
    /// The command reads no more.
    broken: bool,
    /// What is typed next begins a line.
    at_line_start: bool,
}

impl<'a> InputWriter<'a> {
    pub(crate) fn new(sink: Sink, observers: &'a Observers, writing: &'a tokio::sync::Mutex<()>) -> Self {
        Self { sink, observers, writing, committed: 0, closed: false, broken: false, at_line_start: true }
    }

    /// For a command that an earlier agent has written to.
    pub(crate) fn restored(
        sink: Sink,
        state: InputState,
        observers: &'a Observers,
        writing: &'a tokio::sync::Mutex<()>,
    ) -> Self {
        let InputState { committed, closed, at_line_start } = state;
        Self { sink, observers, writing, committed, closed: closed == Closed::Yes, broken: false, at_line_start }
    }

    /// Writes what the command starts with, then what comes; returns when no more can come.
    pub(crate) async fn run(mut self, first: Bytes, more: Option<&mut InputReceiver>) {
        let typed = self.committed > 0 || !first.is_empty();
        self.write(first).await;
        let Some(InputReceiver(requests)) = more else {
            // a terminal without input stays open
            if typed || !matches!(self.sink, Sink::Terminal(..)) {
                self.close().await;
            }
            return;
        };
        while let Some(Request { input, mut reply }) = requests.recv().await {
            let Some(input) = take(&input) else { continue };
            let answer = tokio::select! {
                biased;
                // it is no longer awaited: what is not written yet is written by a repeat
                () = reply.closed() => continue,
                answer = self.serve(input) => answer,
            };
            let _ = reply.send(answer);
        }
    }

    async fn serve(&mut self, input: Input) -> Result<u64, ExecutorError> {
        match self.sink.settle().await {
            Ok(written) => self.committed += written as u64,
            Err(_) => self.broken = true,
        }
        let Input { mut data, offset, close } = input;
        let offset = offset.unwrap_or(self.committed);
        if offset > self.committed {
            return Err(ExecutorError::OutOfRange { field: "offset".into(), end: self.committed });
        }
        let repeated = usize::try_from(self.committed - offset).unwrap_or(usize::MAX).min(data.len());
        data.advance(repeated);
        if !data.is_empty() {
            if self.closed {
                return Err(refused("the command's input was closed"));
            }
            self.write(data).await;
            if self.broken {
                return Err(refused("the command reads no more of its input"));
            }
        }
        if close {
            self.close().await;
        }
        Ok(self.committed)
    }

    async fn write(&mut self, mut data: Bytes) {
        while !data.is_empty() && !self.broken {
            let mut piece = data.split_to(data.len().min(PIECE_BYTES));
            if !self.may_write(&piece).await {
                self.broken = true;
            }
            while !piece.is_empty() && !self.broken {
                match self.sink.write(&piece, (self.committed, self.at_line_start), self.writing).await {
                    Ok(written) => {
                        self.committed += written as u64;
                        self.at_line_start = ends_line(piece.get(..written));
                        piece.advance(written);
                    }
                    Err(_) => self.broken = true,
                }
            }
        }
    }

    /// Shows the observers what is written next. False: it may not be.
    async fn may_write(&self, piece: &[u8]) -> bool {
        if self.observers.is_empty() {
            return true;
        }
        self.observers.input(piece, self.sink.hides_input().await);
        self.observers.safe().await
    }

    pub(crate) async fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        // within a line the first one only ends the line
        let repeats = if self.at_line_start { 1 } else { 2 };
        let typed = match &self.sink {
            Sink::Terminal(terminal, _) => vec![terminal.end_of_file().await; repeats],
            Sink::Pipe { .. } | Sink::Closed => Vec::new(),
        };
        if !typed.is_empty() && !self.may_write(&typed).await {
            return;
        }
        match &self.sink {
            Sink::Terminal(terminal, checkpoint) => {
                let note = |closed| {
                    checkpoint.iter().for_each(|checkpoint: &Arc<Checkpoint>| checkpoint.set_input_closed(closed));
                };
                // typed twice it is harmless, and without it the command waits for ever
                note(Closed::Begun);
                let _ = terminal.write(&typed, |_| ()).await;
                note(Closed::Yes);
            }
            Sink::Pipe { .. } | Sink::Closed => self.sink = Sink::Closed,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_write_that_is_given_up_keeps_nothing() {
        let (sender, receiver) = channel();
        let data = Bytes::from(vec![0; 1024]);
        let mut write = Box::pin(sender.write(Input { data: data.clone(), ..Input::default() }));
        assert!(write.as_mut().now_or_never().is_none() && !receiver.0.is_empty());
        drop(write);
        assert!(data.is_unique() && !receiver.0.is_empty());
    }
}
