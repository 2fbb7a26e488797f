//! `telexec.v1.FileService`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use telexec_executor::{ExecutionId, ExecutorError, FilePiece, FilePieces, InvalidCommand};
use telexec_proto::convert::{error_from_status, error_to_status};
use telexec_proto::v1::file_service_server::FileService;
use telexec_proto::v1::{
    GetFileInfoRequest, GetFileInfoResponse, GetUploadRequest, GetUploadResponse, ListDirectoryRequest,
    ListDirectoryResponse, MakeDirectoryRequest, MakeDirectoryResponse, MoveFileRequest, MoveFileResponse,
    ReadFileRequest, ReadFileResponse, RemoveFileRequest, RemoveFileResponse, SearchFilesRequest, SearchFilesResponse,
    ServeSftpRequest, ServeSftpResponse, TransferRequest, TransferResponse, WatchFilesRequest, WatchFilesResponse,
    WriteFileRequest, WriteFileResponse, write_file_request,
};
use tonic::{Request, Response, Status, Streaming};

use super::judge::admit;
use super::session::{Session, unexpected};
use super::upload::{self, Uploads};
use super::wire::{Answered, Ask, Asked, read_step};
use super::{search, sftp, transfer, watch};
use crate::admission::Stack;
use crate::call::events::Responses;
use crate::call::status::{counted, invalid};
use crate::call::{Call, Rpc};
use crate::policy::FileAction;
use crate::request_memory::Reservation;

/// The RPCs.
pub(crate) struct FileRpcs {
    stack: Stack,
    uploads: Uploads,
}

impl FileRpcs {
    /// Uploads are kept for `grace` after their call.
    pub(crate) fn new(stack: Stack, grace: Duration) -> Self {
        Self { stack, uploads: Uploads::new(grace) }
    }

    /// Does one task, and answers what came of it.
    async fn answer<R: Ask, A: Answered + prost::Message>(
        &self,
        request: Request<R>,
        rpc: Rpc,
    ) -> Result<Response<A>, Status> {
        let call = Call::of(&request, rpc)?;
        let Asked { user, job } = request.into_inner().ask().map_err(invalid)?;
        let done = async {
            let mut session = Session::start(&self.stack, &call, user.as_deref(), job).await?;
            let outcome = session.finish().await?;
            session.close();
            A::answered(outcome).ok_or_else(unexpected)
        };
        let answer = done.await.map_err(|error: ExecutorError| error_to_status(&error))?;
        counted(&call.reservation, answer)
    }
}

#[tonic::async_trait]
impl FileService for FileRpcs {
    type ReadFileStream = Responses<ReadFileResponse>;

    async fn read_file(&self, request: Request<ReadFileRequest>) -> Result<Response<Self::ReadFileStream>, Status> {
        let call = Call::of(&request, Rpc::ReadFile)?;
        let Asked { user, job } = request.into_inner().ask().map_err(invalid)?;
        let mut session = Session::start(&self.stack, &call, user.as_deref(), job).await.map_err(failed)?;
        // so that an error is that of the call, not of a stream
        let (first, _) = read_step(session.next().await.map_err(failed)?).ok_or_else(|| failed(unexpected()))?;
        let steps = stream::try_unfold(Some(session), |session: Option<Session>| async move {
            let Some(mut session) = session else { return Ok(None) };
            let (step, is_last) =
                read_step(session.next().await.map_err(failed)?).ok_or_else(|| failed(unexpected()))?;
            Ok(Some(match is_last {
                true => {
                    session.close();
                    (step, None)
                }
                false => (step, Some(session)),
            }))
        });
        let responses = stream::iter([Ok(first)]).chain(steps);
        Ok(Response::new(call.deadline.until(responses.boxed())))
    }

    async fn write_file(
        &self,
        request: Request<Streaming<WriteFileRequest>>,
    ) -> Result<Response<WriteFileResponse>, Status> {
        let call = Call::of(&request, Rpc::WriteFile)?;
        let mut requests = request.into_inner();
        let first = requests.next().await.transpose()?.and_then(|first| first.step);
        let Some(write_file_request::Step::Header(header)) = first else {
            return Err(invalid(InvalidCommand::new("header", "is missing: it must be the first")));
        };
        let (offset, upload_id) = (header.offset, header.upload_id.clone());
        let asked = header.ask().map_err(invalid)?;
        call.reservation.release();
        let pieces = pieces(requests, Arc::clone(&call.reservation));
        let written = match upload_id.is_empty() {
            true if offset > 0 => {
                return Err(invalid(InvalidCommand::new(
                    "header.offset",
                    "is for an upload that header.upload_id names",
                )));
            }
            true => upload::write(&self.stack, &call, asked, pieces).await,
            false => {
                let id: ExecutionId = upload_id.parse().map_err(upload_id_is)?;
                self.uploads.write((&self.stack, &call), asked, (id, offset), pieces).await
            }
        };
        written.map(Response::new).map_err(|error| error_to_status(&error))
    }

