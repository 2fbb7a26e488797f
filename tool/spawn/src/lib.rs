//! One process from one description, and how it ended: system calls, and nothing else.
//!
//! There are three ways to make it. [`vfork`] shares the memory of this process with the child until that runs its program, and
//! waits for that: the fast way in a large process, on a thread that may wait. [`fork`] gives the child a copy of this
//! process's memory and waits for nothing: the way for a small process that must not wait for anyone. A [`Starter`] makes children
//! as by [`vfork`] on behalf of such a process, ahead of time.
//!
//! A child that was made is its caller's to reap.
//!
//! [`elastic_pool`] has threads for calls that others may hold up.

#![cfg(target_os = "linux")]

mod child;
mod clone;
pub mod elastic_pool;
pub mod exit;
pub mod private;
mod probes;
pub mod rlimits;
mod serve;
mod starter;
mod step;

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use libc::c_char;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

use self::child::{Ids, REPORT_BYTES, SharedWithChild, become_program};
use self::clone::{Dumpable, clone_and_wait, clone3};
use self::probes::{Orphanage, Trial, become_parent_of_orphan, close_files_and_end};
pub use self::starter::Starter;
pub use self::step::Step;

/// Who the child becomes; see credentials(7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// For errors.
    pub name: String,
    /// The user.
    pub uid: u32,
    /// The user's own group.
    pub gid: u32,
    /// All supplementary groups.
    pub groups: Vec<u32>,
}

/// The cgroups that the child is born in, or enters first of all.
#[derive(Debug, Default)]
pub struct CgroupEntry {
    /// A cgroup v2 directory to be born in. Only where [`can_be_born_in_a_cgroup`].
    pub birthplace: Option<OwnedFd>,
    /// `cgroup.procs` files of cgroups to enter.
    pub joins: Vec<OwnedFd>,
}

/// What the child becomes.
#[derive(Debug)]
pub struct Image<'a> {
    /// Paths to try in this order, as execvp(3) does.
    pub candidates: &'a [CString],
    /// A file to run in place of them.
    pub executable: Option<RawFd>,
    /// Its arguments, from the zeroth on.
    pub argv: &'a [CString],
    /// All of its environment, as `NAME=VALUE`.
    pub environment: &'a [CString],
    /// Where it starts.
    pub working_directory: &'a CStr,
    /// Descriptors to become 0, 1 and 2; each is above 2.
    pub streams: [RawFd; 3],
    /// They are a terminal, to become the controlling one.
    pub terminal: bool,
    /// Where it is kept.
    pub cgroups: &'a CgroupEntry,
    /// Files whose owners change before anything else.
    pub chowns: &'a [Chown],
    /// Its limits, as far as this process may raise them.
    pub rlimits: &'a [libc::rlimit64; rlimits::KINDS],
    /// `None`: those of this process.
    pub credentials: Option<&'a Credentials>,
    /// It has [private directories](private), of so many bytes together. Only root can give it these, and with credentials.
    pub private_directories: Option<u64>,
    /// Nothing that it executes gives it privileges.
    pub no_new_privileges: bool,
    /// The step that is to fail, for tests of what becomes of it.
    pub fault: Option<Step>,
}

/// A file that is to be another user's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chown {
    /// Its descriptor.
    pub file: RawFd,
    /// Its owner.
    pub uid: u32,
    /// Its group; `None`: as it is.
    pub gid: Option<u32>,
}

/// A child on its way to its program, as other threads see it: the thread that makes it waits.
#[derive(Debug, Default)]
pub struct PendingChild {
    pid: AtomicI32,
    cancelled: AtomicBool,
}

impl PendingChild {
    /// Its process, which may have ended. `None`: there is none yet.
    pub fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.pid.load(Ordering::SeqCst))
    }

    /// It never executes its program after this. Returns the process, if there is one already: the caller must kill that.
    pub fn cancel(&self) -> Option<Pid> {
        self.cancelled.store(true, Ordering::SeqCst);
        self.pid()
    }

    /// This process is it. False: it was cancelled.
    fn note(&self, pid: i32) -> bool {
        // in this order, and the other way round in `cancel`: one of the two sees the other
        self.pid.store(pid, Ordering::SeqCst);
        !self.cancelled.load(Ordering::SeqCst)
    }
}

