//! One process by its descriptor: waiting for its end, taking it from the process table, signalling it.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use telexec_executor::Signal;

/// How a child ended and what it used.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) status: Status,
    pub(crate) core_dumped: bool,
    pub(crate) user_time: Duration,
    pub(crate) system_time: Duration,
    pub(crate) max_rss_bytes: u64,
}

impl Ended {
    /// Of a child whose status is not to be had.
    pub(crate) fn unknown() -> Self {
        let none = Duration::ZERO;
        Self { status: Status::Signal(None), core_dumped: false, user_time: none, system_time: none, max_rss_bytes: 0 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Code(u8),
    Signal(Option<Signal>),
}

/// Makes a process's descriptor one that [`ended`] can wait for.
///
/// # Errors
/// The runtime cannot watch another descriptor.
pub(crate) fn watch(pidfd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    watch_for(pidfd, Interest::READABLE)
}

/// Makes any descriptor one that can be waited for.
///
/// # Errors
/// The runtime cannot watch another descriptor.
pub(crate) fn watch_for(file: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned by the value, so it stays open, and the same, for as long as it is watched.
    unsafe { AsyncFd::register_with_interest(file, interest) }.map_err(Into::into)
}

/// Waits until the process has ended; it is not reaped, so its id stays its own. See pidfd_open(2).
pub(crate) async fn ended(pidfd: &AsyncFd<OwnedFd>) {
    // an error here can only be that the runtime is shutting down, and with it this task
    if pidfd.readable().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// How the ended child ended; it stays in the process table, so its id stays its own. See waitid(2).
///
/// # Errors
/// `WouldBlock` if it has not ended, or a debugger has not seen its end; ECHILD if someone else in this process has reaped it.
pub(crate) fn exit_status(pid: Pid) -> io::Result<Ended> {
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
    Ok(Ended {
        status: match info.si_code {
            libc::CLD_EXITED => Status::Code(u8::try_from(status).unwrap_or(u8::MAX)),
            _ => Status::Signal(Signal::from_number(status)),
        },
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
pub(crate) fn reap(pid: Pid) -> io::Result<bool> {
    // SAFETY: a null status is allowed.
    match unsafe { libc::waitpid(pid.as_raw_nonzero().get(), std::ptr::null_mut(), libc::WNOHANG) } {
        0 => Ok(false),
        reaped if reaped > 0 => Ok(true),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Blocks until the process has ended, but not for long.
pub(crate) fn wait_briefly(pidfd: &OwnedFd) {
    let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
    // whether that or an error ends the wait, the caller checks the process next
    let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&limit));
}

/// A child of this process that has ended and was not reaped, no matter what started it.
///
/// # Errors
/// ECHILD if it has no children at all.
pub(crate) fn any_ended() -> io::Result<Option<Pid>> {
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

/// Sends SIGTERM to all processes that this one may signal, but for itself and the first one. See kill(2).
pub(crate) fn ask_all_to_end() {
    // SAFETY: no pointers are passed.
    unsafe { libc::kill(-1, libc::SIGTERM) };
}

/// Makes this process the one that orphans among its descendants are given to. See PR_SET_CHILD_SUBREAPER, prctl(2).
///
/// # Errors
/// None are known.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    // SAFETY: sets one attribute of this process.
    match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends a signal to exactly this process. See pidfd_send_signal(2).
///
/// # Errors
/// ESRCH if it has ended, EPERM if this process may not signal it.
pub(crate) fn send(pidfd: &OwnedFd, signal: Signal) -> io::Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a system call on a valid descriptor; a null siginfo means: as kill(2) would.
    // rustix's wrapper knows no real-time signals
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal.number(), no_info, 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sees whether [`send`] works here.
///
/// # Errors
/// Those of pidfd_send_signal(2).
pub(crate) fn try_to_signal(pidfd: &OwnedFd) -> io::Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a system call on a valid descriptor; signal 0 is not sent.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), 0, no_info, 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn duration(time: libc::timeval) -> Duration {
    Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0))
        + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
}
