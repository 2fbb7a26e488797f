//! The one place where a process is made.
//!
//! clone(2) with CLONE_VM and CLONE_VFORK: the page tables of this process are not copied, and the calling thread waits
//! until the child has become another program or ended, so a failure comes back through shared memory.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::{c_char, c_int, c_void};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::SpawnStage;

/// What the child becomes.
pub(super) struct Image<'a> {
    pub(super) candidates: &'a [CString],
    pub(super) argv: &'a [CString],
    pub(super) environment: &'a [CString],
    pub(super) working_directory: &'a CStr,
    /// Descriptors to become 0, 1 and 2; each is above 2.
    pub(super) streams: [RawFd; 3],
}

/// The kernel's signal set.
const SIGNAL_SET_BYTES: usize = 8;
/// The child's stack. It calls a dozen thin wrappers of system calls.
const STACK_BYTES: usize = 64 * 1024;

/// What parent and child share while the parent waits. The child only reads `plan` and writes `failure`.
struct Shared {
    candidates: *const *const c_char,
    argv: *const *const c_char,
    environment: *const *const c_char,
    working_directory: *const c_char,
    streams: [RawFd; 3],
    failure: Option<(SpawnStage, c_int)>,
}

/// Makes the process; returns once it runs its program.
///
/// # Errors
/// The step that failed and its error number; the process is gone and reaped.
pub(super) fn spawn(image: &Image<'_>) -> Result<(Pid, OwnedFd), (SpawnStage, Errno)> {
    let candidates = pointers(image.candidates);
    let argv = pointers(image.argv);
    let environment = pointers(image.environment);
    let mut shared = Shared {
        candidates: candidates.as_ptr(),
        argv: argv.as_ptr(),
        environment: environment.as_ptr(),
        working_directory: image.working_directory.as_ptr(),
        streams: image.streams,
        failure: None,
    };
    let (pid, pidfd) = clone_and_wait(&mut shared).map_err(|errno| (SpawnStage::Clone, errno))?;
    match shared.failure {
        None => Ok((pid, pidfd)),
        Some((stage, errno)) => {
            // it is ending: this takes its entry from the process table in a moment
            let _ = super::process::reap(pid);
            Err((stage, Errno::from_raw_os_error(errno)))
        }
    }
}

/// The strings as C wants them: pointers, then a null.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
}

fn clone_and_wait(shared: &mut Shared) -> Result<(Pid, OwnedFd), Errno> {
    let mut stack = Vec::<u128>::with_capacity(STACK_BYTES / size_of::<u128>());
    let mut pidfd: c_int = -1;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;

    // SAFETY: sigset_t is plain data, for which zeroes are a value.
    let mut previous: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: both sets are valid, exclusive and outlive the calls.
    // No handler of this process may run in the child, where it would write to this process's memory.
    unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut previous);
    }
    // SAFETY: the child runs `child` on a stack of its own: `stack`'s end is 16-byte aligned (u128) and the buffer
    // outlives the child's use of it, as does `shared`, because CLONE_VFORK holds this thread until the child has left
    // this memory by execve(2) or _exit(2). CLONE_PIDFD writes one c_int to `pidfd`.
    let pid = unsafe {
        libc::clone(
            child,
            stack.as_mut_ptr().add(stack.capacity()).cast::<c_void>(),
            flags,
            ptr::from_mut(shared).cast::<c_void>(),
            &mut pidfd as *mut c_int,
        )
    };
    let failed = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EAGAIN);
    // SAFETY: `previous` was filled in above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &previous, ptr::null_mut()) };

    match Pid::from_raw(pid.max(0)) {
        // SAFETY: clone succeeded, so `pidfd` is a new descriptor that nobody else owns.
        Some(child) => Ok((child, unsafe { OwnedFd::from_raw_fd(pidfd) })),
        None => Err(Errno::from_raw_os_error(failed)),
    }
}

/// The child's side: becomes the program, or notes why not and ends.
///
/// It shares this process's memory, so it calls nothing but thin wrappers of system calls: no allocation, no lock, no
/// panic, no destructor.
extern "C" fn child(argument: *mut c_void) -> c_int {
    // SAFETY: the parent passed a pointer to its `Shared`, and waits: this is the only reference in use.
    let shared = unsafe { &mut *argument.cast::<Shared>() };
    // SAFETY: the pointers in `shared` are valid for as long as the parent waits; see `become_program`.
    let failure = unsafe { become_program(shared) };
    shared.failure = Some(failure);
    // SAFETY: ends this process only, without running anything of the parent's.
    unsafe { libc::_exit(127) }
}

/// # Safety
/// Only in a child of clone(2) with CLONE_VM and CLONE_VFORK, all signals blocked; `shared` holds null-terminated
/// arrays of C strings.
unsafe fn become_program(shared: &Shared) -> (SpawnStage, c_int) {
    // SAFETY: system calls on this process's own state, with pointers that the caller vouches for.
    unsafe {
        if libc::setsid() < 0 {
            return (SpawnStage::Setsid, errno());
        }
        libc::umask(0o022);
        for (number, stream) in (0..).zip(shared.streams) {
            if libc::dup2(stream, number) < 0 {
                return (SpawnStage::Dup, errno());
            }
        }
        if libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) < 0 {
            return (SpawnStage::CloseRange, errno());
        }
        // after close_range: /proc/self/fd/N must not lead anywhere
        if libc::chdir(shared.working_directory) < 0 {
            return (SpawnStage::Chdir, errno());
        }
        default_signals();
        (SpawnStage::Exec, exec_first(shared))
    }
}

/// execve(2) itself puts caught signals back to their default, but keeps ignored ones ignored.
///
/// # Safety
/// As [`become_program`].
unsafe fn default_signals() {
    // SAFETY: plain system calls; the sets are valid. Signals that cannot be changed answer EINVAL, which is fine.
    unsafe {
        // the kernel's own sigaction, since the C library keeps two signals from its callers: all zeroes is SIG_DFL
        let default = [0_u64; 8];
        for signal in 1..=64 {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), ptr::null::<u64>(), SIGNAL_SET_BYTES);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
    }
}

/// Tries one candidate after the other, as execvp(3) does; returns the error number if none can be run.
///
/// # Safety
/// As [`become_program`].
unsafe fn exec_first(shared: &Shared) -> c_int {
    // SAFETY: the arrays are null-terminated, so `next` stays inside of `candidates`.
    unsafe {
        let mut denied = false;
        let mut last = libc::ENOENT;
        let mut next = shared.candidates;
        while !(*next).is_null() {
            libc::execve(*next, shared.argv, shared.environment);
            last = errno();
            match last {
                libc::EACCES => denied = true,
                libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
                _ => return last,
            }
            next = next.add(1);
        }
        if denied { libc::EACCES } else { last }
    }
}

/// # Safety
/// None beyond being in a thread with a thread-local errno, which a CLONE_VM child shares with its waiting parent.
unsafe fn errno() -> c_int {
    // SAFETY: always valid to read in a thread.
    unsafe { *libc::__errno_location() }
}
