//! Directories for temporary files that one process and its descendants have to themselves: one tmpfs(5) of limited size, in a mount
//! namespace of theirs. With the last of these processes the kernel removes all that is in them. With them goes an IPC namespace, see
//! ipc_namespaces(7), for shared memory, semaphores and message queues.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::ptr;

use libc::{c_char, c_int, c_ulong};

use crate::child::check;

/// Where they are, and what they are called in the tmpfs; the first one has to be there. It is the last to be covered, since that
/// is where the tmpfs is.
const DIRECTORIES: [(&CStr, &CStr); 3] = [(c"/tmp", c"tmp"), (c"/var/tmp", c"var-tmp"), (c"/dev/shm", c"shm")];

/// So many bytes for each file: what is known of a file takes memory too.
const BYTES_PER_INODE: u64 = 8192;

/// What mount(2) gets, for so many bytes together.
pub(crate) fn options(bytes: u64) -> CString {
    // 0 would be no limit
    let (bytes, inodes) = (bytes.max(1), (bytes / BYTES_PER_INODE).max(16));
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
    let [(tmp, _), others @ ..] = DIRECTORIES;
    let restrictions = libc::MS_NOSUID | libc::MS_NODEV;
    mount(Some(c"tmpfs"), tmp, Some(c"tmpfs"), restrictions, Some(options))?;
    // SAFETY: C strings.
    unsafe {
        check(libc::chdir(tmp.as_ptr()).into())?;
        for (_, name) in DIRECTORIES {
            check(libc::mkdir(name.as_ptr(), 0o700).into())?;
            check(libc::chown(name.as_ptr(), uid, gid).into())?;
        }
    }
    for (directory, name) in others.into_iter() {
        match mount(Some(name), directory, None, libc::MS_BIND, None) {
            Err(libc::ENOENT) => {}
            mounted => mounted?,
        }
    }
    let [(_, name), ..] = DIRECTORIES;
    mount(Some(name), tmp, None, libc::MS_BIND, None)
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

/// Tries whether this process may give such directories to a process of this user, and become that. Nothing of it is left.
///
/// # Errors
/// It may not: it is not root, or lacks a capability (CAP_SYS_ADMIN, CAP_SETUID, CAP_SETGID), or its user namespace has no such id;
/// or there is no `/tmp`.
pub fn try_out(uid: u32) -> io::Result<()> {
    let try_out = move || {
        leave_namespaces()?;
        mount_directories(&options(1 << 20), uid, uid)?;
        // the kernel's own calls: those of the C library would change all threads
        // SAFETY: no pointers are passed.
        unsafe {
            check(libc::syscall(libc::SYS_setresgid, uid, uid, uid))?;
            check(libc::syscall(libc::SYS_setresuid, uid, uid, uid))
        }
    };
    // namespaces, working directory and ids are a thread's own then, see unshare(2) and credentials(7)
    let tried = std::thread::Builder::new().spawn(try_out)?.join();
    tried.unwrap_or(Err(libc::EIO)).map_err(io::Error::from_raw_os_error)
}
