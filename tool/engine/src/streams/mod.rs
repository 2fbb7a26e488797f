//! The standard streams of one command: made before it is started, so that its output is read from its first byte on.

pub(crate) mod end;
pub(crate) mod input;
mod read_ahead;
pub(crate) mod source;
pub(crate) mod terminal;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{Gid, Uid, fchown};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};
use telexec_executor::{Command, OutputStream, TerminalSize};
use telexec_spawn::Credentials;

use self::end::{StreamEnd, StreamThreads};
use self::input::{KeptInput, Sink};
use self::source::{Relay, Source};
use self::terminal::{Peer, Terminal};
use crate::state::checkpoint::{Checkpoint, Closed};
use crate::state::input_file::InputFile;

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

/// What of the streams, and beside them, the next agent needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HeldFile {
    Checkpoint,
    /// The pipe to the command, and what goes into it.
    Stdin,
    Input,
    Stdout,
    Stderr,
    Terminal,
    /// Its other side.
    Peer,
    /// See [`Relay`].
    RelayRead,
    RelayWrite,
}

/// Copies of these, for the keeper, which numbers them in this order.
pub(crate) type HeldFiles = Vec<(HeldFile, OwnedFd)>;

/// The streams of a command.
pub(crate) struct Streams {
    pub(crate) ends: Ends,
    pub(crate) command_ends: CommandEnds,
    /// None without a checkpoint.
    pub(crate) held: HeldFiles,
}

/// New streams for a command; `given` is the standard input of one that has none of its own.
///
/// # Errors
/// There are no more descriptors or terminals, or the runtime cannot watch another descriptor.
pub(crate) fn open(
    command: &Command,
    given: Option<OwnedFd>,
    checkpoint: Option<&Arc<Checkpoint>>,
    threads: &StreamThreads,
) -> io::Result<Streams> {
    match command.terminal() {
        None => pipes(command, given, checkpoint, threads),
        Some(size) => terminal(size, command, checkpoint, threads),
    }
}

fn pipes(
    command: &Command,
    given: Option<OwnedFd>,
    checkpoint: Option<&Arc<Checkpoint>>,
    threads: &StreamThreads,
) -> io::Result<Streams> {
    let with_stdin = !command.stdin().is_empty() || command.accepts_input();
    let (stdin_end, stdin) = match with_stdin.then(pipe).transpose()? {
        Some((read, write)) => (Some(above_standard_streams(read)?), Some(write)),
        None => (given.map(|given| given.try_clone()).transpose()?, None),
    };
    let (stdout, stdout_end) = pipe()?;
    let (stderr, stderr_end) = match command.merge_output() {
        true => (None, stdout_end.try_clone()?),
        false => pipe().map(|(read, write)| (Some(read), write))?,
    };
    let (mut held, mut kept_input) = (HeldFiles::new(), None);
    if let Some(checkpoint) = checkpoint {
        held.push((HeldFile::Checkpoint, checkpoint.as_fd().try_clone_to_owned()?));
        held.push((HeldFile::Stdout, stdout.try_clone()?));
        if let Some(stderr) = &stderr {
            held.push((HeldFile::Stderr, stderr.try_clone()?));
        }
        if let Some(stdin) = &stdin {
            let file = InputFile::new(command.stdin())?;
            let number = u8::try_from(held.len()).unwrap_or(u8::MAX);
            held.push((HeldFile::Stdin, stdin.try_clone()?));
            held.push((HeldFile::Input, file.as_fd().try_clone_to_owned()?));
            kept_input = Some(KeptInput::new(file, checkpoint, number));
        }
    }
    let source = |pipe, stream| {
        Source::pipe(StreamEnd::new(pipe, threads)?, checkpoint.map(|checkpoint| (Arc::clone(checkpoint), stream)))
    };
    let ends = Ends {
        stdin: Sink::pipe(stdin, kept_input, threads)?,
        stdout: source(stdout, OutputStream::Stdout)?,
        stderr: stderr.map(|stderr| source(stderr, OutputStream::Stderr)).transpose()?,
        terminal: None,
    };
    let [stdout, stderr] = [above_standard_streams(stdout_end)?, above_standard_streams(stderr_end)?];
    Ok(Streams { ends, command_ends: CommandEnds::Pipes { stdin: stdin_end, stdout, stderr }, held })
}

fn terminal(
    size: TerminalSize,
    command: &Command,
    checkpoint: Option<&Arc<Checkpoint>>,
    threads: &StreamThreads,
) -> io::Result<Streams> {
    let (this_side, other_side) = terminal::open(size)?;
    let command_ends = CommandEnds::Terminal(other_side.try_clone()?);
    let (mut held, mut relay) = (HeldFiles::new(), None);
    if let Some(checkpoint) = checkpoint {
        let (read, write) = pipe()?;
        held.push((HeldFile::Checkpoint, checkpoint.as_fd().try_clone_to_owned()?));
        held.push((HeldFile::Terminal, this_side.try_clone()?));
        held.push((HeldFile::Peer, other_side.try_clone()?));
        held.push((HeldFile::RelayRead, read.try_clone()?));
        held.push((HeldFile::RelayWrite, write.try_clone()?));
        if !command.stdin().is_empty() {
            held.push((HeldFile::Input, InputFile::new(command.stdin())?.as_fd().try_clone_to_owned()?));
        }
        relay = Some(Relay::new(read, write, Arc::clone(checkpoint)));
    }
    // in the order above
    let peer = Peer { file: other_side, kept: checkpoint.map(|checkpoint| (Arc::clone(checkpoint), 2)) };
    let terminal = Arc::new(Terminal::new(StreamEnd::new(this_side, threads)?, Some(peer))?);
    let ends = Ends {
        stdin: Sink::Terminal(Arc::clone(&terminal), checkpoint.cloned()),
        stdout: Source::Terminal(Arc::clone(&terminal), relay),
        stderr: None,
        terminal: Some(terminal),
    };
    Ok(Streams { ends, command_ends, held })
}

