//! `telexec cp`: copies files to and from a machine.

mod collect;
mod download;
mod draft;
mod local_file;
mod patience;
mod progress;
mod send;
mod upload;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use telexec_client::{Agent, RemoteFiles};
use telexec_executor::{ExecutorError, FileError, FileErrorKind, FileOperation, FilePath, FileTarget, FileType, Files};

use self::patience::Patience;
pub(crate) use self::progress::Progress;
use crate::args::{CopyArgs, CpArgs};
use crate::config::Config;
use crate::connect::{call_failure, with_agent};
use crate::output::{Failure, exit, print_message};
use crate::syntax::{Destination, Location, last_name};

/// A file could not be copied.
const NOT_COPIED: u8 = 1;
/// Of Linux, where a path takes 4096 with the NUL at its end.
const MAX_PATH_BYTES: usize = 4095;

pub(crate) async fn run(mut args: CpArgs) -> Result<u8, Failure> {
    let Some(last) = args.files.pop().filter(|_| !args.files.is_empty()) else {
        return Err(usage("cp needs a source and a destination"));
    };
    let plan = Plan::new(&args, last)?;
    let target = plan.target.clone();
    if args.copy.user.is_none() {
        args.copy.user = Config::load()?.resolve(&target, &args.connect)?.user;
    }
    let progress = Arc::new(Progress::new(args.quiet));
    let say = |text: &str| {
        progress.finish();
        print_message(text);
    };
    with_agent(&target, &args.connect, async |agent| {
        let copy = Copy::new(&args.copy, agent, &target, Arc::clone(&progress), &say);
        let copied = match &plan.transfer {
            Transfer::Upload(sources, destination) => copy.upload_all(sources, destination).await,
            Transfer::Download(sources, destination) => copy.download_all(sources, destination).await,
        };
        progress.finish();
        match copied {
            Ok(()) => Ok(0),
            Err(Stopped::SomeFailed) => Ok(NOT_COPIED),
            Err(Stopped::Usage(text)) => Err(usage(&text)),
            Err(Stopped::All(error)) => Err(call_failure(exit::of_error(&error), &target, &error)),
        }
    })
    .await
}

fn usage(text: &str) -> Failure {
    Failure::message(exit::USAGE, text)
}

/// What is to be copied, and in which direction.
struct Plan {
    target: Destination,
    transfer: Transfer,
}

enum Transfer {
    Upload(Vec<Location>, FilePath),
    Download(Vec<FilePath>, Location),
}

impl Plan {
    fn new(args: &CpArgs, last: Location) -> Result<Self, Failure> {
        if let Location::Remote(target, path) = last {
            if args.files.iter().any(|source| matches!(source, Location::Remote(..))) {
                return Err(usage(
                    "one side must be here: copy to a file here first, and write ./a:b for a file here whose name has a colon",
                ));
            }
            return Ok(Self { target, transfer: Transfer::Upload(args.files.clone(), path) });
        }
        let mut found: Option<Destination> = None;
        let mut paths = Vec::new();
        for source in &args.files {
            match source {
                Location::Remote(target, _) if found.as_ref().is_some_and(|found| found != target) => {
                    return Err(usage("all sources must be of one target"));
                }
                Location::Remote(target, path) => {
                    found = Some(target.clone());
                    paths.push(path.clone());
                }
                Location::Local(_) | Location::Stdio => {
                    return Err(
                        usage("one side must be TARGET:PATH").hint(Some("for example: telexec cp notes web1:notes"))
                    );
                }
            }
        }
        let target = found.ok_or_else(|| usage("one side must be TARGET:PATH"))?;
        if let Location::Local(path) = &last
            && !path.is_dir()
            && (paths.len() > 1 || path.as_os_str().as_bytes().ends_with(b"/"))
        {
            return Err(usage(&format!("{} is not a directory", path.display())));
        }
        Ok(Self { target, transfer: Transfer::Download(paths, last) })
    }
}

/// What all copies to or from one machine share.
pub(crate) struct Copy<'a> {
    args: &'a CopyArgs,
    files: RemoteFiles,
    target: &'a Destination,
    progress: Arc<Progress>,
    /// Reports a failure of one file, while others are copied.
    say: &'a (dyn Fn(&str) + Send + Sync),
}

