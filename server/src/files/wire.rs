//! Requests as tasks, and what came of them as answers.

use telexec_executor::{FileInfo, FilePath, InvalidCommand};
use telexec_files::message::{
    Info, ListTask, Listed, MakeDirectoryTask, MakeLinkTask, MoveTask, Outcome, ReadTask, RemoveTask, Task, WriteTask,
};
use telexec_proto::convert::{file_info_to_wire, path_from_wire};
use telexec_proto::v1::{
    FileInfo as WireInfo, GetFileInfoRequest, GetFileInfoResponse, ListDirectoryRequest, ListDirectoryResponse,
    MakeDirectoryRequest, MakeDirectoryResponse, MakeLinkRequest, MakeLinkResponse, MoveFileRequest, MoveFileResponse,
    ReadFileEnd, ReadFileRequest, ReadFileResponse, RemoveFileRequest, RemoveFileResponse, WriteFileHeader,
    WriteFileResponse, read_file_response,
};

use super::session::{Job, Step};
use crate::digest::{from_hex, hex};
use crate::policy::FileAction;

/// A larger page is cut to this.
const MAX_PAGE: u32 = 1000;
const MAX_MODE: u32 = 0o7777;

/// A task, and the user whose process is to do it; `None`: the default one.
pub(super) struct Asked {
    pub(super) user: Option<String>,
    pub(super) job: Job,
}

impl Asked {
    pub(super) fn new(user: String, task: Task, action: FileAction, paths: Vec<FilePath>) -> Self {
        let user = Some(user).filter(|user| !user.is_empty());
        Self { user, job: Job { task, action, paths } }
    }
}

/// What a request asks for.
///
/// # Errors
/// A field is malformed.
pub(super) trait Ask {
    fn ask(self) -> Result<Asked, InvalidCommand>;
}

impl Ask for ReadFileRequest {
    fn ask(self) -> Result<Asked, InvalidCommand> {
        let Self { path, user, offset, length, path_bytes, holes, prefix_sha256 } = self;
        let path = path_from_wire("path", path, &path_bytes)?;
        if i64::try_from(offset).is_err() {
            return Err(InvalidCommand::new("offset", "is larger than a file can be"));
        }
        let prefix_sha256 = sha256("prefix_sha256", &prefix_sha256)?;
        let task = ReadTask { path: path.as_bytes().to_vec(), offset, length, holes, prefix_sha256 };
        Ok(Asked::new(user, Task::Read(task), FileAction::Read, vec![path]))
    }
}

impl Ask for WriteFileHeader {
    fn ask(self) -> Result<Asked, InvalidCommand> {
        let path = path_from_wire("header.path", self.path, &self.path_bytes)?;
        match self.source_mode {
            Some(_) if self.mode.is_some() => {
                return Err(InvalidCommand::new("header.source_mode", "is not for a file with header.mode"));
            }
            Some(mode) if mode > 0o777 => {
                return Err(InvalidCommand::new("header.source_mode", "has bits beyond 0777"));
            }
            _ => {}
        }
        let task = WriteTask {
            path: path.as_bytes().to_vec(),
            source_mode: self.source_mode,
            mode: mode("header.mode", self.mode)?,
            make_parents: self.make_parents,
            exclusive: self.exclusive,
            sha256: sha256("header.sha256", &self.sha256)?,
            is_synced_later: false,
        };
        Ok(Asked::new(self.user, Task::Write(task), FileAction::Write, vec![path]))
    }
}

impl Ask for GetFileInfoRequest {
    fn ask(self) -> Result<Asked, InvalidCommand> {
        let path = path_from_wire("path", self.path, &self.path_bytes)?;
        Ok(Asked::new(self.user, Task::Info(path.as_bytes().to_vec()), FileAction::List, vec![path]))
    }
}

impl Ask for ListDirectoryRequest {
    fn ask(self) -> Result<Asked, InvalidCommand> {
        let path = path_from_wire("path", self.path, &self.path_bytes)?;
        let limit = if self.page_size == 0 { MAX_PAGE } else { self.page_size.min(MAX_PAGE) };
        let after = from_hex(&self.page_token);
        let after = after.ok_or_else(|| InvalidCommand::new("page_token", "is not of a page before"))?;
        let task = ListTask { path: path.as_bytes().to_vec(), after, limit };
        Ok(Asked::new(self.user, Task::List(task), FileAction::List, vec![path]))
    }
}

