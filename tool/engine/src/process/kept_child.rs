//! A child of a keeper, as the engine knows it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use telexec_keeper::wire::Report;
use telexec_spawn::Step;
use tokio_util::sync::CancellationToken;

use super::control::Ended;
use crate::lock::lock;

/// A child of the keeper, from before it exists until it is released.
#[derive(Debug)]
pub(crate) struct KeptChild {
    pub(super) id: u64,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
    ended: CancellationToken,
}

#[derive(Debug)]
pub(super) enum State {
    /// It may be made.
    Expected,
    /// It is not to be made.
    Unwanted,
    Running(Pid),
    NotStarted(Step, Errno),
    Ended(Pid, Ended),
}

impl KeptChild {
    pub(super) fn new(id: u64, state: State) -> Self {
        Self { id, state: Mutex::new(state), changed: Condvar::new(), ended: CancellationToken::new() }
    }

    pub(super) fn take(&self, report: Report) {
        let mut state = lock(&self.state);
        match (report, &*state) {
            (Report::Started { pid, .. }, _) => {
                if let Some(pid) = Pid::from_raw(pid) {
                    *state = State::Running(pid);
                }
            }
            (Report::NotStarted { step, errno, .. }, _) => {
                *state = State::NotStarted(step, Errno::from_raw_os_error(errno));
            }
            (Report::Exited { exit, at, .. }, State::Running(pid)) => {
                *state = State::Ended(*pid, Ended { at: Some(at), ..exit.into() });
                self.ended.cancel();
            }
            (Report::Exited { .. } | Report::Held { .. } | Report::AllHeld, _) => {}
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Its process, while it is not released.
    pub(super) fn pid(&self) -> Option<Pid> {
        match *lock(&self.state) {
            State::Running(pid) | State::Ended(pid, _) => Some(pid),
            State::Expected | State::Unwanted | State::NotStarted(..) => None,
        }
    }

    /// The keeper is gone, and what it knew. Returns the process, if it runs on.
    pub(super) fn lose(&self) -> Option<OwnedFd> {
        let pid = match *lock(&self.state) {
            State::Running(pid) => Some(pid),
            State::Expected | State::Unwanted | State::NotStarted(..) | State::Ended(..) => None,
        };
        let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        if pidfd.is_none() {
            self.end_unknown();
        }
        pidfd
    }

    /// It has ended, and nobody knows how.
    pub(super) fn end_unknown(&self) {
        let mut state = lock(&self.state);
        *state = match *state {
            State::Running(pid) => State::Ended(pid, Ended::unknown()),
            State::Expected | State::Unwanted => State::NotStarted(Step::Clone, Errno::PIPE),
            State::NotStarted(..) | State::Ended(..) => return,
        };
        drop(state);
        self.ended.cancel();
        self.changed.notify_all();
    }

    /// Returns when it has ended.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// How it has ended.
    ///
    /// # Errors
    /// `WouldBlock` if it has not.
    pub(crate) fn exit_status(&self) -> io::Result<Ended> {
        match &*lock(&self.state) {
            State::Ended(_, ended) => Ok(ended.clone()),
            State::Expected | State::Unwanted | State::Running(_) | State::NotStarted(..) => {
                Err(io::ErrorKind::WouldBlock.into())
            }
        }
    }
}
