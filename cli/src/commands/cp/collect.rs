//! A directory with all that is in it, from the target, in one call.

use std::collections::VecDeque;
use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use telexec_client::{TransferAnswer, TransferAnswers, TransferRequests};
use telexec_executor::{
    DirectoryPage, DirectoryQuery, ExecutorError, FileInfo, FileOperation, FilePath, FilePiece, FileRange, FileType,
};

use super::draft::{Draft, Links, NewMode, Received};
use super::local_file::{here, length};
use super::patience::Patience;
use super::{Copy, Failed, below, too_long};

/// Requests without an answer.
const MAX_ASKED: usize = 64;

/// A directory or a file to be asked for.
#[derive(Clone)]
struct Wanted {
    from: FilePath,
    to: PathBuf,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    /// A page of a directory, by its token.
    Directory(String),
    File,
}

/// How far the copy is.
struct Collected {
    waiting: VecDeque<Wanted>,
    asked: VecDeque<Wanted>,
    /// The file that comes now; `None` inside: it cannot be written here, and is skipped.
    current: Option<Option<(Draft, u32)>>,
    /// Directories that get their permissions once all is in them.
    modes: Vec<(PathBuf, u32)>,
    any_failed: bool,
}

impl Copy<'_> {
    pub(super) async fn collect_tree(&self, source: &FilePath, to: &Path) -> Result<(), Failed> {
        if !self.args.recursive {
            return Err(Failed::File(format!("{}:{source} is a directory: use -r to copy it", self.target)));
        }
        let made = if to.is_dir() { Ok(()) } else { make_directory(to) };
        made.map_err(|error| Failed::File(here(FileOperation::MakeDirectory, to, &error).to_string()))?;
        let first = Wanted { from: source.clone(), to: to.to_owned(), kind: Kind::Directory(String::new()) };
        let mut collected = Collected {
            waiting: VecDeque::from([first]),
            asked: VecDeque::new(),
            current: None,
            modes: Vec::new(),
            any_failed: false,
        };
        let mut patience = Patience::new(self.args.reconnect.resume());
        loop {
            let mut progressed = false;
            let Err(error) = self.collect(&mut collected, &mut progressed).await else { break };
            if progressed {
                patience.progressed();
            }
            // what has no whole answer is asked for again
            collected.current = None;
            let asked = std::mem::take(&mut collected.asked);
            collected.waiting = asked.into_iter().chain(std::mem::take(&mut collected.waiting)).collect();
            patience.pause(error).await.map_err(|error| self.failed(error))?;
        }
        for (directory, mode) in collected.modes.iter().rev() {
            let _ = std::fs::set_permissions(directory, Permissions::from_mode(*mode));
        }
        if collected.any_failed { Err(Failed::Reported) } else { Ok(()) }
    }

    async fn collect(&self, collected: &mut Collected, progressed: &mut bool) -> Result<(), ExecutorError> {
        let (requests, mut answers) = self.files.transfer(self.args.user.clone()).await?;
        loop {
            while collected.asked.len() < MAX_ASKED
                && let Some(wanted) = collected.waiting.pop_front()
            {
                ask(&requests, &wanted).await;
                collected.asked.push_back(wanted);
            }
            if collected.asked.is_empty() {
                drop(requests);
                return finish(answers).await;
            }
            let answer = answers.next().await?;
            let answer = answer.ok_or_else(|| ExecutorError::Internal("an answer is missing".to_owned()))?;
            self.take(collected, answer)?;
            *progressed = true;
        }
    }

    /// # Errors
    /// It answers something else than what was asked: an agent that lies must not write where nothing was asked for.
    fn take(&self, collected: &mut Collected, answer: TransferAnswer) -> Result<(), ExecutorError> {
        let wanted = collected.asked.front().cloned().ok_or_else(unexpected)?;
        let is_last = match (answer, &wanted.kind) {
            (TransferAnswer::Listed(page), Kind::Directory(_)) => {
                self.list(collected, &wanted, page);
                true
            }
            (TransferAnswer::Opened(info), Kind::File) if collected.current.is_none() => {
                self.open(collected, &wanted, &info);
                false
            }
            (TransferAnswer::Piece(piece), Kind::File) if collected.current.is_some() => {
                let is_last = matches!(piece, FilePiece::End { .. });
                self.write(collected, &wanted, piece);
                is_last
            }
            (TransferAnswer::Failed(error), _) => {
                collected.current = None;
                self.fail(collected, &format!("{}: {error}", self.target));
                true
            }
            _ => return Err(unexpected()),
        };
        if is_last {
            collected.current = None;
            collected.asked.pop_front();
        }
        Ok(())
    }

    /// What is in a directory is to be asked for next.
    fn list(&self, collected: &mut Collected, directory: &Wanted, page: DirectoryPage) {
        let mut found = Vec::new();
        for entry in page.entries {
            let name = std::ffi::OsStr::from_bytes(entry.path.as_bytes());
            // an agent that lies must not write elsewhere
            if entry.path.as_bytes().contains(&b'/') || matches!(entry.path.as_bytes(), b"" | b"." | b"..") {
                self.fail(collected, &format!("{}: {} is not a name", self.target, entry.path));
                continue;
            }
            let (from, to) = (below(&directory.from, name), directory.to.join(name));
            if let Some(error) = too_long(FileOperation::Open, &from) {
                self.fail(collected, &format!("{}: {error}", self.target));
                continue;
            }
            match entry.kind {
                FileType::Regular => found.push(Wanted { from, to, kind: Kind::File }),
                FileType::Directory => match make_directory(&to) {
                    Ok(()) => {
                        collected.modes.push((to.clone(), entry.mode & 0o777));
                        found.push(Wanted { from, to, kind: Kind::Directory(String::new()) });
                    }
                    Err(error) => self.fail(collected, &here(FileOperation::MakeDirectory, &to, &error).to_string()),
                },
                FileType::Symlink => {
                    if let Err(error) = make_link(&to, &entry.link_target.unwrap_or_default()) {
                        self.fail(collected, &here(FileOperation::MakeLink, &to, &error).to_string());
                    }
                }
                FileType::Fifo | FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice => {
                    self.fail(collected, &format!("{}:{from}: not a regular file, not copied", self.target));
                }
            }
        }
        if !page.next_page_token.is_empty() {
            found.push(Wanted { kind: Kind::Directory(page.next_page_token), ..directory.clone() });
        }
        // before what was found earlier, so that not all of a large tree waits
        found.into_iter().rev().for_each(|wanted| collected.waiting.push_front(wanted));
    }

    fn open(&self, collected: &mut Collected, wanted: &Wanted, info: &FileInfo) {
        self.progress.begin(&wanted.from.to_string(), Some(info.size));
        let draft = Draft::new(&wanted.to);
        collected.current = Some(match draft {
            Ok(draft) => Some((draft, info.mode & 0o777)),
            Err(error) => {
                self.fail(collected, &here(FileOperation::Open, &wanted.to, &error).to_string());
                None
            }
        });
    }

    fn write(&self, collected: &mut Collected, wanted: &Wanted, piece: FilePiece) {
        self.progress.add(length(&piece));
        let is_last = matches!(piece, FilePiece::End { .. });
        let Some(Some((mut draft, mode))) = collected.current.take() else {
            collected.current = Some(None);
            return;
        };
        let written = match draft.write(&Received::Piece(piece)) {
            Ok(()) if is_last => draft.publish(&wanted.to, NewMode::As(mode), Links::Replace),
            Ok(()) => {
                collected.current = Some(Some((draft, mode)));
                return;
            }
            Err(error) => {
                collected.current = Some(None);
                Err(error)
            }
        };
        if let Err(error) = written {
            self.fail(collected, &here(FileOperation::Write, &wanted.to, &error).to_string());
        }
    }

    fn fail(&self, collected: &mut Collected, text: &str) {
        self.say(text);
        collected.any_failed = true;
    }
}

