//! What runs in the child, in the memory of its parent or in a copy of that: it calls nothing but thin wrappers of system
//! calls. No allocation, no lock, no panic, no destructor.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::RawFd;
use std::ptr;

use libc::{c_char, c_int, c_long, c_void};

use crate::{Chown, PendingChild, Step, private, rlimits};

/// The kernel's signal set.
const SIGNAL_SET_BYTES: usize = 8;

/// What the parent passes to the child. If they share memory, only the child writes to it.
pub(super) struct SharedWithChild {
    pub(super) candidates: *const *const c_char,
    pub(super) argv: *const *const c_char,
    pub(super) environment: *const *const c_char,
    pub(super) working_directory: *const c_char,
    pub(super) streams: [RawFd; 3],
    pub(super) terminal: bool,
    pub(super) joins: *const RawFd,
    pub(super) join_count: usize,
    pub(super) chowns: *const Chown,
    pub(super) chown_count: usize,
    pub(super) rlimits: *const libc::rlimit64,
    pub(super) credentials: *const Ids,
    /// The options of the file system of its private directories. Null: it has none.
    pub(super) private_directories: *const c_char,
    pub(super) no_new_privileges: bool,
    /// Null: it is not noted.
    pub(super) pending: *const PendingChild,
    pub(super) fault: Option<Step>,
    /// Where a failure is written to; negative: nowhere, since the parent reads it here.
    pub(super) report: RawFd,
    /// Run in place of the candidates, if it is not negative.
    pub(super) executable: RawFd,
    pub(super) failure: Option<(Step, c_int)>,
}

impl SharedWithChild {
    /// Nothing of it is known yet, but for what is there anyway.
    pub(super) fn unknown(rlimits: *const libc::rlimit64) -> Self {
        Self {
            candidates: ptr::null(),
            argv: ptr::null(),
            environment: ptr::null(),
            working_directory: ptr::null(),
            streams: [-1; 3],
            terminal: false,
            joins: ptr::null(),
            join_count: 0,
            chowns: ptr::null(),
            chown_count: 0,
            rlimits,
            credentials: ptr::null(),
            private_directories: ptr::null(),
            no_new_privileges: false,
            pending: ptr::null(),
            fault: None,
            report: -1,
            executable: -1,
            failure: None,
        }
    }
}

/// [`Credentials`](crate::Credentials), as the child reads them.
#[derive(Clone, Copy)]
pub(super) struct Ids {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: *const u32,
    pub(super) group_count: usize,
}

/// The first steps of becoming the program: they are the same for all.
const EARLY_STEPS: [(Step, Action); 2] = [(Step::Clone, note_birth), (Step::Setsid, fresh_session)];
/// The steps after them, in their order.
pub(super) const STEPS: [(Step, Action); 12] = [
    // first, since a file may be busy for as long as its owner likes
    (Step::Setuid, change_owners),
    (Step::Cgroup, enter_cgroups),
    (Step::Dup, connect_streams),
    (Step::CloseRange, close_other_files),
    // not before: RLIMIT_NOFILE also limits the numbers that dup(2) may return
    (Step::Rlimit, default_rlimits),
    (Step::Unshare, leave_namespaces),
    (Step::Mount, mount_private_directories),
    (Step::Setgroups, set_groups),
    (Step::Setgid, set_gid),
    (Step::Setuid, set_uid),
    // as its user, and after close_range: /proc/self/fd/N must not lead anywhere
    (Step::Chdir, change_directory),
    (Step::Exec, execute),
];

/// One step, or the error number that it failed with.
///
/// # Safety
/// Only in a child that a function of [`clone`](super::clone) has made, with what its parent passed to it.
pub(super) type Action = unsafe fn(&mut SharedWithChild) -> Result<(), c_int>;

/// Becomes the program, or notes why not and ends.
pub(super) extern "C" fn become_program(argument: *mut c_void) -> c_int {
    // SAFETY: the parent passed a pointer to its `SharedWithChild`, and waits if this is its memory: this is the only
    // reference in use.
    let shared = unsafe { &mut *argument.cast::<SharedWithChild>() };
    // SAFETY: this is such a child.
    unsafe {
        if take(&EARLY_STEPS, shared) {
            take(&STEPS, shared);
        }
        end(shared)
    }
}