/// Why not all was copied.
pub(crate) enum Stopped {
    /// These files were reported.
    SomeFailed,
    /// The sources and the destination do not go together.
    Usage(String),
    All(ExecutorError),
}

/// Why one copy failed.
enum Failed {
    /// This file alone.
    File(String),
    /// Files of a directory; they were reported.
    Reported,
    /// All that follow would too.
    All(ExecutorError),
}

impl<'a> Copy<'a> {
    pub(crate) fn new(
        args: &'a CopyArgs,
        agent: &Agent,
        target: &'a Destination,
        progress: Arc<Progress>,
        say: &'a (dyn Fn(&str) + Send + Sync),
    ) -> Self {
        Self { args, files: agent.files(), target, progress, say }
    }

    pub(crate) async fn upload_all(&self, sources: &[Location], destination: &FilePath) -> Result<(), Stopped> {
        let is_directory = self.is_directory(destination).await.or_else(|failed| self.report(failed).map(|()| None))?;
        let Some(is_directory) = is_directory else { return Err(Stopped::SomeFailed) };
        if sources.len() > 1 && !is_directory {
            return Err(Stopped::Usage(format!("{}:{destination} is not a directory", self.target)));
        }
        let mut any_failed = false;
        for source in sources {
            let to = match (source, is_directory) {
                (Location::Local(path), true) => match last_name(path.as_os_str().as_bytes()) {
                    Some(name) => below(destination, name),
                    None => destination.clone(),
                },
                (Location::Stdio, true) => {
                    return Err(Stopped::Usage("standard input needs a file name at the target".to_owned()));
                }
                _ => destination.clone(),
            };
            let done = match source {
                Location::Local(path) if path.is_dir() => self.send_tree(path, to).await,
                Location::Local(path) => self.upload(path, to).await,
                Location::Stdio | Location::Remote(..) => self.upload_stdin(to).await,
            };
            any_failed |= self.settle(done)?;
        }
        if any_failed { Err(Stopped::SomeFailed) } else { Ok(()) }
    }

    pub(crate) async fn download_all(&self, sources: &[FilePath], destination: &Location) -> Result<(), Stopped> {
        let Location::Local(destination) = destination else {
            let mut any_failed = false;
            for source in sources {
                any_failed |= self.settle(self.download_to_stdout(source).await)?;
            }
            return if any_failed { Err(Stopped::SomeFailed) } else { Ok(()) };
        };
        let is_directory = destination.is_dir();
        let mut any_failed = false;
        for source in sources {
            let to = match last_name(source.as_bytes()).filter(|_| is_directory) {
                Some(name) => destination.join(name),
                None => destination.clone(),
            };
            any_failed |= self.settle(self.download_one(source, &to).await)?;
        }
        if any_failed { Err(Stopped::SomeFailed) } else { Ok(()) }
    }

    async fn download_one(&self, source: &FilePath, to: &Path) -> Result<(), Failed> {
        match self.is_directory(source).await? {
            Some(true) => self.collect_tree(source, to).await,
            Some(false) | None => self.download(source, to).await,
        }
    }

