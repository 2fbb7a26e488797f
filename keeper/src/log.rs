//! Lines of this program's own.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Writes a line to standard error, if that takes one now: nobody who does not read it holds up the rest.
pub(crate) fn line(text: &str) {
    let stderr = rustix::stdio::stderr();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&now)) == Ok(1) {
        // in one piece: a pipe that can be written to has room for a line
        let _ = rustix::io::write(stderr, format!("telexec-keeper: {text}\n").as_bytes());
    }
}
