//! Another program in place of this one, in the same process.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_setfd};

/// Runs the program that is the first of these arguments in place of this one. Signals that are blocked or wait stay so, as with
/// execve(2). Returns only if that cannot be.
pub(crate) fn replace_program(arguments: &[CString]) -> io::Error {
    let Some(program) = arguments.first() else { return io::ErrorKind::InvalidInput.into() };
    let pointers: Vec<_> = arguments.iter().map(|argument| argument.as_ptr()).chain([std::ptr::null()]).collect();
    // SAFETY: C strings, and a list of such that ends with a null; all are alive until this returns.
    unsafe { libc::execv(program.as_ptr(), pointers.as_ptr()) };
    io::Error::last_os_error()
}

/// Makes a descriptor this program's own that the one before has left open for it. It is inherited by no other.
///
/// # Errors
/// It is not open.
pub(crate) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: it is used for this call alone, which fails if it is not open.
    fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and the program before this one left it to nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
