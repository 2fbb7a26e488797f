//! Requests, one after another.

use std::io::{self, Read, Write};

use prost::Message;
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use telexec_executor::{FileError, FileOperation, FilePath};

use crate::descend::paths_below;
use crate::frame::{self, Kind};
use crate::message::{Access, Answer, Done, Info, Outcome, Question, Request, Task};
use crate::names::Names;
use crate::place::{Links, Place};
use crate::search::{MAX_QUESTIONS, below};
use crate::sync::Unsynced;
use crate::{list, read, search, tree, tunnel, watch, write};

/// Answers requests until the input ends.
///
/// # Errors
/// A pipe is closed, or what comes is not to be understood: the agent is gone, or is another version.
pub fn serve(input: impl Read, output: impl Write) -> io::Result<()> {
    let mut session = Session {
        input,
        output,
        names: Names::default(),
        unsynced: Unsynced::default(),
        data: Vec::new(),
        asks: false,
        asks_below: false,
    };
    while let Some(request) = session.request()? {
        (session.asks, session.asks_below) = (request.asks, request.asks_below);
        let outcome = match request.task {
            Some(task) => session.outcome(task)?,
            None => return Err(malformed("a request without a task")),
        };
        session.answer(outcome)?;
    }
    Ok(())
}

/// Why a request has no result.
pub(crate) enum Refusal {
    /// The pipes are of no more use.
    Io(io::Error),
    /// The system refused.
    Failed(FileError),
    /// The agent's verdict was no.
    Denied(Vec<u8>),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<FileError> for Refusal {
    fn from(error: FileError) -> Self {
        Self::Failed(error)
    }
}

pub(crate) fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Makes the errors of one operation with one path.
pub(crate) fn failure(operation: FileOperation, path: &[u8]) -> impl Fn(Errno) -> FileError {
    move |errno| FileError { operation, path: FilePath::new(path), errno: errno.raw_os_error() }
}

/// A piece of a file.
pub(crate) enum Piece<'a> {
    Data(&'a [u8]),
    /// So many zeros, which take no room on the disk.
    Hole(u64),
}

/// The pipes, and what is known beside them.
pub(crate) struct Session<I, O> {
    input: I,
    output: O,
    pub(crate) names: Names,
    pub(crate) unsynced: Unsynced,
    /// Of the frame that was read last.
    data: Vec<u8>,
    asks: bool,
    asks_below: bool,
}

impl<I: Read, O: Write> Session<I, O> {
    fn request(&mut self) -> io::Result<Option<Request>> {
        loop {
            match frame::read(&mut self.input, &mut self.data)? {
                None => return Ok(None),
                Some(Kind::Request) => break,
                // of a file that was refused
                Some(Kind::Data | Kind::Hole | Kind::End) => {}
                Some(_) => return Err(malformed("a frame where a request was due")),
            }
        }
        Request::decode(&self.data[..]).map(Some).map_err(|error| malformed(&error.to_string()))
    }

    fn outcome(&mut self, task: Task) -> io::Result<Outcome> {
        let outcome = match task {
            Task::Read(task) => read::read(self, &task),
            Task::Write(task) => write::write(self, &task),
            Task::Info(path) => self.info(&path),
            Task::List(task) => list::list(self, &task),
            Task::Search(task) => search::search(self, &task),
            Task::Watch(task) => watch::watch(self, &task),
            Task::MakeDirectory(task) => tree::make_directory(self, &task),
            Task::Move(task) => tree::rename(self, &task),
            Task::Remove(task) => tree::remove(self, &task),
            Task::MakeLink(task) => tree::make_link(self, &task),
            Task::Sftp(_) => {
                let served = tunnel::serve(&mut self.input, &mut self.output, self.asks, self.asks_below);
                served.map(|()| Outcome::Done(Done {})).map_err(Refusal::from)
            }
            Task::Sync(_) => self.unsynced.sync().map(|()| Outcome::Done(Done {})).map_err(Refusal::from),
        };
        match outcome {
            Ok(outcome) => Ok(outcome),
            Err(Refusal::Failed(error)) => Ok(Outcome::Failed(error.into())),
            Err(Refusal::Denied(path)) => Ok(Outcome::Denied(path)),
            Err(Refusal::Io(error)) => Err(error),
        }
    }

    fn info(&mut self, path: &[u8]) -> Result<Outcome, Refusal> {
        let failed = failure(FileOperation::Open, path);
        let place = Place::of(path, Links::Keep).map_err(&failed)?;
        self.permitted(Access::List, &place)?;
        let stat = place.stat().map_err(&failed)?;
        Ok(Outcome::Info(self.describe(path, &stat, place.link_target())))
    }