impl Ask for MakeDirectoryRequest {
    fn ask(self) -> Result<Asked, InvalidCommand> {
        let path = path_from_wire("path", self.path, &self.path_bytes)?;
        let (mode, make_parents) = (mode("mode", self.mode)?, self.make_parents);
        let task = MakeDirectoryTask { path: path.as_bytes().to_vec(), mode, make_parents };
        Ok(Asked::new(self.user, Task::MakeDirectory(task), FileAction::Write, vec![path]))
    }
}

impl Ask for MakeLinkRequest {
    fn ask(self) -> Result<Asked, InvalidCommand> {
        let path = path_from_wire("path", self.path, &self.path_bytes)?;
        let target = path_from_wire("target", self.target, &self.target_bytes)?;
        let task = MakeLinkTask { path: path.as_bytes().to_vec(), target: target.as_bytes().to_vec() };
        Ok(Asked::new(self.user, Task::MakeLink(task), FileAction::Write, vec![path]))
    }
}

impl Ask for MoveFileRequest {
    fn ask(self) -> Result<Asked, InvalidCommand> {
        let source = path_from_wire("source_path", self.source_path, &self.source_path_bytes)?;
        let destination = path_from_wire("destination_path", self.destination_path, &self.destination_path_bytes)?;
        let bytes = |path: &FilePath| path.as_bytes().to_vec();
        let task = MoveTask { source: bytes(&source), destination: bytes(&destination), replace: self.replace };
        Ok(Asked::new(self.user, Task::Move(task), FileAction::Write, vec![source, destination]))
    }
}

impl Ask for RemoveFileRequest {
    fn ask(self) -> Result<Asked, InvalidCommand> {
        let path = path_from_wire("path", self.path, &self.path_bytes)?;
        let task = RemoveTask { path: path.as_bytes().to_vec(), recursive: self.recursive };
        Ok(Asked::new(self.user, Task::Remove(task), FileAction::Write, vec![path]))
    }
}

fn mode(field: &'static str, mode: Option<u32>) -> Result<Option<u32>, InvalidCommand> {
    match mode {
        Some(mode) if mode > MAX_MODE => Err(InvalidCommand::new(field, "has bits beyond 07777")),
        mode => Ok(mode),
    }
}

fn sha256(field: &'static str, sha256: &[u8]) -> Result<Vec<u8>, InvalidCommand> {
    match sha256.len() {
        0 | 32 => Ok(sha256.to_vec()),
        _ => Err(InvalidCommand::new(field, "has not 32 bytes")),
    }
}

/// What comes of a task, as an answer; `None`: that is not what comes of such a task.
pub(super) trait Answered: Sized {
    fn answered(outcome: Outcome) -> Option<Self>;
}

/// An answer without content.
macro_rules! done {
    ($($answer:ident),+) => {
        $(impl Answered for $answer {
            fn answered(outcome: Outcome) -> Option<Self> {
                matches!(outcome, Outcome::Done(_)).then_some(Self {})
            }
        })+
    };
}

done!(MakeDirectoryResponse, MakeLinkResponse, MoveFileResponse, RemoveFileResponse);

impl Answered for GetFileInfoResponse {
    fn answered(outcome: Outcome) -> Option<Self> {
        match outcome {
            Outcome::Info(found) => Some(Self { info: Some(info(found)) }),
            _ => None,
        }
    }
}

impl Answered for WriteFileResponse {
    fn answered(outcome: Outcome) -> Option<Self> {
        match outcome {
            Outcome::Written(written) => Some(Self { info: written.info.map(info), sha256: written.sha256.into() }),
            _ => None,
        }
    }
}

impl Answered for ListDirectoryResponse {
    fn answered(outcome: Outcome) -> Option<Self> {
        let Outcome::Listed(Listed { entries, has_more }) = outcome else { return None };
        let last = entries.last().filter(|_| has_more);
        let next_page_token = last.map(|last| hex(&last.path)).unwrap_or_default();
        Some(Self { entries: entries.into_iter().map(info).collect(), next_page_token })
    }
}

/// A step of a read, and whether it is the last one; `None`: that is none.
pub(super) fn read_step(step: Step) -> Option<(ReadFileResponse, bool)> {
    let (step, is_last) = match step {
        Step::Data(data) => (read_file_response::Step::Data(data), false),
        Step::Hole(length) => (read_file_response::Step::Hole(length), false),
        Step::Outcome(Outcome::Info(found)) => (read_file_response::Step::Info(info(found)), false),
        Step::Outcome(Outcome::Read(read)) => {
            (read_file_response::Step::End(ReadFileEnd { sha256: read.sha256.into() }), true)
        }
        Step::Outcome(_) => return None,
    };
    Some((ReadFileResponse { step: Some(step) }, is_last))
}

fn info(info: Info) -> WireInfo {
    file_info_to_wire(FileInfo::from(info))
}
