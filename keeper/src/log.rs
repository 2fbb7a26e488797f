//! Lines of this program's own.

use std::io::IoSlice;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{ReadWriteFlags, pwritev2};

/// Writes a line to standard error, if that takes one now: nobody who does not read it holds up the rest.
pub fn line(text: &str) {
    let line = format!("telexec-keeper: {text}\n");
    let stderr = rustix::stdio::stderr();
    // from where it is, see pwritev2(2)
    let written = pwritev2(stderr, &[IoSlice::new(line.as_bytes())], u64::MAX, ReadWriteFlags::NOWAIT);
    if written.is_err() {
        // not every kind of file can be asked not to wait
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&now)) == Ok(1) {
            let _ = rustix::io::write(stderr, line.as_bytes());
        }
    }
}
