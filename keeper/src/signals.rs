//! What other processes, and the kernel, ask of this one; and what it asks of them.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use telexec_spawn::Credentials;

use crate::given::Given;

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

/// Has the program that is started run as this user, in the cgroup of this `cgroup.procs`, without capabilities and with
/// no_new_privs set.
pub(crate) fn become_user_in(command: &mut Command, user: &Credentials, cgroup: OwnedFd) {
    let Credentials { uid, gid, groups, .. } = user.clone();
    let check = |result: i32| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: between fork and exec it makes system calls alone, which allocate nothing; the list is alive until then.
    unsafe {
        command.pre_exec(move || {
            rustix::io::write(&cgroup, b"0")?;
            // out of reach of the terminal and of the keyring that this process may have
            check(libc::setsid())?;
            telexec_spawn::leave_keyring()?;
            check(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))?;
            check(libc::setgroups(groups.len(), groups.as_ptr()))?;
            check(libc::setresgid(gid, gid, gid))?;
            check(libc::setresuid(uid, uid, uid))?;
            check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        });
    }
}

/// Sends any signal to exactly this process. See pidfd_send_signal(2).
pub(crate) fn send(pidfd: &Given, signal: i32) {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a system call on a valid descriptor; a null siginfo means: as kill(2) would.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, no_info, 0) };
}

/// Sends a signal to all processes but this one and the first.
pub(crate) fn send_to_all(signal: i32) {
    // SAFETY: no pointers are passed.
    unsafe { libc::kill(-1, signal) };
}
