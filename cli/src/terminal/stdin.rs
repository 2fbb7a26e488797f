//! Standard input as it arrives.
//!
//! A thread does the reading, since whoever shares the file wants it as it is: blocking. One that waits there does not
//! keep this process from exiting.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::mpsc;

/// As much as a pipe holds.
const CHUNK_BYTES: usize = 64 * 1024;
/// Chunks that wait to be sent; when there are so many, reading stops.
const QUEUE: usize = 4;

/// Chunks of standard input up to its end, or to the first error.
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

/// `None`: it has ended.
fn next(file: &mut File, buffer: &mut [u8]) -> io::Result<Option<Bytes>> {
    loop {
        match file.read(buffer) {
            Ok(0) => return Ok(None),
            Ok(length) => return Ok(buffer.get(..length).map(Bytes::copy_from_slice)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // whoever shares the file may have made it non-blocking
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(file, PollFlags::IN)], None)?;
            }
            Err(error) => return Err(error),
        }
    }
}