/// Takes these steps; false: one has failed, as `failure` says.
///
/// # Safety
/// As [`Action`].
pub(super) unsafe fn take(steps: &[(Step, Action)], shared: &mut SharedWithChild) -> bool {
    for (step, action) in steps {
        if shared.fault == Some(*step) {
            shared.failure = Some((*step, libc::EIO));
            return false;
        }
        // SAFETY: the caller guarantees it.
        if let Err(errno) = unsafe { action(shared) } {
            shared.failure = Some((*step, errno));
            return false;
        }
    }
    true
}

/// Ends this child, which has not become its program.
///
/// # Safety
/// As [`Action`].
pub(super) unsafe fn end(shared: &SharedWithChild) -> ! {
    // SAFETY: the caller guarantees it; ends this process only, without running anything of the parent's.
    unsafe {
        report(shared);
        libc::_exit(127)
    }
}

/// It can be cancelled from here on, and may have been before.
unsafe fn note_birth(shared: &mut SharedWithChild) -> Result<(), c_int> {
    // SAFETY: null, or the parent keeps it until this child has left its memory; getpid(2) takes no pointers.
    match unsafe { (shared.pending.as_ref(), libc::getpid()) } {
        (Some(pending), pid) if !pending.note(pid) => Err(libc::ECANCELED),
        _ => Ok(()),
    }
}

/// Tells a parent that does not share this memory.
///
/// # Safety
/// As [`Action`].
unsafe fn report(shared: &SharedWithChild) {
    if let (Some((step, errno)), 0..) = (shared.failure, shared.report) {
        let message = report_message(step, errno);
        // SAFETY: the message is as long as it says.
        unsafe { libc::write(shared.report, message.as_ptr().cast(), message.len()) };
    }
}

pub(super) const REPORT_BYTES: usize = 5;

fn report_message(step: Step, errno: c_int) -> [u8; REPORT_BYTES] {
    let [a, b, c, d] = errno.to_le_bytes();
    [step as u8, a, b, c, d]
}

/// A session of its own, and what belongs to its start.
unsafe fn fresh_session(shared: &mut SharedWithChild) -> Result<(), c_int> {
    // SAFETY: as this function's own.
    unsafe {
        new_session(shared)?;
        set_defaults();
    }
    Ok(())
}

pub(super) unsafe fn new_session(_: &mut SharedWithChild) -> Result<(), c_int> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::setsid() }.into())
}

/// The umask, priorities, OOM score and actions of signals that a process starts with. Its children inherit them. False: the system
/// lacks what the score takes.
pub(super) unsafe fn set_defaults() -> bool {
    // SAFETY: system calls on this process's own state, with valid pointers.
    unsafe {
        libc::umask(0o022);
        // As far as this process may: a lower priority than the default cannot always be given up.
        let normal: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_OTHER, &normal);
        libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, 0);
        let has_score = write_file(c"/proc/self/oom_score_adj".as_ptr(), b"0");
        default_actions();
        has_score
    }
}

/// See ioprio_set(2).
const IOPRIO_WHO_PROCESS: c_int = 1;

/// False: the system has no memory for it, or no descriptors. What may not be written stays.
unsafe fn write_file(path: *const c_char, text: &[u8]) -> bool {
    // SAFETY: the path is a C string, and the text as long as it says.
    unsafe {
        let file = libc::open(path, libc::O_WRONLY | libc::O_CLOEXEC);
        if file >= 0 {
            libc::write(file, text.as_ptr().cast(), text.len());
            libc::close(file);
        }
        file >= 0 || !matches!(errno(), libc::ENFILE | libc::ENOMEM)
    }
}

unsafe fn enter_cgroups(shared: &mut SharedWithChild) -> Result<(), c_int> {
    // SAFETY: the parent passed so many numbers.
    unsafe { join_all(shared.joins, shared.join_count) }
}

