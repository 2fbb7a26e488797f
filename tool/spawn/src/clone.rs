//! Making a child that shares this process's memory or has a copy of it, by clone3(2) or clone(2).
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{c_int, c_long, c_void};
use rustix::io::Errno;
use rustix::process::Pid;

/// The child's stack. It calls some dozens of thin wrappers of system calls.
pub(super) const STACK_BYTES: usize = 64 * 1024;

/// What a child does first and last; it never returns.
pub(super) type Entry = extern "C" fn(*mut c_void) -> c_int;

/// Makes a child that shares this process's memory, in a cgroup v2 if one is given, and waits until it has left it.
/// `entry` gets `argument`, which must be what it expects, and be valid and unused by others until this returns. Its id is
/// stored in `noted` before it can run: in a cgroup that is frozen it could not do so itself.
pub(super) fn clone_and_wait(
    entry: Entry,
    argument: *mut c_void,
    birthplace: Option<&OwnedFd>,
    noted: &AtomicI32,
) -> Result<(Pid, OwnedFd), Errno> {
    let mut stack = Vec::<u128>::with_capacity(STACK_BYTES / size_of::<u128>());
    let _blocked = SignalsBlocked::all();
    // 16-byte aligned (u128) at both ends
    let stack = stack.spare_capacity_mut();
    let (pid, pidfd) = match birthplace {
        // SAFETY: `stack` is a writable, unused buffer that outlives the child's use of it, as does `argument`, because
        // CLONE_VFORK holds this thread until the child has left this memory by execve(2) or _exit(2).
        Some(cgroup) => unsafe { clone_in_cgroup(entry, argument, stack, cgroup, noted) }?,
        // SAFETY: as above.
        None => unsafe { clone(entry, argument, stack) }?,
    };
    // without clone3(2), one that was killed before its first step has not noted it
    noted.store(pid, Ordering::SeqCst);
    let pid = Pid::from_raw(pid).ok_or(Errno::IO)?;
    if pidfd < 0 {
        // a kernel that does not know CLONE_PIDFD; the first child that this can happen to is that of `try_out`
        return Err(Errno::NOSYS);
    }
    // SAFETY: the kernel made `pidfd`, and nothing else owns it.
    Ok((pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

/// clone3(2), in a cgroup v2; the child's id, which is stored in `noted` too, and its descriptor.
///
/// # Safety
/// As [`clone`].
unsafe fn clone_in_cgroup(
    entry: Entry,
    argument: *mut c_void,
    stack: &mut [MaybeUninit<u128>],
    cgroup: &OwnedFd,
    noted: &AtomicI32,
) -> Result<(c_int, RawFd), Errno> {
    let mut pidfd: c_int = -1;
    // SAFETY: plain numbers, for which zeroes are a value.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = (FLAGS | libc::CLONE_PARENT_SETTID) as u64 | CLONE_INTO_CGROUP;
    arguments.pidfd = &raw mut pidfd as u64;
    arguments.parent_tid = noted.as_ptr() as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    arguments.cgroup = u64::try_from(cgroup.as_raw_fd()).map_err(|_| Errno::BADF)?;
    // SAFETY: the caller guarantees it; the numbers are stored in what outlives the call.
    let pid = unsafe { clone3::clone(entry, argument, stack, arguments) }?;
    Ok((pid, pidfd))
}

/// Makes a child of this process's parent that shares this process's memory, in a cgroup v2, and waits until it
/// has left that memory. Its id is stored in `noted` before it can run. Only where [`clone3::is_there`].
///
/// # Safety
/// The child runs `entry` with `argument` on `stack`: both must be fit for that, and no handler of a signal may run in it. `noted`
/// can be written.
pub(super) unsafe fn clone_sibling_and_wait(
    entry: Entry,
    argument: *mut c_void,
    stack: &mut [MaybeUninit<u128>],
    birthplace: RawFd,
    noted: *mut i32,
) -> Result<(), Errno> {
    // SAFETY: plain numbers, for which zeroes are a value.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    // which signal reports its end is as for this process
    arguments.flags = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT | libc::CLONE_PARENT_SETTID) as u64;
    arguments.parent_tid = noted as u64;
    arguments.flags |= CLONE_INTO_CGROUP;
    arguments.cgroup = u64::try_from(birthplace).map_err(|_| Errno::BADF)?;
    // SAFETY: the caller guarantees it; CLONE_VFORK holds this thread until the child has left this memory.
    unsafe { clone3::clone(entry, argument, stack, arguments) }.map(drop)
}

/// Makes a child that has a copy of this process's memory, in a cgroup v2 if one is given. It runs `entry` with `argument`,
/// which must be what that expects.
pub(super) fn fork(entry: Entry, argument: *mut c_void, birthplace: Option<&OwnedFd>) -> Result<(Pid, OwnedFd), Errno> {
    let mut pidfd: c_int = -1;
    let made = match birthplace {
        Some(cgroup) => {
            // SAFETY: plain numbers, for which zeroes are a value.
            let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
            arguments.flags = libc::CLONE_PIDFD as u64 | CLONE_INTO_CGROUP;
            arguments.pidfd = &raw mut pidfd as u64;
            arguments.exit_signal = libc::SIGCHLD as u64;
            arguments.cgroup = u64::try_from(cgroup.as_raw_fd()).map_err(|_| Errno::BADF)?;
            // SAFETY: without CLONE_VM the child goes on with a copy of this stack, as that of fork(2) does, and leaves it
            // only by `entry`, which does not return. The process has one thread, or `entry` asks for no lock.
            unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<libc::clone_args>()) }
        }
        // SAFETY: as above; not every kernel and container has clone3(2).
        None => unsafe {
            libc::syscall(
                libc::SYS_clone,
                c_long::from(libc::SIGCHLD | libc::CLONE_PIDFD),
                0_i64,
                &raw mut pidfd,
                0_i64,
                0_i64,
            )
        },
    };
    match c_int::try_from(made) {
        Ok(0) => {
            entry(argument);
            // SAFETY: ends the child, which does not come here.
            unsafe { libc::_exit(127) }
        }
        Ok(pid) if pid > 0 => {
            let pid = Pid::from_raw(pid).ok_or(Errno::IO)?;
            // SAFETY: the kernel made it, and nothing else owns it.
            Ok((pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))
        }
        _ => Err(last_error()),
    }
}

