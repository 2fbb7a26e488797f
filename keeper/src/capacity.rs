//! The capacity of output pipes while no agent reads them: one that fills is enlarged, so that its command need not wait. What is in
//! it is the kernel's to keep for the next agent, and counts as the command's memory.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::ioctl_fionread;
use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};

/// What one pipe is enlarged to. Above `/proc/sys/fs/pipe-max-size`, 1 MiB by default, this needs CAP_SYS_RESOURCE.
const MAX_PIPE_BYTES: i64 = 4 * 1024 * 1024;
/// What all of them are enlarged to together: half of what a user may have before further pipes get small, see
/// `pipe-user-pages-soft` in pipe(7).
const MAX_BYTES: i64 = 32 * 1024 * 1024;
/// By how much one is enlarged at a time, so that those that fill first do not take all.
const FACTOR: i64 = 4;
/// What an agent makes of one that it reads, at most.
const READ_PIPE_BYTES: i64 = 256 * 1024;

/// What remains of `MAX_BYTES`.
static REMAINING: AtomicI64 = AtomicI64::new(MAX_BYTES);
/// No agent reads.
static IS_ENABLED: AtomicBool = AtomicBool::new(true);
/// How many pipes a thread enlarges, or is to.
static CLAIMED: AtomicUsize = AtomicUsize::new(0);

/// How far a pipe is enlarged.
#[derive(Debug)]
pub(crate) struct Capacity {
    /// What it has in common with others.
    remaining: &'static AtomicI64,
    is_claimed: AtomicBool,
    /// The pipe's size, if it is more than an agent makes of it: this much is taken from what remains.
    taken: AtomicI64,
}

/// Whether a command may hold up a thread that enlarges its pipe.
pub(crate) fn is_claimed() -> bool {
    CLAIMED.load(Ordering::Acquire) > 0
}

/// Whether pipes are enlarged from now on.
pub(crate) fn enable(is_enabled: bool) {
    IS_ENABLED.store(is_enabled, Ordering::Relaxed);
}

impl Default for Capacity {
    fn default() -> Self {
        Self::of(&REMAINING)
    }
}

impl Capacity {
    fn of(remaining: &'static AtomicI64) -> Self {
        Self { remaining, is_claimed: AtomicBool::new(false), taken: AtomicI64::new(0) }
    }

    /// For one that output is read from: the caller has [`enlarge_if_filling`](Self::enlarge_if_filling) called. False: it is no
    /// such end, or that is not done yet from the last time.
    pub(crate) fn claim(&self, pipe: impl AsFd) -> bool {
        let is_read = fcntl_getfl(pipe).is_ok_and(|flags| flags & OFlags::ACCMODE == OFlags::RDONLY);
        let is_claimed = is_read && !self.is_claimed.swap(true, Ordering::Acquire);
        if is_claimed {
            CLAIMED.fetch_add(1, Ordering::Relaxed);
        }
        is_claimed
    }

    /// Does nothing with what is no pipe. May take as long as a command likes, which can hold the pipe's lock.
    pub(crate) fn enlarge_if_filling(&self, pipe: impl AsFd) {
        if let Ok(size) = fcntl_getpipe_size(&pipe) {
            let size = i64::try_from(size).unwrap_or(i64::MAX);
            self.take(size);
            // its pages may be partly filled: one that blocks its writer may hold little more than half of its size
            let is_filling =
                || ioctl_fionread(&pipe).is_ok_and(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX) >= size / 4);
            if size < MAX_PIPE_BYTES && is_filling() && IS_ENABLED.load(Ordering::Relaxed) {
                self.enlarge(&pipe, size);
            }
        }
        self.is_claimed.store(false, Ordering::Release);
        CLAIMED.fetch_sub(1, Ordering::Release);
    }

    fn enlarge(&self, pipe: impl AsFd, size: i64) {
        let before = self.taken.load(Ordering::Relaxed);
        let mut wanted = size.saturating_mul(FACTOR).min(MAX_PIPE_BYTES);
        while wanted > size {
            if self.take(wanted) >= 0 && fcntl_setpipe_size(&pipe, usize::try_from(wanted).unwrap_or(0)).is_ok() {
                return;
            }
            self.take(before);
            // less may remain, be permitted, or be had
            wanted /= 2;
        }
    }

    /// Takes so much, in place of what it has taken; returns what remains.
    fn take(&self, size: i64) -> i64 {
        let taken = if size > READ_PIPE_BYTES { size } else { 0 };
        let more = taken - self.taken.swap(taken, Ordering::Relaxed);
        self.remaining.fetch_sub(more, Ordering::Relaxed) - more
    }
}

