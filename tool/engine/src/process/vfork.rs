//! Making processes that are children of this one.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::Pid;
use telexec_executor::SpawnStage;
use telexec_spawn::{CgroupEntry, Failed, Image, Step};

use super::children::DirectChild;

/// Makes the process; returns once it runs its program.
///
/// # Errors
/// The step that failed and its error number; the process is gone and reaped.
pub(crate) fn spawn(image: &Image<'_>, child: DirectChild) -> Result<(DirectChild, Pid, OwnedFd), (SpawnStage, Errno)> {
    match telexec_spawn::vfork(image, child.pending()) {
        Ok((pid, pidfd)) => Ok((child, pid, pidfd)),
        Err(failed) => Err(reaped(child, failed)),
    }
}

/// See [`telexec_spawn::leave_orphan`].
///
/// # Errors
/// It cannot be made, or cannot enter its cgroup.
pub(crate) fn leave_orphan(cgroups: &CgroupEntry) -> Result<(), Errno> {
    let child = DirectChild::expect();
    ended(telexec_spawn::leave_orphan(cgroups, child.pending()), child).map_err(|(_, errno)| errno)
}

/// See [`telexec_spawn::try_out`].
///
/// # Errors
/// The system call that failed, and its error number.
pub(crate) fn try_out() -> Result<(), (&'static str, Errno)> {
    let child = DirectChild::expect();
    let call = |(stage, errno)| match stage {
        SpawnStage::CloseRange => ("close_range(2)", errno),
        _ => ("clone(2) with CLONE_PIDFD", errno),
    };
    ended(telexec_spawn::try_out(child.pending()), child).map_err(call)
}

/// Reaps a child that ends by itself.
fn ended(made: Result<(Pid, OwnedFd), Failed>, child: DirectChild) -> Result<(), (SpawnStage, Errno)> {
    let (_, pidfd) = match made {
        Ok(made) => made,
        Err(failed) => return Err(reaped(child, failed)),
    };
    child.reap_soon(&pidfd);
    Ok(())
}

fn reaped(child: DirectChild, failed: Failed) -> (SpawnStage, Errno) {
    match failed {
        Failed::NotMade(errno) => (SpawnStage::Clone, errno),
        Failed::Ended { step, errno, pidfd, .. } => {
            child.reap_soon(&pidfd);
            (stage(step), errno)
        }
    }
}

/// As callers know it.
pub(crate) fn stage(step: Step) -> SpawnStage {
    match step {
        Step::Clone => SpawnStage::Clone,
        Step::Setsid => SpawnStage::Setsid,
        Step::Cgroup => SpawnStage::Cgroup,
        Step::Rlimit => SpawnStage::Rlimit,
        Step::Unshare => SpawnStage::Unshare,
        Step::Mount => SpawnStage::Mount,
        Step::Dup => SpawnStage::Dup,
        Step::CloseRange => SpawnStage::CloseRange,
        Step::Setgroups => SpawnStage::Setgroups,
        Step::Setgid => SpawnStage::Setgid,
        Step::Setuid => SpawnStage::Setuid,
        Step::Chdir => SpawnStage::Chdir,
        Step::Exec => SpawnStage::Exec,
    }
}
