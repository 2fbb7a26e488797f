//! A directory with all that is in it, to the target, in one call.

use std::collections::VecDeque;
use std::fs::{File, FileType};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use telexec_client::{TransferAnswer, TransferAnswers, TransferRequests};
use telexec_executor::{ExecutorError, FileOperation, FilePath, FilePiece, WriteOptions};

use super::local_file::{digest, here, length, read};
use super::patience::Patience;
use super::{Copy, Failed, below, too_long};

/// Smaller files are sent in one piece.
const SMALL_BYTES: u64 = 256 * 1024;

/// Something in the directory.
struct Item {
    source: PathBuf,
    to: FilePath,
    kind: Kind,
}

enum Kind {
    Directory(u32),
    File,
    Link(PathBuf),
}

/// What is done, and what is asked for.
struct Sent {
    is_done: Vec<bool>,
    any_failed: bool,
    /// Items that wait for their answers, with the SHA-256 of what was sent.
    asked: VecDeque<(usize, Option<[u8; 32]>)>,
}

/// Why no more is asked for.
enum Stopped {
    /// The transfer has ended; its answers say why.
    Ended,
    /// This item could not be read to its end, so that the transfer cannot continue.
    Unreadable(usize, io::Error),
}

impl Copy<'_> {
    pub(super) async fn send_tree(&self, source: &Path, to: FilePath) -> Result<(), Failed> {
        if !self.args.recursive {
            return Err(Failed::File(format!("{} is a directory: use -r to copy it", source.display())));
        }
        self.require_parent(&to).await?;
        let mut items = Vec::new();
        let any_failed = self.find(source, to, &mut items);
        let sent = Mutex::new(Sent { is_done: vec![false; items.len()], any_failed, asked: VecDeque::new() });
        let mut patience = Patience::new(self.args.reconnect.resume());
        let mut left = items.len();
        while let Err(error) = self.send_items(&items, &sent).await {
            let now_left = lock(&sent).is_done.iter().filter(|done| !**done).count();
            if std::mem::replace(&mut left, now_left) > now_left {
                patience.progressed();
            }
            patience.pause(error).await.map_err(|error| self.failed(error))?;
        }
        match lock(&sent).any_failed {
            true => Err(Failed::Reported),
            false => Ok(()),
        }
    }

    /// Adds what is to be sent, directories before what is in them. Returns whether any could not be read.
    fn find(&self, source: &Path, to: FilePath, items: &mut Vec<Item>) -> bool {
        let mut any_failed = false;
        let mut waiting = vec![(source.to_owned(), to)];
        while let Some((directory, to)) = waiting.pop() {
            let mut list = || {
                let mode = std::fs::metadata(&directory)?.permissions().mode() & 0o777;
                let mut entries = std::fs::read_dir(&directory)?.collect::<Result<Vec<_>, _>>()?;
                entries.sort_by_key(std::fs::DirEntry::file_name);
                items.push(Item { source: directory.clone(), to: to.clone(), kind: Kind::Directory(mode) });
                for entry in entries {
                    let (source, to) = (entry.path(), below(&to, &entry.file_name()));
                    if let Some(error) = too_long(FileOperation::Write, &to) {
                        any_failed = true;
                        self.say(&format!("{}: {error}", self.target));
                        continue;
                    }
                    match entry.file_type()? {
                        kind if kind.is_dir() => waiting.push((source, to)),
                        kind if kind.is_symlink() => {
                            let target = std::fs::read_link(&source)?;
                            items.push(Item { source, to, kind: Kind::Link(target) });
                        }
                        kind if kind.is_file() => items.push(Item { source, to, kind: Kind::File }),
                        kind => {
                            any_failed = true;
                            self.say(&format!("{}: {} is not copied", source.display(), special(kind)));
                        }
                    }
                }
                Ok(())
            };
            if let Err(error) = list() {
                any_failed = true;
                self.say(&here(FileOperation::Read, &directory, &error).to_string());
            }
        }
        any_failed
    }

    /// Sends all that is not done.
    async fn send_items(&self, items: &[Item], sent: &Mutex<Sent>) -> Result<(), ExecutorError> {
        loop {
            lock(sent).asked.clear();
            let (requests, answers) = self.files.transfer(self.args.user.clone()).await?;
            let (asked, heard) = tokio::join!(self.ask(items, requests, sent), self.hear(items, answers, sent));
            match asked {
                Ok(()) | Err(Stopped::Ended) => return heard,
                Err(Stopped::Unreadable(index, error)) => {
                    let source = items.get(index).map(|item| here(FileOperation::Read, &item.source, &error));
                    self.fail_item(sent, index, &source.map(|error| error.to_string()).unwrap_or_default());
                }
            }
        }
    }

    async fn ask(&self, items: &[Item], requests: TransferRequests, sent: &Mutex<Sent>) -> Result<(), Stopped> {
        for (index, item) in items.iter().enumerate() {
            if lock(sent).is_done.get(index).copied().unwrap_or(true) {
                continue;
            }
            let is_open = match &item.kind {
                Kind::File => {
                    self.ask_to_write(index, item, &requests, sent).await?;
                    continue;
                }
                Kind::Directory(mode) => requests.make_directory(item.to.clone(), Some(*mode)).await,
                Kind::Link(target) => {
                    let target = FilePath::new(target.as_os_str().as_bytes());
                    requests.make_link(item.to.clone(), target).await
                }
            };
            if !is_open {
                return Err(Stopped::Ended);
            }
            lock(sent).asked.push_back((index, None));
        }
        Ok(())
    }

    async fn ask_to_write(
        &self,
        index: usize,
        item: &Item,
        requests: &TransferRequests,
        sent: &Mutex<Sent>,
    ) -> Result<(), Stopped> {
        let opened = File::open(&item.source).and_then(|file| Ok((file.metadata()?, file)));
        let (metadata, mut file) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.fail_item(sent, index, &here(FileOperation::Open, &item.source, &error).to_string());
                return Ok(());
            }
        };
        self.progress.begin(&item.source.to_string_lossy(), Some(metadata.len()));
        let options = WriteOptions { mode: Some(metadata.permissions().mode() & 0o777), ..WriteOptions::default() };
        let begin = requests.write(item.to.clone(), options);
        let sha256 = if metadata.len() <= SMALL_BYTES {
            let mut content = Vec::new();
            if let Err(error) = file.read_to_end(&mut content) {
                self.fail_item(sent, index, &here(FileOperation::Read, &item.source, &error).to_string());
                return Ok(());
            }
            let sha256 = digest(&content);
            self.progress.add(content.len() as u64);
            let is_open = begin.await && (content.is_empty() || requests.data(content.into()).await);
            is_open.then_some(sha256).ok_or(Stopped::Ended)?
        } else {
            if !begin.await {
                return Err(Stopped::Ended);
            }
            self.ask_to_write_all(index, item, file, requests).await?
        };
        // before the end is sent: its answer may come at once
        lock(sent).asked.push_back((index, Some(sha256)));
        if requests.end().await { Ok(()) } else { Err(Stopped::Ended) }
    }

    async fn ask_to_write_all(
        &self,
        index: usize,
        item: &Item,
        file: File,
        requests: &TransferRequests,
    ) -> Result<[u8; 32], Stopped> {
        let (mut pieces, digested) = read(&item.source, file, 0);
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| Stopped::Unreadable(index, io::Error::other(error)))?;
            self.progress.add(length(&piece));
            let is_open = match piece {
                FilePiece::Data(data) => requests.data(data).await,
                FilePiece::Hole(length) => requests.hole(length).await,
                FilePiece::End { .. } => true,
            };
            if !is_open {
                return Err(Stopped::Ended);
            }
        }
        digested.await.map_err(|_| Stopped::Unreadable(index, io::ErrorKind::UnexpectedEof.into()))
    }

    /// Settles each item as its answer comes.
    async fn hear(
        &self,
        items: &[Item],
        mut answers: TransferAnswers,
        sent: &Mutex<Sent>,
    ) -> Result<(), ExecutorError> {
        while let Some(answer) = answers.next().await? {
            let Some((index, sha256)) = lock(sent).asked.pop_front() else { continue };
            let error = match answer {
                TransferAnswer::Failed(error) => Some(error),
                TransferAnswer::Written(written) if sha256.is_some_and(|sha256| sha256 != written.sha256) => {
                    items.get(index).map(|item| ExecutorError::Corrupted { path: item.to.clone() })
                }
                _ => None,
            };
            match error {
                Some(error) => self.fail_item(sent, index, &format!("{}: {error}", self.target)),
                None => lock(sent).done(index),
            }
        }
        Ok(())
    }

    fn fail_item(&self, sent: &Mutex<Sent>, index: usize, text: &str) {
        self.say(text);
        let mut sent = lock(sent);
        sent.any_failed = true;
        sent.done(index);
    }
}

impl Sent {
    fn done(&mut self, index: usize) {
        self.is_done.get_mut(index).into_iter().for_each(|done| *done = true);
    }
}

fn special(kind: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

/// A panic while the lock was held leaves nothing half done here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
