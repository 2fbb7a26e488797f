//! The standard streams of one command: made before it is started, so that its output is read from its first byte on.

pub(crate) mod input;
pub(crate) mod source;
pub(crate) mod terminal;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::fs::{Gid, Uid, fchown};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::pipe::{PipeFlags, pipe_with};
use telexec_executor::{Command, TerminalSize};
use telexec_spawn::Credentials;

use self::input::Sink;
use self::source::Source;
use self::terminal::Terminal;

/// This side's ends.
pub(crate) struct Ends {
    pub(crate) stdin: Sink,
    pub(crate) stdout: Source,
    /// `None`: it is a part of standard output, as on a terminal.
    pub(crate) stderr: Option<Source>,
    pub(crate) terminal: Option<Arc<Terminal>>,
}

/// The command's ends: none is 0, 1 or 2, which connecting those in turn would overwrite.
pub(crate) enum CommandEnds {
    Pipes {
        /// `None`: `/dev/null`.
        stdin: Option<OwnedFd>,
        stdout: OwnedFd,
        stderr: OwnedFd,
    },
    /// All three.
    Terminal(OwnedFd),
}

/// New streams for a command; `given` is the standard input of one that has none of its own.
///
/// # Errors
/// There are no more descriptors or terminals, or the runtime cannot watch another descriptor.
pub(crate) fn open(command: &Command, given: Option<OwnedFd>) -> io::Result<(Ends, CommandEnds)> {
    match command.terminal() {
        None => pipes(!command.stdin().is_empty() || command.accepts_input(), given, command.merge_output()),
        Some(size) => terminal(size),
    }
}

fn pipes(with_stdin: bool, given: Option<OwnedFd>, merged: bool) -> io::Result<(Ends, CommandEnds)> {
    let (stdin_end, stdin) = match with_stdin.then(pipe).transpose()? {
        Some((read, write)) => (Some(above_standard_streams(read.as_fd())?), Some(write)),
        None => (given.map(|given| above_standard_streams(given.as_fd())).transpose()?, None),
    };
    let (stdout, stdout_end) = pipe()?;
    let (stderr, stderr_end) = match merged {
        true => (None, stdout_end.try_clone()?),
        false => pipe().map(|(read, write)| (Some(read), write))?,
    };
    let ends = Ends {
        stdin: Sink::pipe(stdin)?,
        stdout: Source::pipe(stdout)?,
        stderr: stderr.map(Source::pipe).transpose()?,
        terminal: None,
    };
    let [stdout, stderr] = [above_standard_streams(stdout_end.as_fd())?, above_standard_streams(stderr_end.as_fd())?];
    Ok((ends, CommandEnds::Pipes { stdin: stdin_end, stdout, stderr }))
}

fn terminal(size: TerminalSize) -> io::Result<(Ends, CommandEnds)> {
    let (this_side, other_side) = terminal::open(size)?;
    let end = CommandEnds::Terminal(above_standard_streams(other_side.as_fd())?);
    let terminal = Arc::new(Terminal::new(this_side, other_side)?);
    let ends = Ends {
        stdin: Sink::Terminal(Arc::clone(&terminal)),
        stdout: Source::Terminal(Arc::clone(&terminal)),
        stderr: None,
        terminal: Some(terminal),
    };
    Ok((ends, end))
}

impl CommandEnds {
    /// Gives them to the user who is to have them: a pipe belongs to who made it, and another could not open it as
    /// /dev/stdout. If this process may not give them away, it may not become that user either, and that step's error
    /// says why.
    pub(crate) fn give(&self, user: &Credentials) {
        match self {
            Self::Pipes { stdin, stdout, stderr } => {
                for pipe in stdin.iter().chain([stdout, stderr]) {
                    let _ = fchown(pipe, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)));
                }
            }
            Self::Terminal(end) => terminal::give(end, user),
        }
    }

    /// A terminal; or standard input, if there is one, output and error.
    pub(crate) fn all(&self) -> Vec<&OwnedFd> {
        match self {
            Self::Pipes { stdin, stdout, stderr } => stdin.iter().chain([stdout, stderr]).collect(),
            Self::Terminal(end) => vec![end],
        }
    }

    /// Standard input, output and error, with `null` for what there is no pipe for.
    pub(crate) fn raw(&self, null: &OwnedFd) -> [RawFd; 3] {
        match self {
            Self::Pipes { stdin, stdout, stderr } => {
                [stdin.as_ref().unwrap_or(null), stdout, stderr].map(AsRawFd::as_raw_fd)
            }
            Self::Terminal(end) => [end.as_raw_fd(); 3],
        }
    }
}

/// Both ends are closed on exec; (read, write).
fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    pipe_with(PipeFlags::CLOEXEC)
}

/// A copy with a number that is not 0, 1 or 2: this process may run without those.
pub(crate) fn above_standard_streams(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    fcntl_dupfd_cloexec(fd, 3)
}

/// Ends without input, and a pipe in which all output is.
#[cfg(test)]
pub(crate) fn with_output_in_one_pipe() -> (io::PipeReader, CommandEnds) {
    let (read, write) = io::pipe().unwrap();
    let stderr = write.try_clone().unwrap().into();
    (read, CommandEnds::Pipes { stdin: None, stdout: write.into(), stderr })
}