    /// Whether the target has a directory there; a link may lead to it.
    async fn is_directory(&self, path: &FilePath) -> Result<Option<bool>, Failed> {
        // a slash at the end asks for what a link leads to
        let asked = self.file(below(path, OsStr::new("")));
        let info = Patience::new(self.args.reconnect.resume()).repeat(|| self.files.info(asked.clone())).await;
        match info {
            Ok(info) => Ok(Some(info.kind == FileType::Directory)),
            Err(ExecutorError::File(error)) if error.kind() == FileErrorKind::NotFound => {
                match path.as_bytes().ends_with(b"/") {
                    true => Err(Failed::File(format!("{}: {error}", self.target))),
                    false => Ok(Some(false)),
                }
            }
            // whoever may write it need not be permitted to look
            Err(ExecutorError::Denied { .. }) => Ok(Some(path.as_bytes().ends_with(b"/"))),
            Err(ExecutorError::File(error)) => Err(self.failed(FileError { path: path.clone(), ..error }.into())),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Refuses a path in a directory that the target does not have.
    async fn require_parent(&self, path: &FilePath) -> Result<(), Failed> {
        let Some(directory) = parent(path) else { return Ok(()) };
        // a slash at the end asks for what a link leads to
        let asked = self.file(below(&directory, OsStr::new("")));
        match Patience::new(self.args.reconnect.resume()).repeat(|| self.files.info(asked.clone())).await {
            Err(ExecutorError::File(missing)) if missing.kind() == FileErrorKind::NotFound => {
                Err(Failed::File(format!("{}: there is no directory {directory}{}", self.target, advice(&missing))))
            }
            // whoever may write it need not be permitted to look
            Ok(_) | Err(ExecutorError::Denied { .. }) => Ok(()),
            Err(ExecutorError::File(error)) => Err(self.failed(FileError { path: directory, ..error }.into())),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn file(&self, path: FilePath) -> FileTarget {
        FileTarget { path, user: self.args.user.clone() }
    }

    /// Why a call failed.
    fn failed(&self, error: ExecutorError) -> Failed {
        match error {
            ExecutorError::File(failed) => Failed::File(format!("{}: {failed}{}", self.target, advice(&failed))),
            ExecutorError::Corrupted { .. } => Failed::File(format!("{}: {error}", self.target)),
            error => Failed::All(error),
        }
    }

    /// Why a file could not be written there.
    fn not_written(&self, error: ExecutorError) -> Failed {
        match (&error, error_directory(&error)) {
            (ExecutorError::File(failed), Some(directory)) => {
                let advice = advice(failed);
                Failed::File(format!("{}: there is no directory {directory}{advice}", self.target))
            }
            _ => self.failed(error),
        }
    }

    fn say(&self, text: &str) {
        (self.say)(text);
    }

    /// Reports a failure, and returns whether there was one.
    fn settle(&self, done: Result<(), Failed>) -> Result<bool, Stopped> {
        match done {
            Ok(()) => Ok(false),
            Err(failed) => self.report(failed).map(|()| true),
        }
    }

    fn report(&self, failed: Failed) -> Result<(), Stopped> {
        match failed {
            Failed::File(text) => {
                self.say(&text);
                Ok(())
            }
            Failed::Reported => Ok(()),
            Failed::All(error) => Err(Stopped::All(error)),
        }
    }
}

/// Of a path that no system takes: a request with it would be refused, and all that comes after it too.
fn too_long(operation: FileOperation, path: &FilePath) -> Option<FileError> {
    let errno = FileError::errno_from_name("ENAMETOOLONG")?;
    (path.as_bytes().len() > MAX_PATH_BYTES).then(|| FileError { operation, path: path.clone(), errno })
}

/// A name in a directory.
fn below(directory: &FilePath, name: &OsStr) -> FilePath {
    let mut path = directory.as_bytes().to_vec();
    if !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name.as_bytes());
    FilePath::new(path)
}

/// The directory of a path; `None`: it names none, or the root.
fn parent(path: &FilePath) -> Option<FilePath> {
    let slash = path.as_bytes().iter().rposition(|byte| *byte == b'/').filter(|slash| *slash > 0)?;
    path.as_bytes().get(..slash).map(FilePath::new)
}

/// The directory of a file that could not be opened to be written, since that is missing.
fn error_directory(error: &ExecutorError) -> Option<FilePath> {
    let ExecutorError::File(FileError { operation: FileOperation::Open, path, .. }) = error else { return None };
    let is_missing = matches!(error, ExecutorError::File(error) if error.kind() == FileErrorKind::NotFound);
    parent(path).filter(|_| is_missing)
}

/// What looks like a shell's syntax in the name of a file that is missing.
fn advice(error: &FileError) -> &'static str {
    let path = error.path.as_bytes();
    match error.kind() == FileErrorKind::NotFound {
        true if path.starts_with(b"~") => " (~ is not expanded: relative paths begin at the home directory)",
        true if path.iter().any(|byte| b"*?[".contains(byte)) => " (patterns are not expanded: use -r for a directory)",
        _ => "",
    }
}
