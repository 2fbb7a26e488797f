//! One file from the target.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use telexec_executor::{ExecutorError, FileContent, FileInfo, FileOperation, FilePath, FilePiece, FileRange, Files};

use super::draft::{Draft, Links, NewMode, Received, Segment, Writer, replaced};
use super::local_file::{here, length};
use super::patience::Patience;
use super::{Copy, Failed};
use crate::connect::is_lost;

impl Copy<'_> {
    /// Copies a file of the target to this path, or continues to.
    pub(super) async fn download(&self, source: &FilePath, to: &Path) -> Result<(), Failed> {
        // beside what a link leads to, the content gets its name in one step
        let to = &followed(to);
        let failed = |operation| move |error: io::Error| Failed::File(here(operation, to, &error).to_string());
        replaced(to, Links::Follow).map_err(failed(FileOperation::Write))?;
        if let Some(directory) =
            to.parent().filter(|directory| !directory.as_os_str().is_empty() && !directory.exists())
        {
            return Err(Failed::File(format!("there is no directory {}", directory.display())));
        }
        let (target, user) = (self.target.to_string(), self.args.user.as_deref().unwrap_or(""));
        let copy = [target.as_bytes(), source.as_bytes(), user.as_bytes()];
        let mut draft = Draft::resumable(to, &copy).map_err(failed(FileOperation::Open))?;
        let mut patience = Patience::new(self.args.reconnect.resume());
        self.progress.begin(&source.to_string(), None);
        loop {
            let range;
            (draft, range) = missing(draft).await.map_err(failed(FileOperation::Read))?;
            let writer = Writer::start(draft);
            let read = self.read(source, range, &mut patience, |received| writer.write(received)).await;
            draft = writer.finish().await.map_err(failed(FileOperation::Write))?;
            let is_lost = is_lost(&read);
            match read {
                Ok(info) => {
                    let mode = NewMode::Like(info.mode);
                    return draft.publish(to, mode, Links::Follow).map_err(failed(FileOperation::Rename));
                }
                // the source is not what it was when that part of it was copied
                Err(ExecutorError::Corrupted { .. }) if range.offset > 0 => {
                    draft.clear().map_err(failed(FileOperation::Write))?;
                }
                Err(error) if is_lost => patience.pause(error).await.map_err(|error| self.failed(error))?,
                Err(error) => {
                    // such as a limit of the agent, which is for another time
                    if matches!(error, ExecutorError::File(_) | ExecutorError::Denied { .. }) {
                        draft.discard();
                    }
                    return Err(self.failed(error));
                }
            }
        }
    }

    /// Prints a file of the target.
    pub(super) async fn download_to_stdout(&self, source: &FilePath) -> Result<(), Failed> {
        let mut patience = Patience::new(self.args.reconnect.resume());
        self.progress.begin(&source.to_string(), None);
        let mut printer = Printer::default();
        loop {
            let range = FileRange { offset: printer.offset, ..FileRange::default() };
            let read = self.read(source, range, &mut patience, |received| std::future::ready(printer.take(&received)));
            let read = read.await;
            match printer.failure.take() {
                // a reader that has enough is no failure
                Some(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                Some(error) => return Err(Failed::File(format!("cannot print {}:{source}: {error}", self.target))),
                None => {}
            }
            match read {
                Ok(_) => return Ok(()),
                Err(error) => patience.pause(error).await.map_err(|error| self.failed(error))?,
            }
        }
    }

    /// Gives the pieces of one call, as long as they are wanted.
    async fn read<F: Future<Output = bool>>(
        &self,
        source: &FilePath,
        range: FileRange,
        patience: &mut Patience,
        mut give: impl FnMut(Received) -> F,
    ) -> Result<FileInfo, ExecutorError> {
        let FileContent { info, mut pieces } = self.files.read(self.file(source.clone()), range).await?;
        self.progress.skip(range.offset, Some(info.size));
        let mut is_wanted = give(Received::Begin(info.clone())).await;
        while is_wanted && let Some(piece) = pieces.next().await.transpose()? {
            self.progress.add(length(&piece));
            patience.progressed();
            is_wanted = give(Received::Piece(piece)).await;
        }
        Ok(info)
    }
}

/// What a symbolic link leads to; also one whose target does not exist yet.
fn followed(path: &Path) -> PathBuf {
    let target = || Some(path.parent()?.join(std::fs::read_link(path).ok()?));
    std::fs::canonicalize(path).ok().or_else(target).unwrap_or_else(|| path.to_owned())
}

/// The same, and what is missing in it.
async fn missing(mut draft: Draft) -> io::Result<(Draft, FileRange)> {
    let looked = tokio::task::spawn_blocking(move || draft.missing().map(|range| (draft, range))).await;
    looked.map_err(io::Error::other)?
}

/// Writes to standard output, over several calls.
#[derive(Default)]
struct Printer {
    segment: Segment,
    first: Option<FileInfo>,
    offset: u64,
    /// Why no more is wanted.
    failure: Option<io::Error>,
}

impl Printer {
    fn take(&mut self, received: &Received) -> bool {
        self.failure = self.print(received).err();
        self.failure.is_none()
    }

    fn print(&mut self, received: &Received) -> io::Result<()> {
        self.segment.add(received)?;
        let mut stdout = io::stdout().lock();
        match received {
            Received::Begin(info) => {
                let first = self.first.get_or_insert_with(|| info.clone());
                if (first.size, first.modify_time) != (info.size, info.modify_time) {
                    return Err(io::Error::other("it has changed since the connection was lost"));
                }
            }
            Received::Piece(piece) => {
                if let FilePiece::Data(data) = piece {
                    stdout.write_all(data)?;
                }
                self.offset += length(piece);
            }
        }
        stdout.flush()
    }
}
