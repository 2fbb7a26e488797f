//! Signals for processes that belong to other users than this process.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use telexec_executor::Signal;
use telexec_keeper::agent_user::{beside, is_below, unified};

use super::control;
use super::keeper::Kept;
use super::table::Process;

/// Sends signals: itself, or by a keeper that may do more.
#[derive(Debug, Default)]
pub(crate) struct Signaller {
    by_keeper: Option<ByKeeper>,
}

#[derive(Debug)]
struct ByKeeper {
    kept: Arc<Kept>,
    /// The cgroup that those of executions are below.
    executions: String,
}

impl Signaller {
    /// `kept`: by whom, if that is another user.
    ///
    /// # Errors
    /// This process is not where such a keeper starts it.
    pub(crate) fn new(kept: Option<&Arc<Kept>>) -> io::Result<Self> {
        let Some(kept) = kept.filter(|kept| kept.keeper.is_of_another_user()) else { return Ok(Self::default()) };
        let own = unified("self")?.unwrap_or_default();
        let executions = beside(&own).ok_or_else(|| {
            io::Error::other(format!(
                "the keeper starts the agent in a cgroup of its own (version 2), and this is {own:?}"
            ))
        })?;
        Ok(Self { by_keeper: Some(ByKeeper { kept: Arc::clone(kept), executions }) })
    }

    /// Sends a signal to exactly this process, whose descriptor it is. By the keeper it is not waited for.
    ///
    /// # Errors
    /// ESRCH if it has ended, EPERM if it may be signalled neither by this process nor by the keeper.
    pub(crate) fn send(&self, process: &Process, pidfd: &OwnedFd, signal: Signal) -> io::Result<()> {
        match (control::send(pidfd, signal), &self.by_keeper) {
            (Err(error), Some(by_keeper))
                if error.raw_os_error() == Some(libc::EPERM) && by_keeper.may_signal(process) =>
            {
                by_keeper.kept.signal(pidfd, signal)
            }
            (sent, _) => sent,
        }
    }
}

impl ByKeeper {
    /// As the keeper decides it.
    fn may_signal(&self, process: &Process) -> bool {
        let cgroup = unified(&process.pid.to_string()).ok().flatten();
        cgroup.is_some_and(|cgroup| is_below(&self.executions, &cgroup))
            || [process.session, process.group].into_iter().any(|leader| self.kept.has_child(leader))
    }
}
