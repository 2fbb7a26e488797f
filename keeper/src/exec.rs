//! Executing another program in this process, and what it inherits.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// Executes the first of these arguments in place of this program. Blocked signals stay blocked, as execve(2) has it. Returns
/// only if that fails.
pub(crate) fn replace_program(arguments: &[CString]) -> io::Error {
    let Some(program) = arguments.first() else { return io::ErrorKind::InvalidInput.into() };
    let pointers: Vec<_> = arguments.iter().map(|argument| argument.as_ptr()).chain([std::ptr::null()]).collect();
    // SAFETY: C strings, and a list of such that ends with a null; all are alive until this returns.
    unsafe { libc::execv(program.as_ptr(), pointers.as_ptr()) };
    io::Error::last_os_error()
}

/// Takes a descriptor that the last program has left open. No other program inherits it. For programs where nothing else owns
/// descriptors without the flag close-on-exec, which tells those left open from all others.
///
/// # Errors
/// It is not one of these: not open, a standard stream, or this program's own already.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, format!("descriptor {number} was not inherited"));
    if number <= libc::STDERR_FILENO {
        return Err(wrong());
    }
    // SAFETY: borrowed for these two calls alone, which fail if it is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    // all that this program has opened or taken has the flag
    if fcntl_getfd(borrowed).map_err(|_| wrong())?.contains(FdFlags::CLOEXEC) {
        return Err(wrong());
    }
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and nothing in this program owns it: what that owns has the flag.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
