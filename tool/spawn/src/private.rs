//! Directories for temporary files that one process and its descendants have to themselves: one tmpfs(5) of limited size, in a mount
//! namespace of theirs. With the last of these processes the kernel removes all that is in them. With them goes an IPC namespace, see
//! ipc_namespaces(7), for shared memory, semaphores and message queues, and the directory of these queues.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::iter;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use libc::{c_char, c_int, c_ulong};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{WaitId, WaitIdOptions, waitid};

use crate::child::check;
use crate::{CgroupEntry, Credentials, Failed, Image, PendingChild, Step, rlimits, vfork};

/// The first of them, where its user is at home.
pub const HOME: &CStr = c"/tmp";

/// What that is called in the tmpfs.
const HOME_NAME: &CStr = c"tmp";

/// The others, as far as there are such directories.
const OTHERS: [(&CStr, &CStr); 2] = [(c"/var/tmp", c"var-tmp"), (c"/dev/shm", c"shm")];

/// Has the message queues of the IPC namespace, where there is such a directory; see mq_overview(7).
const QUEUES: &CStr = c"/dev/mqueue";

/// So many bytes for each file: what is known of a file takes memory too.
const BYTES_PER_INODE: u64 = 8192;

/// What mount(2) gets, for so many bytes together.
pub(crate) fn options(bytes: u64) -> CString {
    // 0, and what the kernel cannot count, would be no limit
    let bytes = bytes.clamp(1, 1 << 50);
    let inodes = (bytes / BYTES_PER_INODE).max(16);
    // no NUL is in it
    CString::new(format!("mode=0755,size={bytes},nr_inodes={inodes}")).unwrap_or_default()
}

/// Leaves the namespaces that they replace. Allocates nothing.
pub(crate) fn leave_namespaces() -> Result<(), c_int> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWIPC) }.into())
}

/// Mounts them for this user, in a mount namespace and with a working directory that are this thread's own; it has another working
/// directory then. Allocates nothing.
pub(crate) fn mount_directories(options: &CStr, uid: u32, gid: u32) -> Result<(), c_int> {
    // what is mounted or unmounted elsewhere is so here too, but not the other way round
    mount(None, c"/", None, libc::MS_REC | libc::MS_SLAVE, None)?;
    let restrictions = libc::MS_NOSUID | libc::MS_NODEV;
    mount(Some(c"tmpfs"), HOME, Some(c"tmpfs"), restrictions, Some(options))?;
    // SAFETY: C strings.
    unsafe {
        check(libc::chdir(HOME.as_ptr()).into())?;
        for name in iter::once(HOME_NAME).chain(OTHERS.map(|(_, name)| name)) {
            check(libc::mkdir(name.as_ptr(), 0o700).into())?;
            check(libc::chown(name.as_ptr(), uid, gid).into())?;
        }
    }
    for (directory, name) in OTHERS {
        unless_missing(mount(Some(name), directory, None, libc::MS_BIND, None))?;
    }
    // where the tmpfs itself was until now
    mount(Some(HOME_NAME), HOME, None, libc::MS_BIND, None)?;
    let flags = restrictions | libc::MS_NOEXEC;
    match mount(Some(c"mqueue"), QUEUES, Some(c"mqueue"), flags, None) {
        // a kernel without them
        Err(libc::ENODEV) => Ok(()),
        mounted => unless_missing(mounted),
    }
}

/// There is nothing to cover where no directory is.
fn unless_missing(mounted: Result<(), c_int>) -> Result<(), c_int> {
    if mounted == Err(libc::ENOENT) { Ok(()) } else { mounted }
}

fn mount(
    source: Option<&CStr>,
    target: &CStr,
    kind: Option<&CStr>,
    flags: c_ulong,
    options: Option<&CStr>,
) -> Result<(), c_int> {
    let pointer = |text: Option<&CStr>| text.map_or(ptr::null::<c_char>(), CStr::as_ptr);
    // SAFETY: null, or C strings.
    check(
        unsafe { libc::mount(pointer(source), target.as_ptr(), pointer(kind), flags, pointer(options).cast()) }.into(),
    )
}

/// Tries whether this process may give such directories to a process of this user, with no groups but that of the same number. The
/// process becomes no program, and ends. Blocks until it has.
///
/// # Errors
/// The step that failed, and its error number.
pub fn try_out(uid: u32) -> Result<(), (Step, Errno)> {
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|errno| (Step::Dup, errno))?;
    let credentials = Credentials { name: String::new(), uid, gid: uid, groups: Vec::new() };
    let image = Image {
        // none: executing one is the last step
        candidates: &[],
        executable: None,
        argv: &[],
        environment: &[],
        working_directory: HOME,
        streams: [null.as_raw_fd(); 3],
        terminal: false,
        cgroups: &CgroupEntry::default(),
        chowns: &[],
        rlimits: &rlimits::defaults(),
        credentials: Some(&credentials),
        private_directories: Some(TRIAL_BYTES),
        no_new_privileges: true,
        fault: None,
    };
    let (step, errno, pidfd) = match vfork(&image, &PendingChild::default()) {
        Ok((_, pidfd)) => (Step::Exec, Errno::IO, pidfd),
        Err(Failed::NotMade(errno)) => return Err((Step::Clone, errno)),
        Err(Failed::Ended { step, errno, pidfd, .. }) => (step, errno, pidfd),
    };
    let _ = retry_on_intr(|| waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED));
    if step == Step::Exec { Ok(()) } else { Err((step, errno)) }
}

/// Enough for one that does nothing.
const TRIAL_BYTES: u64 = 1 << 20;
