//! Writes output to standard output and standard error: unchanged, in order of arrival, unbuffered.
//!
//! A thread writes, so that a slow reader blocks neither signals nor the network.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc as blocking;
use std::time::Duration;

use bytes::Bytes;
use telexec_executor::OutputStream;
use tokio::sync::{mpsc, oneshot};

use super::{Failure, exit};
use crate::terminal::ScreenModes;

/// Chunks waiting for the thread; when it is full, the command is slowed down.
const QUEUE: usize = 16;
/// For a terminal to take what restores it: one that was stopped takes nothing.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(1);

/// The writing thread.
pub(crate) struct OutputWriter {
    chunks: mpsc::Sender<(OutputStream, Bytes)>,
    done: oneshot::Receiver<io::Result<()>>,
    /// Dropped after `chunks`, which makes the thread end.
    _restored: Option<Restored>,
}

impl OutputWriter {
    pub(crate) fn start() -> Result<Self, Failure> {
        Self::with(None, None)
    }

    /// To a terminal, which is as it was before once this is finished or dropped, whatever the program that uses it does.
    pub(crate) fn to_terminal() -> Result<Self, Failure> {
        let is_left = Arc::new(AtomicBool::new(false));
        let (ends, ended) = blocking::channel();
        let screen = Screen { modes: ScreenModes::new(), is_left: Arc::clone(&is_left), _ends: ends };
        Self::with(Some(screen), Some(Restored { is_left, ended }))
    }

    fn with(screen: Option<Screen>, restored: Option<Restored>) -> Result<Self, Failure> {
        let stdout = unbuffered(io::stdout().as_fd()).map_err(|error| write_failure(&error))?;
        let stderr = unbuffered(io::stderr().as_fd()).map_err(|error| write_failure(&error))?;
        let (chunks, queue) = mpsc::channel(QUEUE);
        let (finished, done) = oneshot::channel();
        std::thread::spawn(move || finished.send(write_queue(queue, stdout, stderr, screen)));
        Ok(Self { chunks, done, _restored: restored })
    }

    /// Queues a chunk; an error may be from an earlier one.
    pub(crate) async fn write(&mut self, stream: OutputStream, data: Bytes) -> Result<(), Failure> {
        match self.chunks.send((stream, data)).await {
            Ok(()) => Ok(()),
            Err(_) => outcome((&mut self.done).await),
        }
    }

    /// Waits until everything is written.
    pub(crate) async fn finish(self) -> Result<(), Failure> {
        drop(self.chunks);
        outcome(self.done.await)
    }
}

fn outcome(done: Result<io::Result<()>, oneshot::error::RecvError>) -> Result<(), Failure> {
    done.unwrap_or(Ok(())).map_err(|error| write_failure(&error))
}

/// Prints the result of a subcommand.
pub(crate) fn print(text: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text).and_then(|()| stdout.flush()).map_err(|error| write_failure(&error))
}

/// A reader that exited, such as `head`, is not an error worth a message.
pub(crate) fn write_failure(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::silent(exit::BROKEN_PIPE),
        _ => Failure::message(exit::LOST, format!("cannot write the output: {error}")),
    }
}

/// The same file, without the line buffering of [`io::stdout`].
pub(crate) fn unbuffered(stream: std::os::fd::BorrowedFd<'_>) -> io::Result<File> {
    stream.try_clone_to_owned().map(File::from)
}

/// The terminal, as the thread knows it.
struct Screen {
    modes: ScreenModes,
    /// What waits in the queue is not written any more.
    is_left: Arc<AtomicBool>,
    /// Dropped when nothing more is written.
    _ends: blocking::Sender<()>,
}

/// Waits for the thread when it is dropped: only that knows what it has written.
struct Restored {
    is_left: Arc<AtomicBool>,
    ended: blocking::Receiver<()>,
}

impl Drop for Restored {
    fn drop(&mut self) {
        self.is_left.store(true, Ordering::Release);
        let _ = self.ended.recv_timeout(RESTORE_TIMEOUT);
    }
}

fn write_queue(
    mut queue: mpsc::Receiver<(OutputStream, Bytes)>,
    mut stdout: File,
    mut stderr: File,
    mut screen: Option<Screen>,
) -> io::Result<()> {
    while let Some((stream, data)) = queue.blocking_recv() {
        if let Some(screen) = &mut screen {
            if screen.is_left.load(Ordering::Acquire) {
                break;
            }
            screen.modes.follow(&data);
        }
        match stream {
            OutputStream::Stdout => write_all(&mut stdout, &data)?,
            OutputStream::Stderr => write_all(&mut stderr, &data)?,
        }
    }
    match screen {
        Some(mut screen) => write_all(&mut stdout, &screen.modes.reset()),
        None => Ok(()),
    }
}

/// Writes to a file that another process may have made non-blocking.
pub(crate) fn write_all(file: &mut File, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        match file.write(data) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => data = data.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