/// As in linux/sched.h.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

const FLAGS: c_int = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD;

/// clone(2); the child's id and its descriptor.
///
/// # Safety
/// The child runs `entry` with `argument` on `stack` and in this memory: all three must be fit for that.
unsafe fn clone(entry: Entry, argument: *mut c_void, stack: &mut [MaybeUninit<u128>]) -> Result<(c_int, RawFd), Errno> {
    let mut pidfd: c_int = -1;
    let top = stack.as_mut_ptr_range().end.cast();
    // SAFETY: the caller guarantees entry, argument and stack; CLONE_PIDFD writes one c_int to `pidfd`.
    let pid = unsafe { libc::clone(entry, top, FLAGS | libc::SIGCHLD, argument, &raw mut pidfd) };
    if pid < 0 { Err(last_error()) } else { Ok((pid, pidfd)) }
}

fn last_error() -> Errno {
    let number = std::io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(number.unwrap_or(libc::EIO))
}

/// clone3(2), which alone makes a process in a cgroup. The C library has no wrapper of it, and the child must not
/// return on the stack of its parent: so it is called by hand.
#[cfg(target_arch = "x86_64")]
pub(super) mod clone3 {
    use super::{Entry, Errno, MaybeUninit, c_int, c_long, c_void};

    /// Old kernels and some containers do not have it.
    pub(crate) fn is_there() -> bool {
        // SAFETY: a structure of no bytes is refused (EINVAL) before anything else happens.
        let refused = unsafe { libc::syscall(libc::SYS_clone3, std::ptr::null::<c_void>(), 0) };
        refused < 0 && super::last_error() == Errno::INVAL
    }