fn unexpected() -> ExecutorError {
    ExecutorError::Internal("the agent answers something else than what was asked".to_owned())
}

/// If the transfer has ended, its answers say so.
async fn ask(requests: &TransferRequests, wanted: &Wanted) {
    match &wanted.kind {
        Kind::Directory(token) => {
            let query = DirectoryQuery { page_token: token.clone(), ..DirectoryQuery::default() };
            requests.list(wanted.from.clone(), query).await;
        }
        Kind::File => {
            requests.read(wanted.from.clone(), FileRange { holes: true, ..FileRange::default() }).await;
        }
    }
}

async fn finish(mut answers: TransferAnswers) -> Result<(), ExecutorError> {
    while answers.next().await?.is_some() {}
    Ok(())
}

/// It may exist, but a link to one would lead elsewhere.
fn make_directory(path: &Path) -> std::io::Result<()> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => match path.symlink_metadata()?.is_dir() {
            true => Ok(()),
            false => Err(error),
        },
        made => made,
    }
}

/// In place of a file that has its name.
fn make_link(path: &Path, target: &FilePath) -> std::io::Result<()> {
    let target = std::ffi::OsStr::from_bytes(target.as_bytes());
    let directory = path.parent().unwrap_or(Path::new("."));
    let link = tempfile::Builder::new()
        .prefix(".telexec-")
        .make_in(directory, |path| std::os::unix::fs::symlink(target, path))?;
    link.persist(path).map(drop).map_err(|failed| failed.error)
}
