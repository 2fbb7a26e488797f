//! What other processes, and the kernel, ask of this one.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;

/// Signals that are read instead of taking effect.
#[derive(Debug)]
pub(crate) struct Signals {
    file: OwnedFd,
}

const WANTED: [i32; 5] = [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR2];

impl Signals {
    /// From now on. Processes that are started have to undo it.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a signal set is plain data, for which zeroes are a value; it outlives the calls.
        let file = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in WANTED {
                libc::sigaddset(&mut set, signal);
            }
            // a parent may have set it to be ignored, and then exit statuses would be lost
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel made it, and nothing else owns it.
        Ok(Self { file: unsafe { OwnedFd::from_raw_fd(file) } })
    }

    /// The next one that has come.
    pub(crate) fn next(&self) -> Option<i32> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.file, &mut info) {
            Ok(_) => {
                // its first field is the number
                let [a, b, c, d, ..] = info;
                Some(i32::from_ne_bytes([a, b, c, d]))
            }
            Err(Errno::INTR) => self.next(),
            Err(_) => None,
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Has the program that is started so take signals as usual.
pub(crate) fn unblock_in(command: &mut Command) {
    // SAFETY: between fork and exec it makes one system call, which allocates nothing; the set is plain data, for which
    // zeroes are a value.
    unsafe {
        command.pre_exec(|| {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
            Ok(())
        });
    }
}

/// Sends a signal to all processes but this one and the first.
pub(crate) fn send_to_all(signal: i32) {
    // SAFETY: no pointers are passed.
    unsafe { libc::kill(-1, signal) };
}
