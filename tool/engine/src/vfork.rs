//! The one place where a process is made.
//!
//! clone3(2), or clone(2) where there is none, with CLONE_VM and CLONE_VFORK: the page tables of this process are not
//! copied, and the calling thread waits until the child has become another program or ended, so a failure comes back
//! through shared memory.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::{c_char, c_int, c_long, c_void};
use rustix::io::Errno;
use rustix::process::Pid;
use telexec_executor::SpawnStage;

use super::children::OwnChild;
use super::rlimits;

/// Who the child becomes; see credentials(7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Credentials {
    /// For errors.
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// All supplementary groups.
    pub(super) groups: Vec<u32>,
}

/// The cgroups that the child is born in, or enters first of all.
#[derive(Default)]
pub(super) struct CgroupEntry {
    /// A cgroup v2 directory to be born in. Only where [`can_be_born_in_a_cgroup`].
    pub(super) birthplace: Option<OwnedFd>,
    /// `cgroup.procs` files of cgroups to enter.
    pub(super) joins: Vec<OwnedFd>,
}

/// What the child becomes.
pub(super) struct Image<'a> {
    pub(super) candidates: &'a [CString],
    pub(super) argv: &'a [CString],
    pub(super) environment: &'a [CString],
    pub(super) working_directory: &'a CStr,
    /// Descriptors to become 0, 1 and 2; each is above 2.
    pub(super) streams: [RawFd; 3],
    /// They are a terminal, to become the controlling one.
    pub(super) terminal: bool,
    pub(super) cgroups: &'a CgroupEntry,
    pub(super) rlimits: &'a [libc::rlimit64; rlimits::KINDS],
    /// `None`: those of this process.
    pub(super) credentials: Option<&'a Credentials>,
    /// The step that is to fail.
    #[cfg(test)]
    pub(super) fault: Option<SpawnStage>,
}

/// The kernel's signal set.
const SIGNAL_SET_BYTES: usize = 8;
/// The child's stack. It calls some dozens of thin wrappers of system calls.
const STACK_BYTES: usize = 64 * 1024;

/// What parent and child share while the parent waits. The child only reads, but for `pid` and `failure`.
struct Shared {
    candidates: *const *const c_char,
    argv: *const *const c_char,
    environment: *const *const c_char,
    working_directory: *const c_char,
    streams: [RawFd; 3],
    terminal: bool,
    joins: *const RawFd,
    join_count: usize,
    rlimits: *const libc::rlimit64,
    credentials: *const Ids,
    pid: *const AtomicI32,
    #[cfg(test)]
    fault: Option<SpawnStage>,
    failure: Option<(SpawnStage, c_int)>,
}

/// [`Credentials`], as the child reads them.
struct Ids {
    uid: u32,
    gid: u32,
    groups: *const u32,
    group_count: usize,
}

/// Makes the process; returns once it runs its program.
///
/// # Errors
/// The step that failed and its error number; the process is gone and reaped.
pub(super) fn spawn(image: &Image<'_>, child: OwnChild) -> Result<(OwnChild, Pid, OwnedFd), (SpawnStage, Errno)> {
    let candidates = pointers(image.candidates);
    let argv = pointers(image.argv);
    let environment = pointers(image.environment);
    let joins = numbers(&image.cgroups.joins);
    let ids = image.credentials.map(|credentials| Ids {
        uid: credentials.uid,
        gid: credentials.gid,
        groups: credentials.groups.as_ptr(),
        group_count: credentials.groups.len(),
    });
    let mut shared = Shared {
        candidates: candidates.as_ptr(),
        argv: argv.as_ptr(),
        environment: environment.as_ptr(),
        working_directory: image.working_directory.as_ptr(),
        streams: image.streams,
        terminal: image.terminal,
        joins: joins.as_ptr(),
        join_count: joins.len(),
        rlimits: image.rlimits.as_ptr(),
        credentials: ids.as_ref().map_or(ptr::null(), ptr::from_ref),
        pid: child.pid(),
        #[cfg(test)]
        fault: image.fault,
        failure: None,
    };
    if child.is_unwanted() {
        return Err((SpawnStage::Clone, Errno::CANCELED));
    }
    let _dumpable = ids.is_some().then(Dumpable::keep);
    let birthplace = image.cgroups.birthplace.as_ref();
    let (pid, pidfd) = clone_and_wait(become_program, ptr::from_mut(&mut shared).cast(), birthplace)
        .map_err(|errno| (SpawnStage::Clone, errno))?;
    // the child has noted it; but one that was killed before its first step has not
    child.pid().store(pid.as_raw_nonzero().get(), Ordering::Release);
    match shared.failure {
        None => Ok((child, pid, pidfd)),
        Some((stage, errno)) => {
            child.reap_soon(&pidfd);
            Err((stage, Errno::from_raw_os_error(errno)))
        }
    }
}

