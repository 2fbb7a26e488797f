//! The file descriptors that connections leave to running commands.

use std::os::fd::AsRawFd;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};
use rustix::stdio::stdin;

/// The most that are reserved: for ends of commands above all, which take a few each. A start takes some fifteen.
const MAX_RESERVED: u64 = 256;

/// The limit of open descriptors, and how many of them are not for connections.
#[derive(Clone, Copy)]
pub(crate) struct Descriptors {
    limit: u64,
    reserved: u64,
}

impl Descriptors {
    /// A quarter of them is reserved, and at most 256.
    pub(crate) fn new() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self { limit, reserved: (limit / 4).min(MAX_RESERVED) }
    }

    /// How many connections may be pending: as many as this, and at most half of the descriptors.
    pub(crate) fn max_pending(self, max: u64) -> usize {
        usize::try_from(max.min(self.limit / 2)).unwrap_or(usize::MAX)
    }

    /// How many connections may be pending, and how many may be open, even if only reserved descriptors are left: a quarter
    /// of these each.
    pub(crate) fn max_in_reserve(self) -> usize {
        usize::try_from(self.reserved / 4).unwrap_or(usize::MAX)
    }

    /// How many are not reserved.
    pub(crate) fn unreserved(self) -> u64 {
        self.limit - self.reserved
    }

    /// Whether only reserved ones are left.
    pub(crate) fn are_few(self) -> bool {
        // a new one has the lowest free number: open(2)
        let Ok(lowest) = fcntl_dupfd_cloexec(stdin(), 0) else { return true };
        u64::try_from(lowest.as_raw_fd()).is_ok_and(|lowest| lowest >= self.unreserved())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_reserved_are_few() {
        let all = Descriptors::new();
        assert!(!all.are_few() && all.reserved <= MAX_RESERVED);
        assert!(Descriptors { limit: 4, reserved: 4 }.are_few());
        let few = Descriptors { limit: 64, reserved: 16 };
        assert_eq!((few.max_pending(1024), few.max_pending(10), few.max_in_reserve()), (32, 10, 4));
    }
}