/// Why no program runs.
#[derive(Debug)]
pub enum Failed {
    /// There is no process.
    NotMade(Errno),
    /// The process has failed at this step, and is to be reaped: it has ended, or is about to.
    Ended {
        /// The step.
        step: Step,
        /// Its error number.
        errno: Errno,
        /// The process.
        pid: Pid,
        /// And its descriptor.
        pidfd: OwnedFd,
    },
}

/// What the child reads, in arrays as C wants them: what they point to is the image's.
struct Prepared<'a> {
    candidates: Vec<*const c_char>,
    argv: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    joins: Vec<RawFd>,
    ids: Option<Ids>,
    private_directories: Option<CString>,
    image: &'a Image<'a>,
}

impl<'a> Prepared<'a> {
    fn new(image: &'a Image<'a>) -> Self {
        Self {
            candidates: pointers(image.candidates),
            argv: pointers(image.argv),
            environment: pointers(image.environment),
            joins: numbers(&image.cgroups.joins),
            ids: image.credentials.map(|credentials| Ids {
                uid: credentials.uid,
                gid: credentials.gid,
                groups: credentials.groups.as_ptr(),
                group_count: credentials.groups.len(),
            }),
            private_directories: image.private_directories.map(private::options),
            image,
        }
    }

    fn shared(&self, pending: *const PendingChild, report: RawFd) -> SharedWithChild {
        SharedWithChild {
            candidates: self.candidates.as_ptr(),
            argv: self.argv.as_ptr(),
            environment: self.environment.as_ptr(),
            working_directory: self.image.working_directory.as_ptr(),
            streams: self.image.streams,
            terminal: self.image.terminal,
            joins: self.joins.as_ptr(),
            join_count: self.joins.len(),
            chowns: self.image.chowns.as_ptr(),
            chown_count: self.image.chowns.len(),
            rlimits: self.image.rlimits.as_ptr(),
            credentials: self.ids.as_ref().map_or(ptr::null(), ptr::from_ref),
            private_directories: self.private_directories.as_ref().map_or(ptr::null(), |options| options.as_ptr()),
            no_new_privileges: self.image.no_new_privileges,
            pending,
            fault: self.image.fault,
            report,
            executable: self.image.executable.unwrap_or(-1),
            failure: None,
        }
    }
}

/// Makes the process; returns once it runs its program.
///
/// # Errors
/// The step that failed, and its error number; [`Step::Clone`] and ECANCELED: it was cancelled.
pub fn vfork(image: &Image<'_>, pending: &PendingChild) -> Result<(Pid, OwnedFd), Failed> {
    let prepared = Prepared::new(image);
    if pending.cancelled.load(Ordering::SeqCst) {
        return Err(Failed::NotMade(Errno::CANCELED));
    }
    let mut shared = prepared.shared(pending, -1);
    let _dumpable = image.credentials.is_some().then(Dumpable::keep);
    let birthplace = image.cgroups.birthplace.as_ref();
    let made = clone_and_wait(become_program, ptr::from_mut(&mut shared).cast(), birthplace, &pending.pid);
    let (pid, pidfd) = made.map_err(Failed::NotMade)?;
    match shared.failure {
        None => Ok((pid, pidfd)),
        Some((step, errno)) => Err(Failed::Ended { step, errno: Errno::from_raw_os_error(errno), pid, pidfd }),
    }
}

/// A process that was made, and may be on its way to its program yet. Dropping it does not end or reap the process.
#[derive(Debug)]
pub struct Forked {
    /// The process.
    pub pid: Pid,
    /// Its descriptor.
    pub pidfd: OwnedFd,
    /// Where it reports: the end of a pipe, see [`Forked::outcome`].
    pub report: OwnedFd,
}

