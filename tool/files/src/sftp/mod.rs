//! SFTP, version 3 (draft-ietf-secsh-filexfer-02), as OpenSSH's sftp-server speaks it, with its extensions.
//!
//! Requests are answered one after another, in the order in which they came. What has come meanwhile is read with it,
//! and answers are sent when no complete request is left: a client that keeps many in flight costs few system calls.
//! Names are bytes; relative ones begin at the working directory of the process.
//!
//! # What is asked
//! The [`Gate`] is asked with the path that a file really has, before the file is touched:
//!
//! | request | question |
//! |---|---|
//! | open | [`Access::Read`] to read; [`Access::Write`] to write, create or truncate |
//! | opendir, stat, lstat, readlink, statvfs | [`Access::List`] |
//! | setstat, lsetstat, mkdir, rmdir, remove, symlink | [`Access::Write`] |
//! | rename, posix-rename | [`Access::Write`] for both paths |
//! | hardlink | [`Access::Write`] for both paths, for the source [`Access::Read`] too |
//! | fsetstat | [`Access::Write`], unless the file was opened to be written |
//!
//! Nothing is asked for what goes on with an open handle, copy-data included: that was asked when it was opened. Nor
//! for realpath and expand-path, or else no client would find out where it is. They tell what resolving a path tells
//! anyway, as a refusal does that names the real path: whether the directory exists, and where symbolic links lead.
//! Whether the last name exists they do not tell.
//!
//! # Pipes and devices
//! All files are opened without waiting (`O_NONBLOCK`), and never as the controlling terminal: nobody can make a
//! session hang with a named pipe. Requests carry positions, which pipes and terminals do not have: these can be
//! opened, and reading and writing fails (`ESPIPE`), as in OpenSSH. A named pipe that nobody reads cannot be opened to
//! write (`ENXIO`).

mod answers; // packets to the client
mod attributes; // of files, as they go over the wire
mod directories; // reading them
mod extensions; // of OpenSSH and later drafts
mod files; // open ones
mod handles; // what is open
mod long_name; // a line of ls -l
mod packets; // from the client
mod paths; // requests that name a file
mod session; // requests, one after another
mod wire; // numbers and fields

#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};

pub use crate::message::Access;

/// Decides before a file is touched, and hears what was done.
pub trait Gate {
    /// Whether the file with this path, which is without symbolic links, may be used so. A `false` becomes a refusal
    /// that names the path.
    ///
    /// # Errors
    /// Nobody can decide: the session ends.
    fn permit(&mut self, access: Access, real_path: &[u8]) -> io::Result<bool>;

    /// The same for what a file that moves has in it, or a directory that moves contains, if [`judges_parts`](Self::judges_parts).
    ///
    /// # Errors
    /// As of [`permit`](Self::permit).
    fn permit_part(&mut self, access: Access, real_path: &[u8]) -> io::Result<bool> {
        self.permit(access, real_path)
    }

    /// Whether [`permit_part`](Self::permit_part) is to be asked. Default: no.
    fn judges_parts(&self) -> bool {
        false
    }

    /// A file (no directory) that was open is closed, by the client or because the session ends.
    ///
    /// # Errors
    /// It cannot be recorded: the session ends.
    fn closed(&mut self, file: ClosedFile) -> io::Result<()>;
}

/// What was done with a file while it was open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedFile {
    /// The path that it had when it was opened, without symbolic links.
    pub path: Vec<u8>,
    /// Bytes that were read from it.
    pub bytes_read: u64,
    /// Bytes that were written to it.
    pub bytes_written: u64,
}

/// Answers requests until the input ends.
///
/// Nothing is read while an answer is written. The streams have to hold what a client sends meanwhile, if that reads no
/// answers before it has sent all its requests.
///
/// # Errors
/// The output is closed, the gate fails, or what comes is not SFTP: a packet that is too long, is cut short, or lacks
/// fields of its request. What was asked before that is answered.
pub fn serve(input: impl Read, output: impl Write, gate: &mut impl Gate) -> io::Result<()> {
    session::Session::new(output, gate).run(packets::Packets::new(input))
}
