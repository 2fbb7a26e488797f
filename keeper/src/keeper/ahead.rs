//! A process that is made ahead of the next start, in the cgroup where that is likely to be.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

use rustix::process::{Signal, kill_process};
use telexec_spawn::{Image, Waiter, can_be_born_in_a_cgroup, fork_ahead};

use super::Keeper;
use crate::children::Child;

/// It waits for what it becomes.
pub(super) struct Waiting {
    cgroup: CString,
    /// As a child: it has no id, so that nobody is told of its end.
    number: u64,
    waiter: Waiter,
}

impl Waiting {
    /// Has it become this. Returns its number, and where it reports; `None`: it is no longer there, or cannot, and ends.
    pub(super) fn become_program(self, image: &Image<'_>) -> Option<(u64, OwnedFd)> {
        Some((self.number, self.waiter.become_program(image)?))
    }
}

impl Keeper {
    /// Makes a process ahead of a start in this cgroup. Where it cannot be made that start makes it, or says why not.
    pub(super) fn prepare(&mut self, cgroup: CString) {
        self.end_waiting();
        if !can_be_born_in_a_cgroup() {
            return;
        }
        let Ok(Some(directory)) = self.cgroup(&cgroup) else { return };
        let Ok((waiter, pid, pidfd)) = fork_ahead(Some(&directory), &self.rlimits) else { return };
        let number = self.children.add(Child::new(pid, pidfd, Some(directory)));
        self.watch_end(number);
        self.waiting = Some(Waiting { cgroup, number, waiter });
    }

    /// Ends what waits: also what does not see that it is no longer needed.
    fn end_waiting(&mut self) {
        let Some(Waiting { number, .. }) = self.waiting.take() else { return };
        if let Some(child) = self.children.get(number) {
            // not what else may be in its cgroup by now
            let _ = kill_process(child.pid, Signal::KILL);
        }
    }

    /// What waits in this cgroup.
    pub(super) fn take_waiting(&mut self, cgroup: &CStr) -> Option<Waiting> {
        self.waiting.take_if(|waiting| *waiting.cgroup == *cgroup)
    }
}
