//! One process by its descriptor: waiting for its end, taking it from the process table, signalling it.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use telexec_executor::Signal;
use telexec_spawn::exit::{self, Exit};

/// How a child ended and what it used.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) status: Status,
    pub(crate) core_dumped: bool,
    pub(crate) user_time: Duration,
    pub(crate) system_time: Duration,
    pub(crate) max_rss_bytes: u64,
    /// When, since the machine was booted; `None`: just now.
    pub(crate) at: Option<Duration>,
}

impl Ended {
    /// Of a child whose status is not to be had.
    pub(crate) fn unknown() -> Self {
        let none = Duration::ZERO;
        let status = Status::Signal(None);
        Self { status, core_dumped: false, user_time: none, system_time: none, max_rss_bytes: 0, at: None }
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
pub(crate) fn watch<T: AsFd + AsRawFd>(pidfd: T) -> io::Result<AsyncFd<T>> {
    watch_for(pidfd, Interest::READABLE)
}

/// Makes any descriptor one that can be waited for.
///
/// # Errors
/// The runtime cannot watch another descriptor.
pub(crate) fn watch_for<T: AsFd + AsRawFd>(file: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: the descriptor is the value's own (see AsFd), so it stays open, and the same, for as long as it is watched.
    unsafe { AsyncFd::register_with_interest(file, interest) }.map_err(Into::into)
}

/// Waits until the process has ended; it is not reaped, so its id stays its own. See pidfd_open(2).
pub(crate) async fn ended(pidfd: &AsyncFd<OwnedFd>) {
    // an error here can only be that the runtime is shutting down, and with it this task
    if pidfd.readable().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// How the ended child ended; it stays in the process table, so its id stays its own.
///
/// # Errors
/// As [`exit::status`].
pub(crate) fn exit_status(pid: Pid) -> io::Result<Ended> {
    exit::status(pid).map(Ended::from)
}

impl From<Exit> for Ended {
    fn from(exit: Exit) -> Self {
        Self {
            status: match exit.exited {
                true => Status::Code(u8::try_from(exit.status).unwrap_or(u8::MAX)),
                false => Status::Signal(Signal::from_number(exit.status)),
            },
            core_dumped: exit.core_dumped,
            user_time: exit.user_time,
            system_time: exit.system_time,
            max_rss_bytes: exit.max_rss_bytes,
            at: None,
        }
    }
}

/// Blocks until the process has ended, but not for long.
pub(crate) fn wait_briefly(pidfd: &OwnedFd) {
    let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
    // whether that or an error ends the wait, the caller checks the process next
    let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&limit));
}

/// Sends SIGTERM to all processes that this one may signal, but for itself and the first one. See kill(2).
pub(crate) fn ask_all_to_end() {
    // SAFETY: no pointers are passed.
    unsafe { libc::kill(-1, libc::SIGTERM) };
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