/// Makes a process that is the only one of a session of its own, has lost its parent, and waits for its death (which
/// comes by itself after some seconds).
///
/// # Errors
/// It cannot be made, or cannot enter its cgroup.
pub(super) fn leave_orphan(cgroups: &CgroupEntry) -> Result<(), Errno> {
    let joins = numbers(&cgroups.joins);
    let child = OwnChild::expect();
    let mut orphanage = Orphanage { joins: joins.as_ptr(), join_count: joins.len(), pid: child.pid(), failure: 0 };
    let parent = ptr::from_mut(&mut orphanage).cast();
    let (pid, pidfd) = clone_and_wait(become_parent_of_orphan, parent, cgroups.birthplace.as_ref())?;
    child.pid().store(pid.as_raw_nonzero().get(), Ordering::Release);
    child.reap_soon(&pidfd);
    match orphanage.failure {
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

/// Makes a process that closes its files and ends: so none can be made that would not start its program.
///
/// # Errors
/// The system call that failed, and its error number.
pub(super) fn try_out() -> Result<(), (&'static str, Errno)> {
    let child = OwnChild::expect();
    let mut trial = Trial { pid: child.pid(), failure: 0 };
    let (pid, pidfd) = clone_and_wait(close_files_and_end, ptr::from_mut(&mut trial).cast(), None)
        .map_err(|errno| ("clone(2) with CLONE_PIDFD", errno))?;
    child.pid().store(pid.as_raw_nonzero().get(), Ordering::Release);
    child.reap_soon(&pidfd);
    match trial.failure {
        0 => Ok(()),
        errno => Err(("close_range(2)", Errno::from_raw_os_error(errno))),
    }
}

/// A process can be made in a cgroup v2, rather than enter it by itself.
pub(super) fn can_be_born_in_a_cgroup() -> bool {
    clone3::is_there()
}

/// The strings as C wants them: pointers, then a null.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
}

fn numbers(files: &[OwnedFd]) -> Vec<RawFd> {
    files.iter().map(AsRawFd::as_raw_fd).collect()
}

/// What a child does first and last; it never returns.
type Entry = extern "C" fn(*mut c_void) -> c_int;

/// Makes a child that shares this process's memory, in a cgroup v2 if one is given, and waits until it has left it.
/// `entry` gets `argument`, which must be what it expects, and be valid and unused by others until this returns.
fn clone_and_wait(entry: Entry, argument: *mut c_void, birthplace: Option<&OwnedFd>) -> Result<(Pid, OwnedFd), Errno> {
    let mut stack = Vec::<u128>::with_capacity(STACK_BYTES / size_of::<u128>());
    let _blocked = SignalsBlocked::all();
    // 16-byte aligned (u128) at both ends
    let stack = stack.spare_capacity_mut();
    let (pid, pidfd) = match birthplace {
        // SAFETY: `stack` is a writable, unused buffer that outlives the child's use of it, as does `argument`, because
        // CLONE_VFORK holds this thread until the child has left this memory by execve(2) or _exit(2).
        Some(cgroup) => unsafe { clone3::clone(entry, argument, stack, cgroup) }?,
        // SAFETY: as above.
        None => unsafe { clone(entry, argument, stack) }?,
    };
    let pid = Pid::from_raw(pid).ok_or(Errno::IO)?;
    if pidfd < 0 {
        // a kernel that does not know CLONE_PIDFD; the first child that this can happen to is that of `try_out`
        return Err(Errno::NOSYS);
    }
    // SAFETY: the kernel made `pidfd`, and nobody else owns it.
    Ok((pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

const FLAGS: c_int = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD;

/// clone(2); the child's id and its descriptor.
///
/// # Safety
/// The child runs `entry` with `argument` on `stack` and in this memory: all three must be fit for that.
unsafe fn clone(
    entry: Entry,
    argument: *mut c_void,
    stack: &mut [std::mem::MaybeUninit<u128>],
) -> Result<(c_int, RawFd), Errno> {
    let mut pidfd: c_int = -1;
    let top = stack.as_mut_ptr_range().end.cast();
    // SAFETY: the caller vouches for entry, argument and stack; CLONE_PIDFD writes one c_int to `pidfd`.
    let pid = unsafe { libc::clone(entry, top, FLAGS | libc::SIGCHLD, argument, &raw mut pidfd) };
    if pid < 0 { Err(last_error()) } else { Ok((pid, pidfd)) }
}

fn last_error() -> Errno {
    let number = std::io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(number.unwrap_or(libc::EIO))
}

/// clone3(2), which alone makes a process in a cgroup. The C library has no wrapper of it, and the child must not return
/// on the stack of its parent: so it is called by hand.
#[cfg(target_arch = "x86_64")]
mod clone3 {
    use super::{Entry, Errno, FLAGS, OwnedFd, RawFd, c_int, c_long, c_void};
    use std::mem::MaybeUninit;
    use std::os::fd::AsRawFd;

    /// As in linux/sched.h.
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

    /// Old kernels and some containers do not have it.
    pub(super) fn is_there() -> bool {
        // SAFETY: a structure of no bytes is refused (EINVAL) before anything else happens.
        let refused = unsafe { libc::syscall(libc::SYS_clone3, std::ptr::null::<c_void>(), 0) };
        refused < 0 && super::last_error() == Errno::INVAL
    }

    /// # Safety
    /// As [`super::clone`].
    pub(super) unsafe fn clone(
        entry: Entry,
        argument: *mut c_void,
        stack: &mut [MaybeUninit<u128>],
        cgroup: &OwnedFd,
    ) -> Result<(c_int, RawFd), Errno> {
        let mut pidfd: c_int = -1;
        // SAFETY: plain numbers, for which zeroes are a value.
        let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
        arguments.flags = FLAGS as u64 | CLONE_INTO_CGROUP;
        arguments.pidfd = &raw mut pidfd as u64;
        arguments.exit_signal = libc::SIGCHLD as u64;
        arguments.stack = stack.as_mut_ptr() as u64;
        arguments.stack_size = size_of_val(stack) as u64;
        arguments.cgroup = u64::try_from(cgroup.as_raw_fd()).map_err(|_| Errno::BADF)?;
        let result: c_long;
        // SAFETY: the parent only makes a system call, which changes rax, rcx and r11. The child starts after it with
        // the same registers, and its stack pointer at the end of `stack`, aligned as a call needs it; `entry` does not
        // return. The rest the caller vouches for.
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
            Ok(pid) if pid > 0 => Ok((pid, pidfd)),
            Ok(error) => Err(Errno::from_raw_os_error(-error)),
            Err(_) => Err(Errno::IO),
        }
    }
}

/// Where it has not been written and tried, a child enters its cgroup by itself.
#[cfg(not(target_arch = "x86_64"))]
mod clone3 {
    use super::{Entry, Errno, OwnedFd, RawFd, c_int, c_void};
    use std::mem::MaybeUninit;

    pub(super) fn is_there() -> bool {
        false
    }

    pub(super) unsafe fn clone(
        _: Entry,
        _: *mut c_void,
        _: &mut [MaybeUninit<u128>],
        _: &OwnedFd,
    ) -> Result<(c_int, RawFd), Errno> {
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
/// it (see prctl(2), PR_SET_DUMPABLE). That is wanted for as long as it shares it, and put back after the last such
/// child.
struct Dumpable;

/// How many such children there are, and what it was before the first.
static SHARERS: Mutex<(usize, c_int)> = Mutex::new((0, 0));

impl Dumpable {
    fn keep() -> Self {
        let mut sharers = SHARERS.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut sharers = SHARERS.lock().unwrap_or_else(PoisonError::into_inner);
        sharers.0 -= 1;
        if *sharers == (0, 1) {
            // SAFETY: changes one attribute of this process, to what it was.
            unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
        }
    }
}

// ---- What follows runs in the child, in the memory of this process: it calls nothing but thin wrappers of system calls.
// No allocation, no lock, no panic, no destructor.

/// The steps of becoming the program, in their order.
const STEPS: [(SpawnStage, Step); 10] = [
    (SpawnStage::Setsid, new_session),
    (SpawnStage::Cgroup, enter_cgroups),
    (SpawnStage::Rlimit, default_rlimits),
    (SpawnStage::Dup, connect_streams),
    (SpawnStage::CloseRange, close_other_files),
    (SpawnStage::Setgroups, set_groups),
    (SpawnStage::Setgid, set_gid),
    (SpawnStage::Setuid, set_uid),
    // as its user, and after close_range: /proc/self/fd/N must not lead anywhere
    (SpawnStage::Chdir, change_directory),
    (SpawnStage::Exec, execute),
];

/// One step, or the error number that it failed with.
///
/// # Safety
/// Only in a child of [`clone_and_wait`], with what its parent passed to it.
type Step = unsafe fn(&Shared) -> Result<(), c_int>;

/// Becomes the program, or notes why not and ends.
extern "C" fn become_program(argument: *mut c_void) -> c_int {
    // SAFETY: the parent passed a pointer to its `Shared`, and waits: this is the only reference in use.
    let shared = unsafe { &mut *argument.cast::<Shared>() };
    // SAFETY: the parent keeps what it points to until this child has left its memory.
    unsafe { note_pid(shared.pid) };
    for (stage, step) in STEPS {
        #[cfg(test)]
        if shared.fault == Some(stage) {
            shared.failure = Some((stage, libc::EIO));
            break;
        }
        // SAFETY: this is such a child.
        if let Err(errno) = unsafe { step(shared) } {
            shared.failure = Some((stage, errno));
            break;
        }
    }
    // SAFETY: ends this process only, without running anything of the parent's.
    unsafe { libc::_exit(127) }
}

/// # Safety
/// `pid` is valid.
unsafe fn note_pid(pid: *const AtomicI32) {
    // SAFETY: no pointers are passed, and the caller vouches for `pid`.
    unsafe { (*pid).store(libc::getpid(), Ordering::Release) };
}

/// A session of its own, and what belongs to its start: umask, default priorities.
unsafe fn new_session(_: &Shared) -> Result<(), c_int> {
    // SAFETY: system calls on this process's own state, with valid pointers.
    unsafe {
        check(libc::setsid().into())?;
        libc::umask(0o022);
        // As far as this process may: a lower priority than the default cannot always be given up.
        let normal: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_OTHER, &normal);
        libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, 0);
        write_file(c"/proc/self/oom_score_adj".as_ptr(), b"0");
    }
    Ok(())
}

/// See ioprio_set(2).
const IOPRIO_WHO_PROCESS: c_int = 1;

unsafe fn write_file(path: *const c_char, text: &[u8]) {
    // SAFETY: the path is a C string, and the text as long as it says.
    unsafe {
        let file = libc::open(path, libc::O_WRONLY | libc::O_CLOEXEC);
        if file >= 0 {
            libc::write(file, text.as_ptr().cast(), text.len());
            libc::close(file);
        }
    }
}

unsafe fn enter_cgroups(shared: &Shared) -> Result<(), c_int> {
    // SAFETY: the parent passed so many numbers.
    unsafe { join_all(shared.joins, shared.join_count) }
}

/// # Safety
/// `joins` points to so many numbers.
unsafe fn join_all(joins: *const RawFd, count: usize) -> Result<(), c_int> {
    for n in 0..count {
        // SAFETY: within what the caller vouches for; "0" is whoever writes it, see cgroups(7).
        check(unsafe { libc::write(*joins.add(n), c"0".as_ptr().cast(), 1) } as c_long)?;
    }
    Ok(())
}

/// Where this process may not raise a limit, it stays as low as it is.
unsafe fn default_rlimits(shared: &Shared) -> Result<(), c_int> {
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

unsafe fn connect_streams(shared: &Shared) -> Result<(), c_int> {
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

unsafe fn close_other_files(_: &Shared) -> Result<(), c_int> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) })
}

// The kernel's own calls: those of the C library would change all threads of the parent.

unsafe fn set_groups(shared: &Shared) -> Result<(), c_int> {
    // SAFETY: the parent passed null or valid ids, with so many groups.
    unsafe {
        match shared.credentials.as_ref() {
            Some(ids) => check(libc::syscall(libc::SYS_setgroups, ids.group_count, ids.groups)),
            None => Ok(()),
        }
    }
}

unsafe fn set_gid(shared: &Shared) -> Result<(), c_int> {
    // SAFETY: the parent passed null or valid ids.
    unsafe {
        match shared.credentials.as_ref() {
            Some(ids) => check(libc::syscall(libc::SYS_setresgid, ids.gid, ids.gid, ids.gid)),
            None => Ok(()),
        }
    }
}

unsafe fn set_uid(shared: &Shared) -> Result<(), c_int> {
    // SAFETY: the parent passed null or valid ids; the rest passes no pointers.
    unsafe {
        // privileges that were given to this process only, see capabilities(7); old kernels do not know them
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        match shared.credentials.as_ref() {
            Some(ids) => {
                leave_keyring()?;
                // Until it runs its program it shares this process's memory. Its new user may not look into it, or trace
                // it, whatever fs.suid_dumpable says: the capabilities that it keeps until then, without effect, forbid
                // it until the memory is undumpable. See ptrace(2), "access mode checking".
                libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0);
                check(libc::syscall(libc::SYS_setresuid, ids.uid, ids.uid, ids.uid))?;
                check(libc::prctl(libc::PR_SET_DUMPABLE, 0).into())
            }
            None => Ok(()),
        }
    }
}

