//! A process that is made ahead of the next start, in the cgroup where that is likely to be: by a starter, which does nothing else.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use telexec_spawn::{Image, Starter, exit};

use super::{Keeper, Source};
use crate::children::Child;

/// The starter, and the one process that it has made, or is about to make.
pub(super) struct Ahead {
    starter: Starter,
    made: Made,
}

enum Made {
    /// None.
    Nothing,
    /// It has not said so yet. `is_wanted`: it is to wait.
    Soon { cgroup: CString, directory: OwnedFd, is_wanted: bool },
    /// It waits for what it becomes, as the child with this number, which has no id.
    Waiting { cgroup: CString, number: u64 },
    /// It is on its way to its program, or ends.
    Leaving { number: u64 },
}

impl Ahead {
    /// Has the process that waits become this. Returns where it reports; `None`: it cannot.
    pub(super) fn start(&self, image: &Image<'_>) -> Option<OwnedFd> {
        self.starter.start(image)
    }
}

impl Keeper {
    /// Has a process made ahead of a start in this cgroup. Where that cannot be done the start makes it, or says why not.
    pub(super) fn prepare(&mut self, cgroup: CString) {
        self.end_waiting();
        let Ok(Some(directory)) = self.cgroup(&cgroup) else { return };
        if self.ahead.is_none() {
            let Ok(starter) = Starter::new(&self.rlimits) else { return };
            if epoll::add(&self.epoll, &starter, Source::Starter.data(), epoll::EventFlags::IN).is_err() {
                return;
            }
            self.ahead = Some(Ahead { starter, made: Made::Nothing });
        }
        let Some(Ahead { starter, made: made @ Made::Nothing }) = &mut self.ahead else { return };
        match starter.make(Some(&directory)) {
            Ok(()) => *made = Made::Soon { cgroup, directory, is_wanted: true },
            Err(_) => self.lose_starter(),
        }
    }

    /// What waits is not needed any more.
    pub(super) fn end_waiting(&mut self) {
        let Some(Ahead { made, .. }) = &mut self.ahead else { return };
        match made {
            Made::Soon { is_wanted, .. } => *is_wanted = false,
            Made::Waiting { number, .. } => {
                let number = *number;
                *made = Made::Leaving { number };
                self.kill_alone(number);
            }
            Made::Nothing | Made::Leaving { .. } => {}
        }
    }

    /// Not what else may be in its cgroup.
    fn kill_alone(&mut self, number: u64) {
        if let Some(child) = self.children.get(number) {
            let _ = kill_process(child.pid, Signal::KILL);
        }
    }

    /// The starter has something to say.
    pub(super) fn hear_starter(&mut self) {
        let Some(Ahead { starter, made }) = &mut self.ahead else { return };
        let pid = match starter.made() {
            Ok(pid) => pid,
            Err(Errno::AGAIN) => return,
            Err(_) => return self.lose_starter(),
        };
        match std::mem::replace(made, Made::Nothing) {
            Made::Soon { cgroup, directory, is_wanted } => {
                // its end may have been seen before, and then it is no child any more
                let Some((pid, pidfd)) = pid.and_then(|pid| Some((pid, own_pidfd(pid).ok()?))) else { return };
                let number = self.children.add(Child::new(pid, pidfd, Some(directory)));
                self.watch_end(number);
                let Some(Ahead { made, .. }) = &mut self.ahead else { return };
                *made = match is_wanted {
                    true => Made::Waiting { cgroup, number },
                    false => Made::Leaving { number },
                };
                if !is_wanted {
                    self.kill_alone(number);
                }
            }
            // nothing was asked for
            before => *made = before,
        }
    }

    /// The number of the process that waits in this cgroup. One that is not there yet does not come any more.
    pub(super) fn waiting_in(&mut self, cgroup: &CStr) -> Option<u64> {
        self.hear_starter();
        match &mut self.ahead.as_mut()?.made {
            Made::Waiting { cgroup: its, number } if **its == *cgroup => Some(*number),
            Made::Soon { cgroup: its, is_wanted, .. } if **its == *cgroup => {
                *is_wanted = false;
                None
            }
            _ => None,
        }
    }

    /// It was given its program.
    pub(super) fn leaves(&mut self, number: u64) {
        if let Some(Ahead { made, .. }) = &mut self.ahead {
            *made = Made::Leaving { number };
        }
    }

    /// This child runs its program, or has ended: the starter can make another one.
    pub(super) fn has_left(&mut self, number: u64) {
        if let Some(Ahead { made, .. }) = &mut self.ahead
            && matches!(made, Made::Waiting { number: its, .. } | Made::Leaving { number: its } if *its == number)
        {
            *made = Made::Nothing;
        }
    }

    /// It is gone: there is another one when it is needed.
    fn lose_starter(&mut self) {
        self.end_waiting();
        if let Some(Ahead { starter, .. }) = self.ahead.take() {
            self.unwatch(&starter);
        }
    }
}

/// The descriptor of a child of this process.
fn own_pidfd(pid: Pid) -> std::io::Result<OwnedFd> {
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    match exit::status(pid) {
        Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(pidfd),
    }
}