impl Forked {
    /// What a process reports in this pipe: it runs its program, or has failed at a step, and is about to end; `None`: neither
    /// yet.
    pub fn outcome(report: &OwnedFd) -> Option<Result<(), (Step, Errno)>> {
        let mut message = [0; REPORT_BYTES];
        match rustix::io::read(report, &mut message) {
            // closed on exec; or it was killed on its way, which its exit status says
            Ok(0) => Some(Ok(())),
            Ok(_) => {
                let [step, a, b, c, d] = message;
                let errno = Errno::from_raw_os_error(i32::from_le_bytes([a, b, c, d]));
                Some(Err((Step::from_number(step).unwrap_or(Step::Clone), errno)))
            }
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(errno) => Some(Err((Step::Clone, errno))),
        }
    }
}

/// Makes the process, which has a copy of this one's memory, and does not wait for it. Only by the one thread of this process that makes
/// any, and whose memory the child needs.
///
/// # Errors
/// There is no process, for want of what this error number says.
pub fn fork(image: &Image<'_>) -> Result<Forked, Errno> {
    let (report, written) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let prepared = Prepared::new(image);
    let mut shared = prepared.shared(ptr::null(), written.as_raw_fd());
    let birthplace = image.cgroups.birthplace.as_ref();
    let (pid, pidfd) = clone::fork(become_program, ptr::from_mut(&mut shared).cast(), birthplace)?;
    Ok(Forked { pid, pidfd, report })
}

/// Makes a process that is the only one of a session of its own, has lost its parent, and waits for its death (which
/// comes by itself after some seconds). Its parent is returned: it has ended, or is about to.
///
/// # Errors
/// It cannot be made, or cannot enter its cgroup; with the parent if that is there.
pub fn leave_orphan(cgroups: &CgroupEntry, pending: &PendingChild) -> Result<(Pid, OwnedFd), Failed> {
    let joins = numbers(&cgroups.joins);
    let mut orphanage = Orphanage { joins: joins.as_ptr(), join_count: joins.len(), pending, failure: 0 };
    let parent = ptr::from_mut(&mut orphanage).cast();
    let made = clone_and_wait(become_parent_of_orphan, parent, cgroups.birthplace.as_ref(), &pending.pid);
    let (pid, pidfd) = made.map_err(Failed::NotMade)?;
    match orphanage.failure {
        0 => Ok((pid, pidfd)),
        errno => Err(Failed::Ended { step: Step::Cgroup, errno: Errno::from_raw_os_error(errno), pid, pidfd }),
    }
}

/// Makes a process that closes its files and ends: where that fails, no program could be started.
///
/// # Errors
/// The step that failed, and its error number.
pub fn try_out(pending: &PendingChild) -> Result<(Pid, OwnedFd), Failed> {
    let mut trial = Trial { pending, failure: 0 };
    let made = clone_and_wait(close_files_and_end, ptr::from_mut(&mut trial).cast(), None, &pending.pid);
    let (pid, pidfd) = made.map_err(Failed::NotMade)?;
    match trial.failure {
        0 => Ok((pid, pidfd)),
        errno => Err(Failed::Ended { step: Step::CloseRange, errno: Errno::from_raw_os_error(errno), pid, pidfd }),
    }
}

/// Joins a new session keyring, in a child that shares no memory with its parent: that of this process may hold secrets. See
/// session-keyring(7).
///
/// # Errors
/// The kernel has no memory for one.
pub fn leave_keyring() -> std::io::Result<()> {
    child::leave_keyring().map_err(std::io::Error::from_raw_os_error)
}

/// A process can be made in a cgroup v2, rather than enter it by itself.
pub fn can_be_born_in_a_cgroup() -> bool {
    clone3::is_there()
}

/// The strings as C wants them: pointers, then a null.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
}

fn numbers(files: &[OwnedFd]) -> Vec<RawFd> {
    files.iter().map(AsRawFd::as_raw_fd).collect()
}
