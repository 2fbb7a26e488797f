//! How a child ended: waitid(2), and taking it from the process table.
#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

use rustix::process::Pid;

/// How a child ended and what it used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// It has exited with this status; otherwise a signal of this number has ended it.
    pub exited: bool,
    /// The status, or the signal.
    pub status: i32,
    /// It has left a core dump.
    pub core_dumped: bool,
    /// Processor time, of its own and of children that it has waited for.
    pub user_time: Duration,
    /// The same, in the kernel.
    pub system_time: Duration,
    /// The most memory that one of them had.
    pub max_rss_bytes: u64,
}

/// How the ended child ended; it stays in the process table, so its id stays its own. See waitid(2).
///
/// # Errors
/// `WouldBlock` if it has not ended, or a debugger has not seen its end; ECHILD if someone else in this process has reaped it.
pub fn status(pid: Pid) -> io::Result<Exit> {
    // SAFETY: both are plain data, for which zeroes are a value.
    let (mut info, mut usage): (libc::siginfo_t, libc::rusage) = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
    // SAFETY: both pointers are valid and exclusive for the call; the system call, unlike the C function, has the fifth
    // argument.
    let result = unsafe {
        let pid = pid.as_raw_nonzero().get();
        libc::syscall(libc::SYS_waitid, libc::P_PID, pid, &raw mut info, options, &raw mut usage)
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: waitid filled in the fields of a child's state, or left them zero.
    let (child, status) = unsafe { (info.si_pid(), info.si_status()) };
    if child == 0 {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    Ok(Exit {
        exited: info.si_code == libc::CLD_EXITED,
        status,
        core_dumped: info.si_code == libc::CLD_DUMPED,
        user_time: duration(usage.ru_utime),
        system_time: duration(usage.ru_stime),
        max_rss_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0).saturating_mul(1024),
    })
}

/// Takes the child from the process table. False: it has not ended, or a debugger has not seen its end. See waitpid(2).
///
/// # Errors
/// ECHILD if someone else in this process has reaped it.
pub fn reap(pid: Pid) -> io::Result<bool> {
    // SAFETY: a null status is allowed.
    match unsafe { libc::waitpid(pid.as_raw_nonzero().get(), std::ptr::null_mut(), libc::WNOHANG) } {
        0 => Ok(false),
        reaped if reaped > 0 => Ok(true),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A child of this process that has ended and was not reaped, no matter what started it.
///
/// # Errors
/// ECHILD if it has no children at all.
pub fn any_ended() -> io::Result<Option<Pid>> {
    // SAFETY: plain data, for which zeroes are a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
    // SAFETY: the pointer is valid and exclusive for the call.
    match unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, options) } {
        // SAFETY: waitid filled in the fields of a child's state, or left them zero.
        0 => Ok(Pid::from_raw(unsafe { info.si_pid() })),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes this process the one that orphans among its descendants are given to. See PR_SET_CHILD_SUBREAPER, prctl(2).
///
/// # Errors
/// None are known.
pub fn adopt_orphans() -> io::Result<()> {
    // SAFETY: sets one attribute of this process.
    match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn duration(time: libc::timeval) -> Duration {
    Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0))
        + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
}