    /// The child's id. It shares this memory, if these arguments say so, and runs on this stack.
    ///
    /// # Safety
    /// As [`super::clone`], and the arguments must be valid.
    pub(crate) unsafe fn clone(
        entry: Entry,
        argument: *mut c_void,
        stack: &mut [MaybeUninit<u128>],
        mut arguments: libc::clone_args,
    ) -> Result<c_int, Errno> {
        arguments.stack = stack.as_mut_ptr() as u64;
        arguments.stack_size = size_of_val(stack) as u64;
        let result: c_long;
        // SAFETY: the parent only makes a system call, which changes rax, rcx and r11. The child starts after it with
        // the same registers, and its stack pointer at the end of `stack`, aligned as a call needs it; `entry` does not
        // return. The rest the caller guarantees.
        unsafe {
            std::arch::asm!(
                "syscall",
                "test rax, rax",
                "jnz 2f",
                "xor ebp, ebp",
                "mov rdi, r12",
                "call r13",
                "ud2",
                "2:",
                inlateout("rax") libc::SYS_clone3 => result,
                in("rdi") &raw mut arguments,
                in("rsi") size_of::<libc::clone_args>(),
                in("r12") argument,
                in("r13") entry,
                lateout("rcx") _,
                lateout("r11") _,
            );
        }
        match c_int::try_from(result) {
            Ok(pid) if pid > 0 => Ok(pid),
            Ok(error) => Err(Errno::from_raw_os_error(-error)),
            Err(_) => Err(Errno::IO),
        }
    }
}

/// Where it has not been written and tried, a child enters its cgroup by itself.
#[cfg(not(target_arch = "x86_64"))]
pub(super) mod clone3 {
    use super::{Entry, Errno, MaybeUninit, c_int, c_void};

    pub(crate) fn is_there() -> bool {
        false
    }

    pub(crate) unsafe fn clone(
        _: Entry,
        _: *mut c_void,
        _: &mut [MaybeUninit<u128>],
        _: libc::clone_args,
    ) -> Result<c_int, Errno> {
        Err(Errno::NOSYS)
    }
}

/// While it lives, this thread gets no signal: no handler of this process may run in the child, where it would write to
/// this process's memory.
struct SignalsBlocked {
    previous: libc::sigset_t,
}

impl SignalsBlocked {
    fn all() -> Self {
        // SAFETY: sigset_t is plain data, for which zeroes are a value.
        let (mut all, mut previous): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
        // SAFETY: both sets are valid, exclusive and outlive the calls.
        unsafe {
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut previous);
        }
        Self { previous }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: `previous` was filled in by `all`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.previous, ptr::null_mut()) };
    }
}

/// A child that becomes another user makes the memory that it shares undumpable, so that its new user cannot look into
/// it (see prctl(2), PR_SET_DUMPABLE). That is kept up for as long as it shares it, and undone after the last such
/// child.
pub(super) struct Dumpable;

/// How many such children there are, and what it was before the first.
static SHARERS: Mutex<(usize, c_int)> = Mutex::new((0, 0));

/// Nothing is half done where a holder panics.
fn sharers() -> MutexGuard<'static, (usize, c_int)> {
    SHARERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Dumpable {
    pub(super) fn keep() -> Self {
        let mut sharers = sharers();
        if sharers.0 == 0 {
            // SAFETY: reads one attribute of this process.
            sharers.1 = unsafe { libc::prctl(libc::PR_GET_DUMPABLE) };
        }
        sharers.0 += 1;
        Self
    }
}

impl Drop for Dumpable {
    fn drop(&mut self) {
        let mut sharers = sharers();
        sharers.0 -= 1;
        if *sharers == (0, 1) {
            // SAFETY: changes one attribute of this process, to what it was.
            unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
        }
    }
}