/// A new session keyring: that of this process may hold secrets. See session-keyring(7).
unsafe fn leave_keyring() -> Result<(), c_int> {
    // SAFETY: a null name is allowed.
    match check(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, ptr::null::<c_char>()) }) {
        // the kernel has no keyrings, or a container may not use them
        Err(libc::ENOSYS | libc::EPERM | libc::EACCES) => Ok(()),
        joined => joined,
    }
}

/// See keyctl(2).
const KEYCTL_JOIN_SESSION_KEYRING: c_int = 1;

unsafe fn change_directory(shared: &Shared) -> Result<(), c_int> {
    // SAFETY: the parent passed a C string.
    check(unsafe { libc::chdir(shared.working_directory) }.into())
}

unsafe fn execute(shared: &Shared) -> Result<(), c_int> {
    // SAFETY: as this function's own.
    unsafe {
        default_signals();
        Err(exec_first(shared))
    }
}

/// execve(2) itself puts caught signals back to their default, but keeps ignored ones ignored.
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

/// What [`leave_orphan`] and its child share.
struct Orphanage {
    joins: *const RawFd,
    join_count: usize,
    pid: *const AtomicI32,
    failure: c_int,
}

/// Has a child of its own, in another session, and ends.
extern "C" fn become_parent_of_orphan(argument: *mut c_void) -> c_int {
    // SAFETY: the parent passed a pointer to its `Orphanage`, and waits: this is the only reference in use. System calls
    // on this process's own state; the orphan has memory of its own.
    unsafe {
        let orphanage = &mut *argument.cast::<Orphanage>();
        note_pid(orphanage.pid);
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
                default_signals();
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

/// What [`try_out`] and its child share.
struct Trial {
    pid: *const AtomicI32,
    failure: c_int,
}

extern "C" fn close_files_and_end(argument: *mut c_void) -> c_int {
    // SAFETY: the parent passed a pointer to its `Trial`, and waits: this is the only reference in use. The files are this
    // process's own copies.
    unsafe {
        let trial = &mut *argument.cast::<Trial>();
        note_pid(trial.pid);
        trial.failure = check(libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0)).err().unwrap_or(0);
        libc::_exit(0)
    }
}

fn check(result: c_long) -> Result<(), c_int> {
    if result < 0 { Err(errno()) } else { Ok(()) }
}

/// A child that shares memory shares errno, too, with its parent, which waits.
fn errno() -> c_int {
    // SAFETY: always valid to read in a thread.
    unsafe { *libc::__errno_location() }
}
