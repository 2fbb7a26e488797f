//! Writes output to standard output and standard error: unchanged, in order of arrival, unbuffered.
//!
//! A thread writes, so that a slow reader blocks neither signals nor the network.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use bytes::Bytes;
use telexec_executor::OutputStream;
use tokio::sync::{mpsc, oneshot};

use super::{Failure, exit};

/// Chunks waiting for the thread; when it is full, the command is slowed down.
const QUEUE: usize = 16;

/// The writing thread.
pub(crate) struct OutputWriter {
    chunks: mpsc::Sender<(OutputStream, Bytes)>,
    done: oneshot::Receiver<io::Result<()>>,
}

impl OutputWriter {
    pub(crate) fn start() -> Result<Self, Failure> {
        let stdout = unbuffered(io::stdout().as_fd()).map_err(|error| write_failure(&error))?;
        let stderr = unbuffered(io::stderr().as_fd()).map_err(|error| write_failure(&error))?;
        let (chunks, queue) = mpsc::channel(QUEUE);
        let (finished, done) = oneshot::channel();
        std::thread::spawn(move || finished.send(write_queue(queue, stdout, stderr)));
        Ok(Self { chunks, done })
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

fn write_queue(mut queue: mpsc::Receiver<(OutputStream, Bytes)>, mut stdout: File, mut stderr: File) -> io::Result<()> {
    while let Some((stream, data)) = queue.blocking_recv() {
        match stream {
            OutputStream::Stdout => write_all(&mut stdout, &data)?,
            OutputStream::Stderr => write_all(&mut stderr, &data)?,
        }
    }
    Ok(())
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
