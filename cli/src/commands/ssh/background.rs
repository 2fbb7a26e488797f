//! -f: the command runs in a second process, which leaves the terminal. This one ends as soon as the agent has answered
//! that one, with whose code otherwise.
//!
//! A process with threads cannot fork. The second one says that it is connected on its standard input, a socket, which
//! it does not read.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;

use crate::output::{Failure, exit};

/// Set for the second process.
const VARIABLE: &str = "TELEXEC_SSH_IN_BACKGROUND";

/// Whether this is the second process.
pub(super) fn is_here() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Starts the second process, with the same words, and waits until it is connected.
pub(super) fn start(words: &[OsString]) -> Result<u8, Failure> {
    let failed = |error: io::Error| Failure::new(exit::LOST, &error).context("cannot go to the background");
    let (mut answer, stdin) = UnixStream::pair().map_err(failed)?;
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command.arg("ssh").args(words).env(VARIABLE, "1").stdin(OwnedFd::from(stdin));
    let mut child = command.spawn().map_err(failed)?;
    // the other end is only there
    drop(command);
    if answer.read(&mut [0]).map_err(failed)? == 1 {
        return Ok(0);
    }
    let code = child.wait().map_err(failed)?.code();
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::LOST))
}

/// In the second process: leaves the terminal, and lets the first one end.
pub(super) fn connected() -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new(exit::LOST, &error).context("cannot go to the background");
    rustix::process::setsid().map_err(|error| failed(error.into()))?;
    let stdin = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    File::from(stdin).write_all(&[0]).map_err(failed)
}
