//! Room for output while no agent reads it: a pipe that fills is enlarged, so that its command need not wait. What is in it is the
//! kernel's to keep, for the next agent, and counts for the command's memory.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::ioctl_fionread;
use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};

/// What one pipe is enlarged to, where the system has it; without CAP_SYS_RESOURCE it usually has a quarter: see pipe(7).
const MAX_PIPE_BYTES: usize = 4 * 1024 * 1024;
/// What all that are enlarged take together: half of what a user may have before further pipes get small, see
/// `pipe-user-pages-soft` there.
const MAX_BYTES: usize = 32 * 1024 * 1024;

/// Of that, what is left.
static LEFT: AtomicUsize = AtomicUsize::new(MAX_BYTES);
/// How many pipes are looked at.
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// How much room there is in a pipe, beside the usual.
#[derive(Debug)]
pub(crate) struct Room {
    /// Of what it shares with others.
    left: &'static AtomicUsize,
    is_busy: AtomicBool,
    /// The size that the pipe was given; 0: it has its own.
    bytes: AtomicUsize,
}

/// Whether a thread may be held up by a command for this.
pub(crate) fn is_being_made() -> bool {
    BUSY.load(Ordering::Acquire) > 0
}

impl Default for Room {
    fn default() -> Self {
        Self::of(&LEFT)
    }
}

impl Room {
    fn of(left: &'static AtomicUsize) -> Self {
        Self { left, is_busy: AtomicBool::new(false), bytes: AtomicUsize::new(0) }
    }

    /// Enlarges the pipe, if it is one from which output is read, and at least half full. May take as long as its command likes.
    pub(crate) fn make(&self, pipe: impl AsFd) {
        if self.is_busy.swap(true, Ordering::Acquire) {
            return;
        }
        BUSY.fetch_add(1, Ordering::Relaxed);
        let is_read = fcntl_getfl(&pipe).is_ok_and(|flags| flags & OFlags::ACCMODE == OFlags::RDONLY);
        // of what is no pipe it is an error
        if is_read && let Ok(size) = fcntl_getpipe_size(&pipe) {
            self.enlarge_if_full(&pipe, size);
        }
        BUSY.fetch_sub(1, Ordering::Release);
        self.is_busy.store(false, Ordering::Release);
    }

    fn enlarge_if_full(&self, pipe: impl AsFd, size: usize) {
        if size < self.bytes.load(Ordering::Relaxed) {
            // an agent has read it, and made it small again
            self.give_back();
        }
        if size >= MAX_PIPE_BYTES || !ioctl_fionread(&pipe).is_ok_and(|bytes| bytes >= size as u64 / 2) {
            return;
        }
        let mut wanted = MAX_PIPE_BYTES;
        while wanted > size {
            let more = wanted - self.bytes.load(Ordering::Relaxed);
            if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(more)).is_ok() {
                if fcntl_setpipe_size(&pipe, wanted).is_ok() {
                    self.bytes.store(wanted, Ordering::Relaxed);
                    return;
                }
                self.left.fetch_add(more, Ordering::Relaxed);
            }
            // less may be permitted, or be had
            wanted /= 2;
        }
    }

    fn give_back(&self) {
        self.left.fetch_add(self.bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use rustix::pipe::pipe;

    use super::*;

    const USUAL: usize = 64 * 1024;

    fn filled() -> (std::os::fd::OwnedFd, std::os::fd::OwnedFd) {
        let (read, write) = pipe().unwrap();
        assert_eq!(rustix::io::write(&write, &[0; USUAL]), Ok(USUAL));
        (read, write)
    }

    #[test]
    fn pipes_that_fill_share_what_there_is_and_give_it_back() {
        let left: &AtomicUsize = Box::leak(Box::new(AtomicUsize::new(5 * USUAL)));
        let is_left = |bytes| assert_eq!(left.load(Ordering::Relaxed), bytes);
        let pipes = [filled(), filled()];
        let [(first, _first_end), (second, _second_end)] = &pipes;
        let rooms = [Room::of(left), Room::of(left)];
        let sizes = || {
            rooms.iter().zip(&pipes).for_each(|(room, (read, _))| room.make(read));
            pipes.each_ref().map(|(read, _)| fcntl_getpipe_size(read).unwrap())
        };
        assert_eq!(sizes(), [4 * USUAL, USUAL]);
        is_left(USUAL);
        // it gives back what the other one takes
        fcntl_setpipe_size(first, USUAL).unwrap();
        rustix::io::read(first, &mut vec![0; USUAL]).unwrap();
        assert_eq!(sizes(), [USUAL, 4 * USUAL]);
        is_left(USUAL);
        fcntl_setpipe_size(second, USUAL).unwrap();
        drop(rooms);
        is_left(5 * USUAL);
    }

    #[test]
    fn only_pipes_that_output_is_read_from_and_that_fill_are_enlarged() {
        let size = |pipe: &std::os::fd::OwnedFd| fcntl_getpipe_size(pipe).unwrap();
        let (read, write) = filled();
        Room::default().make(&write);
        assert_eq!(size(&read), USUAL);
        rustix::io::read(&read, &mut vec![0; USUAL / 2 + 1]).unwrap();
        Room::default().make(&read);
        assert_eq!(size(&read), USUAL);
        Room::default().make(std::fs::File::open("/dev/null").unwrap());
        Room::default().make(std::fs::File::open("/").unwrap());
    }
}