/// # Safety
/// `joins` points to so many numbers.
pub(super) unsafe fn join_all(joins: *const RawFd, count: usize) -> Result<(), c_int> {
    for n in 0..count {
        // SAFETY: within what the caller guarantees; "0" is the process that writes it, see cgroups(7).
        check(unsafe { libc::write(*joins.add(n), c"0".as_ptr().cast(), 1) } as c_long)?;
    }
    Ok(())
}

unsafe fn change_owners(shared: &mut SharedWithChild) -> Result<(), c_int> {
    for n in 0..shared.chown_count {
        // SAFETY: the parent passed so many of them.
        let Chown { file, uid, gid } = unsafe { *shared.chowns.add(n) };
        // SAFETY: no pointers are passed; -1 leaves the group as it is, see fchown(2).
        check(unsafe { libc::fchown(file, uid, gid.unwrap_or(u32::MAX)) }.into())?;
    }
    Ok(())
}

/// Where this process may not raise a limit, it stays as low as it is.
pub(super) unsafe fn default_rlimits(shared: &mut SharedWithChild) -> Result<(), c_int> {
    if shared.rlimits.is_null() {
        // it has them
        return Ok(());
    }
    for kind in 0..rlimits::KINDS {
        // SAFETY: there are so many of them; the pointers are valid for the calls.
        unsafe {
            let mut wanted = *shared.rlimits.add(kind);
            let mut current: libc::rlimit64 = std::mem::zeroed();
            if libc::syscall(libc::SYS_prlimit64, 0, kind, &raw const wanted, &raw mut current) == 0 {
                continue;
            }
            check(libc::syscall(libc::SYS_prlimit64, 0, kind, ptr::null::<c_void>(), &raw mut current))?;
            wanted.rlim_max = if wanted.rlim_max < current.rlim_max { wanted.rlim_max } else { current.rlim_max };
            wanted.rlim_cur = if wanted.rlim_cur < wanted.rlim_max { wanted.rlim_cur } else { wanted.rlim_max };
            check(libc::syscall(libc::SYS_prlimit64, 0, kind, &raw const wanted, ptr::null_mut::<c_void>()))?;
        }
    }
    Ok(())
}

unsafe fn leave_namespaces(shared: &mut SharedWithChild) -> Result<(), c_int> {
    if shared.private_directories.is_null() { Ok(()) } else { private::leave_namespaces() }
}

unsafe fn mount_private_directories(shared: &mut SharedWithChild) -> Result<(), c_int> {
    if shared.private_directories.is_null() {
        return Ok(());
    }
    // SAFETY: the parent passed null or valid ids, and a C string.
    unsafe {
        // they have an owner other than this process
        let Some(Ids { uid, gid, .. }) = shared.credentials.as_ref() else { return Err(libc::EINVAL) };
        private::mount_directories(CStr::from_ptr(shared.private_directories), *uid, *gid)
    }
}

unsafe fn connect_streams(shared: &mut SharedWithChild) -> Result<(), c_int> {
    for (number, stream) in (0..).zip(shared.streams) {
        // SAFETY: no pointers are passed.
        check(unsafe { libc::dup2(stream, number) }.into())?;
    }
    if shared.terminal {
        // SAFETY: no pointers are passed. It is the leader of a new session, which has no terminal yet.
        check(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) }.into())?;
    }
    Ok(())
}

pub(super) unsafe fn close_other_files(shared: &mut SharedWithChild) -> Result<(), c_int> {
    let mut first = FIRST_FILE;
    // SAFETY: no pointers are passed.
    unsafe {
        if shared.executable >= 0 {
            // out of the way of where the other one is to be
            shared.executable = libc::fcntl(shared.executable, libc::F_DUPFD_CLOEXEC, FIRST_FILE + 2);
            check(shared.executable.into())?;
        }
        for file in [&mut shared.report, &mut shared.executable] {
            if *file >= 0 {
                if *file != first {
                    check(libc::dup3(*file, first, libc::O_CLOEXEC).into())?;
                    *file = first;
                }
                first += 1;
            }
        }
        check(libc::syscall(libc::SYS_close_range, first, u32::MAX, 0))
    }
}

/// After the standard streams. Up to two files stay open from here on, until the program runs.
pub(super) const FIRST_FILE: RawFd = 3;

// The kernel's own calls: those of the C library would change all threads of the parent.

