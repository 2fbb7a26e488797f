//! Many files in one call.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use telexec_executor::{
    DirectoryPage, DirectoryQuery, ExecutorError, FileInfo, FilePath, FilePiece, FileRange, FileTarget, WriteOptions,
    WrittenFile,
};
use telexec_proto::convert::{error_from_status, path_to_wire};
use telexec_proto::v1::transfer_request::Step;
use telexec_proto::v1::transfer_response::Step as Answer;
use telexec_proto::v1::{MakeLinkRequest, TransferRequest, TransferResponse, WriteFileEnd};
use tokio::sync::mpsc;
use tonic::{Code, Status, Streaming};

use crate::error;
use crate::files::{
    ReadStep, RemoteFiles, list_request, make_directory_request, page, read_request, read_step, target, unexpected,
    write_header, written,
};

/// Requests that wait to be sent.
const MAX_WAITING: usize = 64;

/// Sends the requests of a transfer, which the agent carries out in their order. Dropping it ends the transfer in an orderly
/// way: the answers to what was sent still come. Dropping [`TransferAnswers`] cancels it.
///
/// Its methods wait until there is room to send; the transfer has ended if they return `false`.
#[derive(Debug)]
pub struct TransferRequests {
    requests: mpsc::Sender<TransferRequest>,
    /// Of all of them.
    user: Option<String>,
}

/// What came of the requests of a transfer, in their order.
#[derive(Debug)]
pub struct TransferAnswers {
    answers: Streaming<TransferResponse>,
    endpoint: Arc<str>,
}

/// What came of one request.
#[derive(Debug)]
pub enum TransferAnswer {
    /// A file is open for reading; its pieces follow.
    Opened(FileInfo),
    /// A piece of it; the last one is [`FilePiece::End`].
    Piece(FilePiece),
    /// A file was written.
    Written(WrittenFile),
    /// A page of a directory.
    Listed(DirectoryPage),
    /// A directory or a link was made.
    Done,
    /// It was not done.
    Failed(ExecutorError),
}

impl RemoteFiles {
    /// Begins a transfer, as this user or the default one. What was written is on the disk when the answers end.
    ///
    /// # Errors
    /// The agent could not be asked.
    pub async fn transfer(&self, user: Option<String>) -> Result<(TransferRequests, TransferAnswers), ExecutorError> {
        let (requests, waiting) = mpsc::channel(MAX_WAITING);
        let steps = stream::unfold(waiting, async |mut waiting: mpsc::Receiver<_>| {
            let request = waiting.recv().await?;
            Some((request, waiting))
        });
        let answers = self.answer(self.client.clone().transfer(steps).await)?;
        Ok((TransferRequests { requests, user }, TransferAnswers { answers, endpoint: Arc::clone(&self.endpoint) }))
    }
}

impl TransferRequests {
    fn file(&self, path: FilePath) -> FileTarget {
        FileTarget { path, user: self.user.clone() }
    }

    async fn send(&self, step: Step) -> bool {
        self.requests.send(TransferRequest { step: Some(step) }).await.is_ok()
    }

    /// Reads a file.
    pub async fn read(&self, path: FilePath, range: FileRange) -> bool {
        self.send(Step::Read(read_request(self.file(path), range))).await
    }

    /// Writes a file, of the pieces that follow, until [`end`](Self::end).
    pub async fn write(&self, path: FilePath, options: WriteOptions) -> bool {
        self.send(Step::Write(write_header(self.file(path), options))).await
    }

    /// A piece of the file that is written.
    pub async fn data(&self, data: Bytes) -> bool {
        self.send(Step::Data(data)).await
    }

    /// So many zeros of the file that is written, which take no room on the disk.
    pub async fn hole(&self, length: u64) -> bool {
        self.send(Step::Hole(length)).await
    }

    /// The file that is written is complete.
    pub async fn end(&self) -> bool {
        self.send(Step::End(WriteFileEnd {})).await
    }

    /// Lists a directory.
    pub async fn list(&self, path: FilePath, query: DirectoryQuery) -> bool {
        self.send(Step::List(list_request(self.file(path), query))).await
    }

    /// Makes a directory and those that it is in; it may exist.
    pub async fn make_directory(&self, path: FilePath, mode: Option<u32>) -> bool {
        self.send(Step::MakeDirectory(make_directory_request(self.file(path), mode, true))).await
    }

    /// Makes a symbolic link, in place of a file that has its name.
    pub async fn make_link(&self, path: FilePath, link_target: FilePath) -> bool {
        let (path, path_bytes, user) = target(self.file(path));
        let (link_target, target_bytes) = path_to_wire(link_target);
        self.send(Step::MakeLink(MakeLinkRequest { path, target: link_target, user, path_bytes, target_bytes })).await
    }
}

impl TransferAnswers {
    /// The next answer; `None`: all were sent.
    ///
    /// # Errors
    /// The transfer has failed; what came before is done.
    pub async fn next(&mut self) -> Result<Option<TransferAnswer>, ExecutorError> {
        let answer = self.answers.message().await.map_err(|status| error::following(status, &self.endpoint))?;
        let Some(answer) = answer else { return Ok(None) };
        Ok(Some(match answer.step.ok_or_else(unexpected)? {
            Answer::Read(step) => match read_step(step)? {
                ReadStep::Info(info) => TransferAnswer::Opened(info),
                ReadStep::Piece(piece) => TransferAnswer::Piece(piece),
            },
            Answer::Write(answer) => TransferAnswer::Written(written(answer)?),
            Answer::List(answer) => TransferAnswer::Listed(page(answer)?),
            Answer::MakeDirectory(_) | Answer::MakeLink(_) | Answer::Move(_) | Answer::Remove(_) => {
                TransferAnswer::Done
            }
            Answer::Info(_) => return Err(unexpected()),
            Answer::Failed(failed) => {
                let status = Status::with_details(Code::from_i32(failed.code), failed.message, failed.details);
                TransferAnswer::Failed(error_from_status(&status))
            }
        }))
    }
}
