//! Signals for processes that belong to other users than this process.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use telexec_executor::Signal;
use telexec_keeper::agent_user::{self, is_of_execution, unified};

use super::control;
use super::keeper::Kept;

/// Sends signals: itself, or by a keeper that may do more.
#[derive(Debug, Default)]
pub(crate) struct Signaller {
    by_keeper: Option<ByKeeper>,
}

#[derive(Debug)]
struct ByKeeper {
    kept: Arc<Kept>,
    /// The cgroup that those of executions are in.
    directory: String,
}

impl Signaller {
    /// `kept`: by whom, where this process may not.
    pub(crate) fn new(kept: Option<&Arc<Kept>>) -> Self {
        let by_keeper = kept.filter(|kept| kept.is_of_another_user()).and_then(|kept| {
            let own = unified("self").ok().flatten()?;
            let directory = own.strip_suffix(agent_user::CGROUP)?.strip_suffix('/')?.to_owned();
            Some(ByKeeper { kept: Arc::clone(kept), directory })
        });
        Self { by_keeper }
    }

    /// Sends a signal to exactly this process, whose descriptor it is.
    ///
    /// # Errors
    /// ESRCH if it has ended, EPERM if it may be signalled neither by this process nor by the keeper.
    pub(crate) fn send(&self, pid: i32, pidfd: &OwnedFd, signal: Signal) -> io::Result<()> {
        match (control::send(pidfd, signal), &self.by_keeper) {
            (Err(error), Some(by_keeper)) if error.raw_os_error() == Some(libc::EPERM) && by_keeper.reaches(pid) => {
                by_keeper.kept.signal(pidfd, signal)
            }
            (sent, _) => sent,
        }
    }
}

impl ByKeeper {
    fn reaches(&self, pid: i32) -> bool {
        let cgroup = unified(&pid.to_string()).ok().flatten();
        cgroup.is_some_and(|cgroup| is_of_execution(&self.directory, &cgroup))
    }
}
