//! Children that show what the machine can do, and run no program. The same holds for them as for those that do.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

use libc::{c_int, c_void};

use crate::PendingChild;
use crate::child::{check, default_actions, join_all, unblock_signals};

/// What [`leave_orphan`](super::leave_orphan) and its child share.
pub(super) struct Orphanage {
    pub(super) joins: *const RawFd,
    pub(super) join_count: usize,
    pub(super) pending: *const PendingChild,
    pub(super) failure: c_int,
}

/// Has a child of its own, in another session, and ends.
pub(super) extern "C" fn become_parent_of_orphan(argument: *mut c_void) -> c_int {
    // SAFETY: the parent passed a pointer to its `Orphanage`, and waits: this is the only reference in use. System calls
    // on this process's own state; the orphan has memory of its own.
    unsafe {
        let orphanage = &mut *argument.cast::<Orphanage>();
        (*orphanage.pending).note(libc::getpid());
        if let Err(errno) = join_all(orphanage.joins, orphanage.join_count) {
            orphanage.failure = errno;
            libc::_exit(127);
        }
        libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
        libc::setsid();
        // the kernel's own fork: that of the C library would run what the program registered for it
        match libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) {
            0 => {
                libc::setsid();
                default_actions();
                unblock_signals();
                libc::alarm(20);
                loop {
                    libc::pause();
                }
            }
            forked => orphanage.failure = check(forked).err().unwrap_or(0),
        }
        libc::_exit(0)
    }
}

/// What [`try_out`](super::try_out) and its child share.
pub(super) struct Trial {
    pub(super) pending: *const PendingChild,
    pub(super) failure: c_int,
}

pub(super) extern "C" fn close_files_and_end(argument: *mut c_void) -> c_int {
    // SAFETY: the parent passed a pointer to its `Trial`, and waits: this is the only reference in use. The files are this
    // process's own copies.
    unsafe {
        let trial = &mut *argument.cast::<Trial>();
        (*trial.pending).note(libc::getpid());
        trial.failure = check(libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0)).err().unwrap_or(0);
        libc::_exit(0)
    }
}
