//! One file from the target.

use std::io::{self, Write};
use std::path::Path;

use futures_util::StreamExt;
use telexec_executor::{FileContent, FileInfo, FileOperation, FilePath, FilePiece, FileRange, Files};

use super::local_file::{Draft, Links, Received, Segment, Writer, here, length, umask};
use super::patience::Patience;
use super::{Copy, Failed};

impl Copy<'_> {
    /// Copies a file of the target to this path.
    pub(super) async fn download(&self, source: &FilePath, to: &Path) -> Result<(), Failed> {
        let failed = |operation| move |error: io::Error| Failed::File(here(operation, to, &error).to_string());
        if to.is_dir() {
            return Err(Failed::File(format!("{} is a directory", to.display())));
        }
        let writer = Writer::start(Draft::new(to).map_err(failed(FileOperation::Open))?);
        let received = self.receive(source, true, |received| writer.write(received)).await;
        // also of a failed copy: it leaves nothing when this returns
        let draft = writer.finish().await.map_err(failed(FileOperation::Write))?;
        let info = received?;
        let mode = (info.mode & 0o111 != 0).then(|| 0o777 & !umask());
        draft.publish(to, mode, Links::Follow).map_err(failed(FileOperation::Rename))
    }

    /// Prints a file of the target.
    pub(super) async fn download_to_stdout(&self, source: &FilePath) -> Result<(), Failed> {
        let (mut segment, mut printed) = (Segment::default(), Ok(()));
        let print = |received| {
            printed = print(&mut segment, &received);
            std::future::ready(printed.is_ok())
        };
        self.receive(source, false, print).await?;
        match printed {
            // a reader that has enough is no failure
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Failed::File(format!("cannot write to standard output: {error}")))
            }
            _ => Ok(()),
        }
    }

    /// Gives all pieces of a file, over lost connections too, as long as they are wanted.
    async fn receive<F: Future<Output = bool>>(
        &self,
        source: &FilePath,
        holes: bool,
        mut give: impl FnMut(Received) -> F,
    ) -> Result<FileInfo, Failed> {
        let mut patience = Patience::new(self.args.reconnect.resume());
        let (mut first, mut offset) = (None::<FileInfo>, 0);
        self.progress.begin(&source.to_string(), None);
        loop {
            let range = FileRange { offset, length: 0, holes };
            let error = match self.files.read(self.file(source.clone()), range).await {
                Ok(FileContent { info, mut pieces }) => {
                    let before = first.get_or_insert_with(|| info.clone());
                    if (before.size, before.modify_time) != (info.size, info.modify_time) {
                        let text = format!("{}:{source} has changed since the connection was lost", self.target);
                        return Err(Failed::File(text));
                    }
                    self.progress.begin(&source.to_string(), Some(info.size));
                    self.progress.skip(offset);
                    let mut is_wanted = give(Received::Begin).await;
                    loop {
                        let piece = match pieces.next().await {
                            Some(Ok(piece)) if is_wanted => piece,
                            Some(Err(error)) => break error,
                            Some(Ok(_)) | None => return Ok(info),
                        };
                        offset += length(&piece);
                        self.progress.add(length(&piece));
                        patience.progressed();
                        is_wanted = give(Received::Piece(piece)).await;
                    }
                }
                Err(error) => error,
            };
            patience.pause(error).await.map_err(|error| self.failed(error))?;
        }
    }
}

fn print(segment: &mut Segment, received: &Received) -> io::Result<()> {
    segment.add(received)?;
    let mut stdout = io::stdout().lock();
    if let Received::Piece(FilePiece::Data(data)) = received {
        stdout.write_all(data)?;
    }
    stdout.flush()
}