    async fn get_file_info(
        &self,
        request: Request<GetFileInfoRequest>,
    ) -> Result<Response<GetFileInfoResponse>, Status> {
        self.answer(request, Rpc::GetFileInfo).await
    }

    async fn list_directory(
        &self,
        request: Request<ListDirectoryRequest>,
    ) -> Result<Response<ListDirectoryResponse>, Status> {
        self.answer(request, Rpc::ListDirectory).await
    }

    async fn make_directory(
        &self,
        request: Request<MakeDirectoryRequest>,
    ) -> Result<Response<MakeDirectoryResponse>, Status> {
        self.answer(request, Rpc::MakeDirectory).await
    }

    async fn move_file(&self, request: Request<MoveFileRequest>) -> Result<Response<MoveFileResponse>, Status> {
        self.answer(request, Rpc::MoveFile).await
    }

    async fn remove_file(&self, request: Request<RemoveFileRequest>) -> Result<Response<RemoveFileResponse>, Status> {
        self.answer(request, Rpc::RemoveFile).await
    }

    async fn get_upload(&self, request: Request<GetUploadRequest>) -> Result<Response<GetUploadResponse>, Status> {
        let call = Call::of(&request, Rpc::GetUpload)?;
        admit(&self.stack, &call, &[FileAction::Write], None).await.map_err(failed)?;
        let id: ExecutionId = request.into_inner().upload_id.parse().map_err(upload_id_is)?;
        let committed = self.uploads.committed(call.caller.identity.as_str(), &id).await;
        let committed_offset = committed.map_err(|error| error_to_status(&error))?;
        Ok(Response::new(GetUploadResponse { committed_offset }))
    }

    type SearchFilesStream = Responses<SearchFilesResponse>;

    async fn search_files(
        &self,
        request: Request<SearchFilesRequest>,
    ) -> Result<Response<Self::SearchFilesStream>, Status> {
        let call = Call::of(&request, Rpc::SearchFiles)?;
        let asked = request.into_inner().ask().map_err(invalid)?;
        let responses = search::search(&self.stack, &call, asked).await.map_err(failed)?;
        Ok(Response::new(call.deadline.until(responses)))
    }

    type WatchFilesStream = Responses<WatchFilesResponse>;

    async fn watch_files(
        &self,
        request: Request<WatchFilesRequest>,
    ) -> Result<Response<Self::WatchFilesStream>, Status> {
        let call = Call::of(&request, Rpc::WatchFiles)?;
        let asked = request.into_inner().ask().map_err(invalid)?;
        let responses = watch::watch(&self.stack, &call, asked).await.map_err(failed)?;
        Ok(Response::new(call.deadline.until(responses)))
    }

    type TransferStream = Responses<TransferResponse>;

    async fn transfer(
        &self,
        request: Request<Streaming<TransferRequest>>,
    ) -> Result<Response<Self::TransferStream>, Status> {
        let call = Call::of(&request, Rpc::Transfer)?;
        let deadline = call.deadline.clone();
        admit(&self.stack, &call, &FileAction::TRANSFER, None).await.map_err(failed)?;
        let responses = transfer::transfer(self.stack.clone(), call, request.into_inner());
        Ok(Response::new(deadline.until(responses)))
    }

    type ServeSftpStream = Responses<ServeSftpResponse>;

    async fn serve_sftp(
        &self,
        request: Request<Streaming<ServeSftpRequest>>,
    ) -> Result<Response<Self::ServeSftpStream>, Status> {
        let call = Call::of(&request, Rpc::ServeSftp)?;
        let deadline = call.deadline.clone();
        let responses = sftp::serve(self.stack.clone(), call, request.into_inner()).await?;
        Ok(Response::new(deadline.until(responses)))
    }
}

fn upload_id_is(error: InvalidCommand) -> Status {
    invalid(InvalidCommand::new("upload_id", error.reason))
}

fn failed(error: ExecutorError) -> Status {
    error_to_status(&error)
}

/// The content of a file, as it arrives. The memory of each piece is released when the next one is asked for.
fn pieces(requests: Streaming<WriteFileRequest>, reservation: Arc<Reservation>) -> FilePieces {
    let pieces = requests.map(move |request| {
        reservation.release();
        match request.map_err(|status| error_from_status(&status))?.step {
            Some(write_file_request::Step::Data(data)) => Ok(FilePiece::Data(data)),
            Some(write_file_request::Step::Hole(length)) => Ok(FilePiece::Hole(length)),
            Some(write_file_request::Step::Header(_)) | None => {
                Err(InvalidCommand::new("step", "must be data or hole, after the header").into())
            }
        }
    });
    pieces.boxed()
}