    /// Sends an answer, with all that was queued.
    pub(crate) fn answer(&mut self, outcome: Outcome) -> io::Result<()> {
        self.queue_answer(outcome)?;
        self.output.flush()
    }

    /// Sends an answer with the next one at the latest.
    pub(crate) fn queue_answer(&mut self, outcome: Outcome) -> io::Result<()> {
        self.queue(Kind::Answer, &Answer { outcome: Some(outcome) }.encode_to_vec())
    }

    /// Sends what was queued.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    /// Sends a piece of a file with the next answer at the latest.
    pub(crate) fn queue(&mut self, kind: Kind, data: &[u8]) -> io::Result<()> {
        frame::write(&mut self.output, kind, data)
    }

    /// The next piece of the file that is to be written; `None`: it is complete.
    pub(crate) fn piece(&mut self) -> io::Result<Option<Piece<'_>>> {
        match frame::read(&mut self.input, &mut self.data)? {
            Some(Kind::Data) => Ok(Some(Piece::Data(&self.data))),
            Some(Kind::Hole) => Ok(Some(Piece::Hole(frame::hole(&self.data)?))),
            Some(Kind::End) => Ok(None),
            Some(_) => Err(malformed("a frame where data was due")),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Whether the agent permits this with what is there.
    pub(crate) fn permitted(&mut self, access: Access, place: &Place) -> Result<(), Refusal> {
        if !self.asks {
            return Ok(());
        }
        let path = place.real();
        if self.asked(access, &path)? { Ok(()) } else { Err(Refusal::Denied(path)) }
    }

    /// What the agent says of this, with the path that is really there.
    pub(crate) fn asked(&mut self, access: Access, real: &[u8]) -> io::Result<bool> {
        self.ask(access, real, false)?;
        self.output.flush()?;
        self.verdict()
    }

    /// Whether the agent permits this with the content of a file or directory too, and with all that a directory contains.
    /// Each access is to what has this path now, or is to have it.
    pub(crate) fn permitted_whole(&mut self, place: &Place, accesses: &[(Access, &[u8])]) -> Result<(), Refusal> {
        if !self.asks_below {
            return Ok(());
        }
        let paths = paths_below(place).map_err(failure(FileOperation::Open, &place.real()))?;
        let whole = |base: &&[u8]| {
            std::iter::once(base.to_vec()).chain(paths.iter().map(|path| below(base, path))).collect::<Vec<_>>()
        };
        let uses = accesses.iter().flat_map(|(access, base)| whole(base).into_iter().map(|path| (*access, path)));
        let uses: Vec<_> = uses.collect();
        for some in uses.chunks(MAX_QUESTIONS) {
            for (access, real) in some {
                self.ask(*access, real, true)?;
            }
            self.output.flush()?;
            let verdicts = some.iter().map(|_| self.verdict()).collect::<io::Result<Vec<_>>>()?;
            if let Some(((_, denied), _)) = some.iter().zip(verdicts).find(|(_, verdict)| !verdict) {
                return Err(Refusal::Denied(denied.clone()));
            }
        }
        Ok(())
    }

    /// The same of several at once. Their verdicts must fit into a pipe.
    pub(crate) fn asked_all<'a>(
        &mut self,
        access: Access,
        real: impl Iterator<Item = &'a [u8]>,
    ) -> io::Result<Vec<bool>> {
        let mut asked = 0;
        for real in real {
            self.ask(access, real, false)?;
            asked += 1;
        }
        self.output.flush()?;
        (0..asked).map(|_| self.verdict()).collect()
    }

    fn ask(&mut self, access: Access, real: &[u8], is_part: bool) -> io::Result<()> {
        let question = Question { access: access.into(), path: real.to_vec(), is_part };
        frame::write(&mut self.output, Kind::Question, &question.encode_to_vec())
    }

    fn verdict(&mut self) -> io::Result<bool> {
        match frame::read(&mut self.input, &mut self.data)? {
            Some(Kind::Verdict) => Ok(self.data == [1]),
            Some(_) => Err(malformed("a frame where a verdict was due")),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// What is known of a file.
    pub(crate) fn describe(&mut self, path: &[u8], stat: &Stat, link_target: Option<Vec<u8>>) -> Info {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => 1,
            FileType::Symlink => 2,
            FileType::Fifo => 3,
            FileType::Socket => 4,
            FileType::CharacterDevice => 5,
            FileType::BlockDevice => 6,
            _ => 0,
        };
        Info {
            path: path.to_vec(),
            kind,
            size: u64::try_from(stat.st_size).unwrap_or_default(),
            mode: stat.st_mode & 0o7777,
            owner: self.names.user(stat.st_uid),
            group: self.names.group(stat.st_gid),
            modify_seconds: stat.st_mtime,
            modify_nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or_default(),
            link_target,
        }
    }
}
