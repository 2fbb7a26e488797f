//! The files of a remote machine, over gRPC.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use telexec_executor::{
    DirectoryPage, DirectoryQuery, ExecutionId, ExecutorError, FileContent, FileInfo, FilePath, FilePiece, FilePieces,
    FileRange, FileTarget, Files, FoundFiles, SearchQuery, WatchedFiles, WriteOptions, WrittenFile,
};
use telexec_proto::convert::{file_info_from_wire, path_to_wire, sha256_from_wire};
use telexec_proto::v1::file_service_client::FileServiceClient;
use telexec_proto::v1::{
    GetFileInfoRequest, GetUploadRequest, ListDirectoryRequest, ListDirectoryResponse, MakeDirectoryRequest,
    MoveFileRequest, ReadFileRequest, ReadFileResponse, RemoveFileRequest, WriteFileHeader, WriteFileRequest,
    WriteFileResponse, read_file_response, write_file_request,
};
use tokio::sync::oneshot;
use tonic::{Code, Response, Status};

use crate::channel::Channel;
use crate::error;
use crate::search::{found, search_request};
use crate::watch::{watch_request, watched};

/// A page of a directory is the largest response.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// The files of an [`Agent`](crate::Agent)'s machine; clones share the connection.
#[derive(Clone, Debug)]
pub struct RemoteFiles {
    pub(crate) client: FileServiceClient<Channel>,
    pub(crate) endpoint: Arc<str>,
}

impl RemoteFiles {
    pub(crate) fn new(channel: Channel, endpoint: Arc<str>) -> Self {
        let client = FileServiceClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES);
        Self { client, endpoint }
    }

    pub(crate) fn answer<T>(&self, result: Result<Response<T>, Status>) -> Result<T, ExecutorError> {
        result.map(Response::into_inner).map_err(|status| match status.code() {
            Code::Unimplemented if status.message().is_empty() => {
                let reason = format!("the agent at {} does not serve files: it is of an older version", self.endpoint);
                ExecutorError::FailedPrecondition { reason }
            }
            Code::Unimplemented => ExecutorError::FailedPrecondition { reason: status.message().to_owned() },
            _ => error::calling(status, &self.endpoint),
        })
    }
}

/// The fields of a file in a request.
pub(crate) fn target(file: FileTarget) -> (String, Bytes, String) {
    let (path, path_bytes) = path_to_wire(file.path);
    (path, path_bytes, file.user.unwrap_or_default())
}

pub(crate) fn read_request(file: FileTarget, range: FileRange) -> ReadFileRequest {
    let (path, path_bytes, user) = target(file);
    let FileRange { offset, length, holes, prefix_sha256 } = range;
    let prefix_sha256 = bytes_of(prefix_sha256);
    ReadFileRequest { path, user, offset, length, path_bytes, holes, prefix_sha256 }
}

pub(crate) fn write_header(file: FileTarget, options: WriteOptions) -> WriteFileHeader {
    let (path, path_bytes, user) = target(file);
    let (upload_id, offset) = options.upload.map(|(id, offset)| (id.to_string(), offset)).unwrap_or_default();
    WriteFileHeader {
        path,
        user,
        mode: options.mode,
        make_parents: options.make_parents,
        exclusive: options.exclusive,
        offset,
        upload_id,
        sha256: bytes_of(options.sha256),
        path_bytes,
        source_mode: options.source_mode,
    }
}

fn bytes_of(sha256: Option<[u8; 32]>) -> Bytes {
    sha256.map(|sha256| sha256.to_vec().into()).unwrap_or_default()
}

pub(crate) fn list_request(directory: FileTarget, query: DirectoryQuery) -> ListDirectoryRequest {
    let (path, path_bytes, user) = target(directory);
    ListDirectoryRequest { path, user, page_size: query.page_size, page_token: query.page_token, path_bytes }
}

pub(crate) fn make_directory_request(
    directory: FileTarget,
    mode: Option<u32>,
    make_parents: bool,
) -> MakeDirectoryRequest {
    let (path, path_bytes, user) = target(directory);
    MakeDirectoryRequest { path, user, mode, make_parents, path_bytes }
}

pub(crate) fn page(answer: ListDirectoryResponse) -> Result<DirectoryPage, ExecutorError> {
    let entries = answer.entries.into_iter().map(|entry| file_info_from_wire(Some(entry)));
    Ok(DirectoryPage { entries: entries.collect::<Result<_, _>>()?, next_page_token: answer.next_page_token })
}

pub(crate) fn written(answer: WriteFileResponse) -> Result<WrittenFile, ExecutorError> {
    Ok(WrittenFile { info: file_info_from_wire(answer.info)?, sha256: sha256_from_wire(&answer.sha256)? })
}

/// A step of a read.
pub(crate) enum ReadStep {
    Info(FileInfo),
    Piece(FilePiece),
}

pub(crate) fn read_step(answer: ReadFileResponse) -> Result<ReadStep, ExecutorError> {
    Ok(match answer.step {
        Some(read_file_response::Step::Info(info)) => ReadStep::Info(file_info_from_wire(Some(info))?),
        Some(read_file_response::Step::Data(data)) => ReadStep::Piece(FilePiece::Data(data)),
        Some(read_file_response::Step::Hole(length)) => ReadStep::Piece(FilePiece::Hole(length)),
        Some(read_file_response::Step::End(end)) => {
            ReadStep::Piece(FilePiece::End { sha256: sha256_from_wire(&end.sha256)? })
        }
        None => return Err(unexpected()),
    })
}