unsafe fn set_groups(shared: &mut SharedWithChild) -> Result<(), c_int> {
    // SAFETY: the parent passed null or valid ids, with so many groups.
    unsafe {
        match shared.credentials.as_ref() {
            Some(ids) => check(libc::syscall(libc::SYS_setgroups, ids.group_count, ids.groups)),
            None => Ok(()),
        }
    }
}

unsafe fn set_gid(shared: &mut SharedWithChild) -> Result<(), c_int> {
    // SAFETY: the parent passed null or valid ids.
    unsafe {
        match shared.credentials.as_ref() {
            Some(ids) => check(libc::syscall(libc::SYS_setresgid, ids.gid, ids.gid, ids.gid)),
            None => Ok(()),
        }
    }
}

unsafe fn set_uid(shared: &mut SharedWithChild) -> Result<(), c_int> {
    // SAFETY: the parent passed null or valid ids; the rest passes no pointers.
    unsafe {
        // privileges that were given to this process only, see capabilities(7); old kernels do not know them
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        if shared.no_new_privileges {
            check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).into())?;
        }
        match shared.credentials.as_ref() {
            Some(ids) => {
                leave_keyring()?;
                // Until it runs its program it shares this process's memory. Its new user may not look into it, or
                // trace it, whatever fs.suid_dumpable says: the capabilities that it keeps until then, without effect,
                // forbid it until the memory is undumpable. See ptrace(2), "access mode checking".
                libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0);
                check(libc::syscall(libc::SYS_setresuid, ids.uid, ids.uid, ids.uid))?;
                check(libc::prctl(libc::PR_SET_DUMPABLE, 0).into())
            }
            None => Ok(()),
        }
    }
}

/// A new session keyring: that of this process may hold secrets. See session-keyring(7).
pub(super) fn leave_keyring() -> Result<(), c_int> {
    // SAFETY: a null name is allowed.
    match check(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, ptr::null::<c_char>()) }) {
        // the kernel has no keyrings, or a container may not use them
        Err(libc::ENOSYS | libc::EPERM | libc::EACCES) => Ok(()),
        joined => joined,
    }
}

/// See keyctl(2).
const KEYCTL_JOIN_SESSION_KEYRING: c_int = 1;

unsafe fn change_directory(shared: &mut SharedWithChild) -> Result<(), c_int> {
    // SAFETY: the parent passed a C string.
    check(unsafe { libc::chdir(shared.working_directory) }.into())
}

unsafe fn execute(shared: &mut SharedWithChild) -> Result<(), c_int> {
    // SAFETY: as this function's own.
    unsafe {
        unblock_signals();
        if shared.executable >= 0 {
            let (argv, environment) = (shared.argv, shared.environment);
            libc::syscall(libc::SYS_execveat, shared.executable, c"".as_ptr(), argv, environment, libc::AT_EMPTY_PATH);
            return Err(errno());
        }
        Err(exec_first(shared))
    }
}

/// execve(2) itself puts caught signals back to their default, but keeps ignored ones ignored.
pub(super) unsafe fn default_actions() {
    // SAFETY: plain system calls. Signals that cannot be changed answer EINVAL, which is fine.
    unsafe {
        // the kernel's own sigaction, since the C library keeps two signals from its callers: all zeroes is SIG_DFL
        let default = [0_u64; 8];
        for signal in 1..=64 {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), ptr::null::<u64>(), SIGNAL_SET_BYTES);
        }
    }
}

/// Not before no handler of the parent's can run.
pub(super) unsafe fn unblock_signals() {
    // SAFETY: a plain system call; the set is valid.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
    }
}

/// Tries one candidate after the other, as execvp(3) does; returns the error number if none can be run.
unsafe fn exec_first(shared: &SharedWithChild) -> c_int {
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

pub(super) fn check(result: c_long) -> Result<(), c_int> {
    if result < 0 { Err(errno()) } else { Ok(()) }
}

/// A child that shares memory shares errno, too, with its parent, which waits.
pub(super) fn errno() -> c_int {
    // SAFETY: always valid to read in a thread.
    unsafe { *libc::__errno_location() }
}
