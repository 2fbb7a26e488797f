//! Reads standard input as it arrives.
//!
//! A thread reads, because the file must stay blocking for the other processes that share it. A blocked read does not
//! keep this process from exiting.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::mpsc;

/// The capacity of a pipe.
const CHUNK_BYTES: usize = 64 * 1024;
/// Chunks waiting to be sent; when it is full, reading pauses.
const QUEUE: usize = 4;

/// Returns chunks of standard input until its end or the first error.
pub(crate) fn read() -> io::Result<mpsc::Receiver<io::Result<Bytes>>> {
    let mut file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (sender, chunks) = mpsc::channel(QUEUE);
    std::thread::Builder::new().name("stdin".to_owned()).spawn(move || {
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Some(chunk) = next(&mut file, &mut buffer).transpose() {
            let last = chunk.is_err();
            if sender.blocking_send(chunk).is_err() || last {
                return;
            }
        }
    })?;
    Ok(chunks)
}

/// `None`: end of input.
fn next(file: &mut File, buffer: &mut [u8]) -> io::Result<Option<Bytes>> {
    loop {
        match file.read(buffer) {
            Ok(0) => return Ok(None),
            Ok(length) => return Ok(buffer.get(..length).map(Bytes::copy_from_slice)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // another process that shares the file may have made it non-blocking
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(file, PollFlags::IN)], None)?;
            }
            Err(error) => return Err(error),
        }
    }
}