/// This side's ends of the streams of a command that an earlier agent has left; and, of what it starts with, which is `first`
/// bytes long, what it has not got, how much it has got, and whether its input is closed.
///
/// # Errors
/// Some of it is missing, or the runtime cannot watch another descriptor.
pub(crate) fn reopen(
    mut files: BTreeMap<HeldFile, (u8, OwnedFd)>,
    checkpoint: &Arc<Checkpoint>,
    first: u64,
    threads: &StreamThreads,
) -> io::Result<(Ends, Bytes, InputState)> {
    let mut take = |file| files.remove(&file);
    let closed = checkpoint.input_closed()?;
    let input = take(HeldFile::Input).map(|(_, file)| InputFile::open(file));
    if let Some((_, terminal)) = take(HeldFile::Terminal) {
        let mut need = |file| take(file).map(|(_, file)| file).ok_or_else(missing);
        let (read, write) = (need(HeldFile::RelayRead)?, need(HeldFile::RelayWrite)?);
        // it is closed once the command has ended
        let peer = take(HeldFile::Peer);
        let peer = peer.map(|(number, file)| Peer { file, kept: Some((Arc::clone(checkpoint), number)) });
        let terminal = Arc::new(Terminal::new(StreamEnd::new(terminal, threads)?, peer)?);
        let (committed, at_line_start) = checkpoint.typed()?;
        let left = input.map(|input| input.left(first, committed)).transpose()?.unwrap_or_default();
        let ends = Ends {
            stdin: Sink::Terminal(Arc::clone(&terminal), Some(Arc::clone(checkpoint))),
            stdout: Source::Terminal(Arc::clone(&terminal), Some(Relay::new(read, write, Arc::clone(checkpoint)))),
            stderr: None,
            terminal: Some(terminal),
        };
        return Ok((ends, left, InputState { committed, closed, at_line_start }));
    }
    let source = |pipe, stream| Source::pipe(StreamEnd::new(pipe, threads)?, Some((Arc::clone(checkpoint), stream)));
    let stdout = take(HeldFile::Stdout).ok_or_else(missing)?.1;
    let stderr = take(HeldFile::Stderr).map(|(_, stderr)| source(stderr, OutputStream::Stderr));
    let stdin = take(HeldFile::Stdin);
    let committed = input.as_ref().map(InputFile::sent).transpose()?.unwrap_or_default();
    let left = match &input {
        Some(input) if closed == Closed::No => input.left(first, committed)?,
        _ => Bytes::new(),
    };
    if let Some((number, _)) = stdin.as_ref().filter(|_| closed != Closed::No) {
        checkpoint.close(*number);
    }
    let stdin = match (stdin, input) {
        (Some((number, pipe)), Some(file)) if closed == Closed::No => {
            Sink::pipe(Some(pipe), Some(KeptInput::new(file, checkpoint, number)), threads)?
        }
        _ => Sink::Closed,
    };
    let stdout = source(stdout, OutputStream::Stdout)?;
    let ends = Ends { stdin, stdout, stderr: stderr.transpose()?, terminal: None };
    Ok((ends, left, InputState { committed, closed, at_line_start: true }))
}

/// What others may still write to of a command that has ended under an earlier agent.
///
/// # Errors
/// The runtime cannot watch another descriptor.
pub(crate) fn rests(files: BTreeMap<HeldFile, (u8, OwnedFd)>, threads: &StreamThreads) -> io::Result<Vec<Source>> {
    let rest = |(kind, (_, file))| match kind {
        HeldFile::Stdout | HeldFile::Stderr => {
            Some(StreamEnd::new(file, threads).and_then(|pipe| Source::pipe(pipe, None)))
        }
        HeldFile::Terminal => {
            let terminal = StreamEnd::new(file, threads).and_then(|end| Terminal::new(end, None));
            Some(terminal.map(|terminal| Source::Terminal(terminal.into(), None)))
        }
        HeldFile::Checkpoint
        | HeldFile::Stdin
        | HeldFile::Input
        | HeldFile::Peer
        | HeldFile::RelayRead
        | HeldFile::RelayWrite => None,
    };
    files.into_iter().filter_map(rest).collect()
}

/// How far the input of a command is.
#[derive(Clone, Copy)]
pub(crate) struct InputState {
    /// The command has got so many bytes.
    pub(crate) committed: u64,
    pub(crate) closed: Closed,
    /// What is typed next begins a line.
    pub(crate) at_line_start: bool,
}

fn missing() -> io::Error {
    io::Error::other("a descriptor is missing")
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

/// With a number that is not 0, 1 or 2: this process may run without those.
pub(crate) fn above_standard_streams(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    if fd.as_raw_fd() > 2 { Ok(fd) } else { fcntl_dupfd_cloexec(fd, 3) }
}

/// Ends without input, and a pipe in which all output is.
#[cfg(test)]
pub(crate) fn with_output_in_one_pipe() -> (io::PipeReader, CommandEnds) {
    let (read, write) = io::pipe().unwrap();
    let stderr = write.try_clone().unwrap().into();
    (read, CommandEnds::Pipes { stdin: None, stdout: write.into(), stderr })
}