pub(crate) fn unexpected() -> ExecutorError {
    ExecutorError::Internal("the agent answered what was not asked".to_owned())
}

#[async_trait]
impl Files for RemoteFiles {
    async fn read(&self, file: FileTarget, range: FileRange) -> Result<FileContent, ExecutorError> {
        let mut answers = self.answer(self.client.clone().read_file(read_request(file, range)).await)?;
        let endpoint = Arc::clone(&self.endpoint);
        let first = answers.message().await.map_err(|status| error::following(status, &endpoint))?;
        let ReadStep::Info(info) = read_step(first.ok_or_else(unexpected)?)? else { return Err(unexpected()) };
        let pieces = stream::try_unfold(Some(answers), move |answers| {
            let endpoint = Arc::clone(&endpoint);
            async move {
                let Some(mut answers) = answers else { return Ok(None) };
                let answer = answers.message().await.map_err(|status| error::following(status, &endpoint))?;
                // complete only with its end
                let answer = answer.ok_or_else(|| error::lost(&endpoint, "the answer ended early"))?;
                match read_step(answer)? {
                    ReadStep::Piece(piece) => {
                        let is_last = matches!(piece, FilePiece::End { .. });
                        Ok(Some((piece, (!is_last).then_some(answers))))
                    }
                    ReadStep::Info(_) => Err(unexpected()),
                }
            }
        });
        Ok(FileContent { info, pieces: pieces.boxed() })
    }

    async fn write(
        &self,
        file: FileTarget,
        options: WriteOptions,
        content: FilePieces,
    ) -> Result<WrittenFile, ExecutorError> {
        let header = WriteFileRequest { step: Some(write_file_request::Step::Header(write_header(file, options))) };
        let (requests, failed) = until_failure(content);
        let requests = stream::iter([header]).chain(requests);
        let mut client = self.client.clone();
        tokio::select! {
            biased;
            // dropping the call cancels it: its end would mean that the file is complete
            Ok(error) = failed => Err(error),
            answer = client.write_file(requests) => written(self.answer(answer)?),
        }
    }

    async fn upload(&self, id: &ExecutionId) -> Result<u64, ExecutorError> {
        let request = GetUploadRequest { upload_id: id.to_string() };
        Ok(self.answer(self.client.clone().get_upload(request).await)?.committed_offset)
    }

    async fn info(&self, file: FileTarget) -> Result<FileInfo, ExecutorError> {
        let (path, path_bytes, user) = target(file);
        let request = GetFileInfoRequest { path, user, path_bytes };
        file_info_from_wire(self.answer(self.client.clone().get_file_info(request).await)?.info)
    }

    async fn list(&self, directory: FileTarget, query: DirectoryQuery) -> Result<DirectoryPage, ExecutorError> {
        page(self.answer(self.client.clone().list_directory(list_request(directory, query)).await)?)
    }

    async fn search(&self, directory: FileTarget, query: SearchQuery) -> Result<FoundFiles, ExecutorError> {
        let answers = self.answer(self.client.clone().search_files(search_request(directory, query)).await)?;
        Ok(found(answers, Arc::clone(&self.endpoint)))
    }

    async fn watch(&self, file: FileTarget, recursive: bool) -> Result<WatchedFiles, ExecutorError> {
        let answers = self.answer(self.client.clone().watch_files(watch_request(file, recursive)).await)?;
        watched(answers, Arc::clone(&self.endpoint)).await
    }

    async fn make_directory(
        &self,
        directory: FileTarget,
        mode: Option<u32>,
        make_parents: bool,
    ) -> Result<(), ExecutorError> {
        let request = make_directory_request(directory, mode, make_parents);
        self.answer(self.client.clone().make_directory(request).await).map(drop)
    }

    async fn rename(&self, file: FileTarget, destination: FilePath, replace: bool) -> Result<(), ExecutorError> {
        let (source_path, source_path_bytes, user) = target(file);
        let (destination_path, destination_path_bytes) = path_to_wire(destination);
        let request =
            MoveFileRequest { source_path, destination_path, user, replace, source_path_bytes, destination_path_bytes };
        self.answer(self.client.clone().move_file(request).await).map(drop)
    }

    async fn remove(&self, file: FileTarget, recursive: bool) -> Result<(), ExecutorError> {
        let (path, path_bytes, user) = target(file);
        let request = RemoveFileRequest { path, user, recursive, path_bytes };
        self.answer(self.client.clone().remove_file(request).await).map(drop)
    }
}

/// The pieces as requests. If one fails, no more come, not even the end, and the error does.
fn until_failure(
    content: FilePieces,
) -> (impl Stream<Item = WriteFileRequest> + Send + 'static, oneshot::Receiver<ExecutorError>) {
    let (report, failed) = oneshot::channel();
    let report = Arc::new(Mutex::new(Some(report)));
    let requests = content.then(move |piece| {
        let report = Arc::clone(&report);
        async move {
            let failure = match piece {
                Ok(FilePiece::Data(data)) => return data_request(write_file_request::Step::Data(data)),
                Ok(FilePiece::Hole(length)) => return data_request(write_file_request::Step::Hole(length)),
                Ok(FilePiece::End { .. }) => {
                    ExecutorError::Internal("the end of a read is not to be written".to_owned())
                }
                Err(error) => error,
            };
            let report = report.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(report) = report {
                let _ = report.send(failure);
            }
            std::future::pending().await
        }
    });
    (requests, failed)
}

fn data_request(step: write_file_request::Step) -> WriteFileRequest {
    WriteFileRequest { step: Some(step) }
}
