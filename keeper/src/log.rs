//! Lines of this program's own.

use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};

/// Lines that standard error did not take.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Writes a line to standard error, if that takes one now: nobody who does not read it holds up the rest. The next one that
/// it takes says how many were lost.
pub fn line(text: &str) {
    let lost = LOST.swap(0, Ordering::Relaxed);
    let gap = if lost == 0 { String::new() } else { format!("telexec-keeper: {lost} lines were lost here\n") };
    if write(&format!("{gap}telexec-keeper: {text}\n")).is_err() {
        LOST.fetch_add(lost + 1, Ordering::Relaxed);
    }
}

fn write(lines: &str) -> Result<(), Errno> {
    let stderr = rustix::stdio::stderr();
    // from where it is, see pwritev2(2)
    if pwritev2(stderr, &[IoSlice::new(lines.as_bytes())], u64::MAX, ReadWriteFlags::NOWAIT).is_ok() {
        return Ok(());
    }
    // not every kind of file can be asked not to wait
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&now))? {
        0 => Err(Errno::AGAIN),
        _ => rustix::io::write(stderr, lines.as_bytes()).map(drop),
    }
}
