//! What runs in a [starter](super::starter), and in its children until they are what they become: nothing but thin wrappers of
//! system calls, as in [`child`](super::child). A child shares the memory of the starter, which waits for it.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr;

use libc::{c_int, c_long, c_void};

use crate::child::{
    Action, FIRST_FILE, STEPS, SharedWithChild, close_other_files, default_rlimits, end, errno, new_session,
    set_defaults, take,
};
use crate::clone::clone_sibling_and_wait;
use crate::{Step, rlimits};

/// What a message to a starter is for: its first byte. The number of the child follows, and the descriptors say the rest.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Message {
    /// Make a child, in the cgroup that is the one descriptor.
    Make = b'm',
    /// To the child: become what is in the memory; with its report, and what is numbered there.
    Become = b'b',
}

/// The length of a message.
pub(super) const MESSAGE_BYTES: usize = 1 + size_of::<u32>();
/// The length of an answer: the number of the child, and the id of its process; 0: there is none.
pub(super) const ANSWER_BYTES: usize = size_of::<u32>() + size_of::<i32>();

/// As many descriptors as come with one at most.
pub(super) const MAX_FILES: usize = 32;
type Files = [RawFd; MAX_FILES];

/// What a starter has.
pub(super) struct Starting {
    pub(super) socket: RawFd,
    pub(super) rlimits: *const [libc::rlimit64; rlimits::KINDS],
    /// The id of the last child's process. This and the next two are in memory that is shared with who has made the starter.
    pub(super) pid: *mut i32,
    /// It has got what it becomes.
    pub(super) is_begun: *mut i32,
    /// What that is.
    pub(super) image: *mut SharedWithChild,
    /// For its children, one after the other.
    pub(super) stack: *mut [MaybeUninit<u128>],
    /// The number of the last child.
    pub(super) number: u32,
    /// It has said which process it is.
    pub(super) is_known: bool,
}

/// The only descriptor of a starter.
const SOCKET: RawFd = FIRST_FILE;

/// Makes children, one after the other, until the other end of the socket is closed.
pub(super) extern "C" fn make_children(argument: *mut c_void) -> c_int {
    // SAFETY: the parent passed a pointer to its `Starting`, of which this process has a copy, and of what is in it, but for the
    // image. It calls thin wrappers of system calls, and each child is waited for.
    unsafe {
        let starting = &mut *argument.cast::<Starting>();
        if (starting.socket != SOCKET && libc::dup2(starting.socket, SOCKET) < 0)
            || libc::prctl(libc::PR_SET_NAME, c"telexec-starter".as_ptr()) < 0
        {
            libc::_exit(1);
        }
        // copies of what others have
        libc::syscall(libc::SYS_close_range, SOCKET + 1, u32::MAX, 0 as c_long);
        // its children have these from it
        if !set_defaults() || default_rlimits(&mut SharedWithChild::unknown(starting.rlimits.cast())).is_err() {
            libc::_exit(1);
        }
        loop {
            // also what came with a message that was for a child, which has ended before it
            libc::syscall(libc::SYS_close_range, SOCKET + 1, u32::MAX, 0 as c_long);
            let mut files: Files = [-1; MAX_FILES];
            let Some((message, number)) = receive(SOCKET, &mut files) else { libc::_exit(0) };
            if message == Message::Make as u8 {
                (starting.number, starting.is_known) = (number, false);
                let (argument, stack) = (ptr::from_mut(starting).cast(), &mut *starting.stack);
                let [birthplace, ..] = files;
                let made = clone_sibling_and_wait(become_one, argument, stack, birthplace, starting.pid);
                // one that was killed may have said so, and not noted it: the number tells
                if made.is_err() || !starting.is_known {
                    answer(number, 0);
                }
            }
        }
    }
}

/// A child: says which process it is, takes the first steps, waits for what it becomes, and becomes that.
extern "C" fn become_one(argument: *mut c_void) -> c_int {
    // SAFETY: this is the only reference in use: the starter waits.
    let starting = unsafe { &mut *argument.cast::<Starting>() };
    let mut early = SharedWithChild::unknown(ptr::null());
    // as what stays open
    early.executable = SOCKET;
    const STEPS_AHEAD: [(Step, Action); 2] = [(Step::Setsid, new_session), (Step::CloseRange, close_other_files)];
    // SAFETY: this is such a child; few files are open.
    unsafe {
        answer(starting.number, libc::getpid());
        starting.is_known = true;
        // a failure is reported when there is somebody to report it to
        let has_begun = take(&STEPS_AHEAD, &mut early);
        let mut files: Files = [-1; MAX_FILES];
        if receive(early.executable, &mut files) != Some((Message::Become as u8, starting.number)) {
            libc::_exit(127);
        }
        (*starting.is_begun) = 1;
        // it was filled in before the message, and is not used by anyone else until this child has left it
        let shared = &mut *starting.image;
        number_files(shared, &files);
        if has_begun {
            take(&STEPS, shared);
        } else {
            shared.failure = early.failure;
        }
        end(shared)
    }
}

/// Says which process the child with this number is; 0: there is none.
///
/// # Safety
/// As [`Action`].
unsafe fn answer(number: u32, pid: c_int) {
    let ([a, b, c, d], [e, f, g, h]) = (number.to_le_bytes(), pid.to_le_bytes());
    let answer: [u8; ANSWER_BYTES] = [a, b, c, d, e, f, g, h];
    // SAFETY: it is as long as it says.
    unsafe { libc::send(SOCKET, answer.as_ptr().cast(), answer.len(), libc::MSG_NOSIGNAL) };
}

/// Waits for a message and its number; `None`: the other end is closed, or it is none.
///
/// # Safety
/// As [`Action`].
unsafe fn receive(socket: RawFd, files: &mut Files) -> Option<(u8, u32)> {
    // aligned as a cmsghdr
    let mut control = [0_u64; (size_of::<libc::cmsghdr>() + size_of::<Files>()).div_ceil(8)];
    let mut bytes = [0_u8; MESSAGE_BYTES];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: MESSAGE_BYTES };
    // SAFETY: plain data, for which zeroes are a value; the pointers are valid for the call, and for what they point to.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let received = loop {
            match libc::recvmsg(socket, &raw mut message, libc::MSG_CMSG_CLOEXEC) {
                ..0 if errno() == libc::EINTR => {}
                received => break received,
            }
        };
        if received != MESSAGE_BYTES as isize || message.msg_flags & libc::MSG_CTRUNC != 0 {
            return None;
        }
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if !header.is_null() && ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            let length = ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            let length = if length < size_of_val(files) { length } else { size_of_val(files) };
            ptr::copy_nonoverlapping(libc::CMSG_DATA(header), files.as_mut_ptr().cast(), length);
        }
    }
    let [message, a, b, c, d] = bytes;
    Some((message, u32::from_le_bytes([a, b, c, d])))
}

/// Puts the descriptors in the places of their numbers in the message.
///
/// # Safety
/// `shared` is filled in.
unsafe fn number_files(shared: &mut SharedWithChild, files: &Files) {
    let place = |file: &mut RawFd| {
        let number = usize::try_from(*file).ok().and_then(|number| files.get(number));
        *file = number.copied().unwrap_or(-1);
    };
    shared.streams.iter_mut().for_each(place);
    place(&mut shared.executable);
    place(&mut shared.report);
    // SAFETY: there are so many of them, in memory that only this child uses now.
    unsafe {
        (0..shared.join_count).for_each(|n| place(&mut *shared.joins.add(n).cast_mut()));
        (0..shared.chown_count).for_each(|n| place(&mut (*shared.chowns.add(n).cast_mut()).file));
    }
}