impl Drop for Capacity {
    fn drop(&mut self) {
        self.take(0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    const MIB: i64 = 1 << 20;

    /// A full one. Both ends.
    fn filled() -> (OwnedFd, OwnedFd) {
        let ends = pipe_with(PipeFlags::NONBLOCK).unwrap();
        fill(&ends);
        ends
    }

    fn fill((_, write): &(OwnedFd, OwnedFd)) {
        while rustix::io::write(write, &[0; 4096]).is_ok() {}
    }

    fn size(pipe: &OwnedFd) -> i64 {
        i64::try_from(fcntl_getpipe_size(pipe).unwrap()).unwrap()
    }

    fn look(capacity: &Capacity, pipe: &OwnedFd) -> i64 {
        if capacity.claim(pipe) {
            capacity.enlarge_if_filling(pipe);
        }
        size(pipe)
    }

    fn remaining(bytes: i64) -> &'static AtomicI64 {
        Box::leak(Box::new(AtomicI64::new(bytes)))
    }

    #[test]
    fn a_pipe_grows_as_it_fills() {
        let (ends, capacity) = (filled(), Capacity::of(remaining(64 * MIB)));
        let usual = size(&ends.0);
        assert_eq!(look(&capacity, &ends.0), 4 * usual);
        // it is not filled so far
        rustix::io::read(&ends.0, &mut vec![0; 4096]).unwrap();
        assert_eq!(look(&capacity, &ends.0), 4 * usual);
        fill(&ends);
        assert_eq!(look(&capacity, &ends.0), 16 * usual);
    }

    #[test]
    fn pipes_share_what_remains_and_give_it_back() {
        let remaining = remaining(3 * MIB / 2);
        let remains = |bytes| assert_eq!(remaining.load(Ordering::Relaxed), bytes);
        let pipes = [filled(), filled()];
        let capacities = [Capacity::of(remaining), Capacity::of(remaining)];
        let sizes = || {
            pipes.iter().for_each(fill);
            [0, 1].map(|one| look(&capacities[one], &pipes[one].0))
        };
        assert_eq!(sizes(), [MIB / 4, MIB / 4]);
        remains(3 * MIB / 2);
        assert_eq!(sizes(), [MIB, MIB / 2]);
        remains(0);
        // an agent reads it
        rustix::io::read(&pipes[0].0, &mut vec![0; 1 << 20]).unwrap();
        fcntl_setpipe_size(&pipes[0].0, 1 << 16).unwrap();
        assert_eq!(look(&capacities[0], &pipes[0].0), MIB / 16);
        remains(MIB);
        assert_eq!(look(&capacities[1], &pipes[1].0), MIB);
        drop(capacities);
        remains(3 * MIB / 2);
    }

    #[test]
    fn what_an_earlier_program_has_enlarged_counts() {
        let ((read, _write), remaining) = (filled(), remaining(2 * MIB));
        fcntl_setpipe_size(&read, 1 << 20).unwrap();
        let capacity = Capacity::of(remaining);
        assert_eq!(look(&capacity, &read), MIB);
        assert_eq!(remaining.load(Ordering::Relaxed), MIB);
    }

    #[test]
    fn nothing_else_is_claimed_or_enlarged() {
        let (read, write) = filled();
        let before = size(&read);
        let capacity = Capacity::of(remaining(64 * MIB));
        assert!(!capacity.claim(&write));
        rustix::io::read(&read, &mut vec![0; 3 * usize::try_from(before).unwrap() / 4 + 1]).unwrap();
        assert_eq!(look(&capacity, &read), before);
        for path in ["/dev/null", "/"] {
            let file = std::fs::File::open(path).unwrap();
            assert!(capacity.claim(&file) && !capacity.claim(&file));
            capacity.enlarge_if_filling(&file);
        }
    }
}
