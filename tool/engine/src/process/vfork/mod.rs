//! The one place where a process is made.
//!
//! clone3(2), or clone(2) where there is none, with CLONE_VM and CLONE_VFORK: the page tables of this process are not
//! copied, and the calling thread waits until the child has become another program or ended, so a failure comes back
//! through shared memory.

mod child;
mod clone;

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::Ordering;

use libc::c_char;
use rustix::io::Errno;
use rustix::process::Pid;
use telexec_executor::SpawnStage;

use self::child::{
    Ids, Orphanage, SharedWithChild, Trial, become_parent_of_orphan, become_program, close_files_and_end,
};
use self::clone::{Dumpable, clone_and_wait, clone3};
use super::children::OwnChild;
use super::rlimits;

/// Who the child becomes; see credentials(7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// For errors.
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// All supplementary groups.
    pub(crate) groups: Vec<u32>,
}

/// The cgroups that the child is born in, or enters first of all.
#[derive(Default)]
pub(crate) struct CgroupEntry {
    /// A cgroup v2 directory to be born in. Only where [`can_be_born_in_a_cgroup`].
    pub(crate) birthplace: Option<OwnedFd>,
    /// `cgroup.procs` files of cgroups to enter.
    pub(crate) joins: Vec<OwnedFd>,
}

/// What the child becomes.
pub(crate) struct Image<'a> {
    pub(crate) candidates: &'a [CString],
    pub(crate) argv: &'a [CString],
    pub(crate) environment: &'a [CString],
    pub(crate) working_directory: &'a CStr,
    /// Descriptors to become 0, 1 and 2; each is above 2.
    pub(crate) streams: [RawFd; 3],
    /// They are a terminal, to become the controlling one.
    pub(crate) terminal: bool,
    pub(crate) cgroups: &'a CgroupEntry,
    pub(crate) rlimits: &'a [libc::rlimit64; rlimits::KINDS],
    /// `None`: those of this process.
    pub(crate) credentials: Option<&'a Credentials>,
    /// The step that is to fail.
    #[cfg(test)]
    pub(crate) fault: Option<SpawnStage>,
}

/// Makes the process; returns once it runs its program.
///
/// # Errors
/// The step that failed and its error number; the process is gone and reaped.
pub(crate) fn spawn(image: &Image<'_>, child: OwnChild) -> Result<(OwnChild, Pid, OwnedFd), (SpawnStage, Errno)> {
    let candidates = pointers(image.candidates);
    let argv = pointers(image.argv);
    let environment = pointers(image.environment);
    let joins = numbers(&image.cgroups.joins);
    let ids = image.credentials.map(|credentials| Ids {
        uid: credentials.uid,
        gid: credentials.gid,
        groups: credentials.groups.as_ptr(),
        group_count: credentials.groups.len(),
    });
    let mut shared = SharedWithChild {
        candidates: candidates.as_ptr(),
        argv: argv.as_ptr(),
        environment: environment.as_ptr(),
        working_directory: image.working_directory.as_ptr(),
        streams: image.streams,
        terminal: image.terminal,
        joins: joins.as_ptr(),
        join_count: joins.len(),
        rlimits: image.rlimits.as_ptr(),
        credentials: ids.as_ref().map_or(ptr::null(), ptr::from_ref),
        pid: child.pid(),
        #[cfg(test)]
        fault: image.fault,
        failure: None,
    };
    if child.is_unwanted() {
        return Err((SpawnStage::Clone, Errno::CANCELED));
    }
    let _dumpable = ids.is_some().then(Dumpable::keep);
    let birthplace = image.cgroups.birthplace.as_ref();
    let (pid, pidfd) = clone_and_wait(become_program, ptr::from_mut(&mut shared).cast(), birthplace)
        .map_err(|errno| (SpawnStage::Clone, errno))?;
    // the child has noted it; but one that was killed before its first step has not
    child.pid().store(pid.as_raw_nonzero().get(), Ordering::Release);
    match shared.failure {
        None => Ok((child, pid, pidfd)),
        Some((stage, errno)) => {
            child.reap_soon(&pidfd);
            Err((stage, Errno::from_raw_os_error(errno)))
        }
    }
}

/// Makes a process that is the only one of a session of its own, has lost its parent, and waits for its death (which
/// comes by itself after some seconds).
///
/// # Errors
/// It cannot be made, or cannot enter its cgroup.
pub(crate) fn leave_orphan(cgroups: &CgroupEntry) -> Result<(), Errno> {
    let joins = numbers(&cgroups.joins);
    let child = OwnChild::expect();
    let mut orphanage = Orphanage { joins: joins.as_ptr(), join_count: joins.len(), pid: child.pid(), failure: 0 };
    let parent = ptr::from_mut(&mut orphanage).cast();
    let (pid, pidfd) = clone_and_wait(become_parent_of_orphan, parent, cgroups.birthplace.as_ref())?;
    child.pid().store(pid.as_raw_nonzero().get(), Ordering::Release);
    child.reap_soon(&pidfd);
    match orphanage.failure {
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

/// Makes a process that closes its files and ends: where that fails, no program could be started.
///
/// # Errors
/// The system call that failed, and its error number.
pub(crate) fn try_out() -> Result<(), (&'static str, Errno)> {
    let child = OwnChild::expect();
    let mut trial = Trial { pid: child.pid(), failure: 0 };
    let (pid, pidfd) = clone_and_wait(close_files_and_end, ptr::from_mut(&mut trial).cast(), None)
        .map_err(|errno| ("clone(2) with CLONE_PIDFD", errno))?;
    child.pid().store(pid.as_raw_nonzero().get(), Ordering::Release);
    child.reap_soon(&pidfd);
    match trial.failure {
        0 => Ok(()),
        errno => Err(("close_range(2)", Errno::from_raw_os_error(errno))),
    }
}

/// A process can be made in a cgroup v2, rather than enter it by itself.
pub(crate) fn can_be_born_in_a_cgroup() -> bool {
    clone3::is_there()
}

/// The strings as C wants them: pointers, then a null.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
}

fn numbers(files: &[OwnedFd]) -> Vec<RawFd> {
    files.iter().map(AsRawFd::as_raw_fd).collect()
}
