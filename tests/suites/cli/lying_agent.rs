//! What an agent that lies can do to who copies from it.

use std::path::Path;
use std::pin::Pin;

use futures_util::{Stream, StreamExt, stream};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use telexec_proto::v1::file_service_server::{FileService, FileServiceServer};
use telexec_proto::v1::transfer_request::Step as Asked;
use telexec_proto::v1::transfer_response::Step as Answer;
use telexec_proto::v1::*;
use tokio::net::UnixListener;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};
use tower::ServiceExt;

use super::{Said, telexec};

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Has a directory with a symbolic link, and a file of the same name; it answers the question for the file in this way.
struct Liar {
    link_target: String,
    lie: fn() -> Vec<Answer>,
}

fn entry(name: &str, kind: FileType, link_target: &str) -> FileInfo {
    FileInfo {
        path: name.to_owned(),
        r#type: kind.into(),
        mode: 0o644,
        link_target: link_target.to_owned(),
        ..FileInfo::default()
    }
}

fn listed(entries: Vec<FileInfo>) -> Answer {
    Answer::List(ListDirectoryResponse { entries, next_page_token: String::new() })
}

/// As an async fn of the trait reads, since attributes do not see what macros make.
macro_rules! not_here {
    ($($name:ident($request:ty) -> $answer:ty;)*) => {
        $(fn $name<'this, 'call>(
            &'this self,
            _: Request<$request>,
        ) -> Pin<Box<dyn Future<Output = Result<Response<$answer>, Status>> + Send + 'call>>
        where
            'this: 'call,
            Self: 'call,
        {
            Box::pin(async { Err(Status::unimplemented("not here")) })
        })*
    };
}

#[tonic::async_trait]
impl FileService for Liar {
    type ReadFileStream = Answers<ReadFileResponse>;
    type SearchFilesStream = Answers<SearchFilesResponse>;
    type WatchFilesStream = Answers<WatchFilesResponse>;
    type TransferStream = Answers<TransferResponse>;
    type ServeSftpStream = Answers<ServeSftpResponse>;

    not_here! {
        read_file(ReadFileRequest) -> Self::ReadFileStream;
        write_file(Streaming<WriteFileRequest>) -> WriteFileResponse;
        list_directory(ListDirectoryRequest) -> ListDirectoryResponse;
        make_directory(MakeDirectoryRequest) -> MakeDirectoryResponse;
        move_file(MoveFileRequest) -> MoveFileResponse;
        remove_file(RemoveFileRequest) -> RemoveFileResponse;
        search_files(SearchFilesRequest) -> Self::SearchFilesStream;
        watch_files(WatchFilesRequest) -> Self::WatchFilesStream;
        get_upload(GetUploadRequest) -> GetUploadResponse;
        serve_sftp(Streaming<ServeSftpRequest>) -> Self::ServeSftpStream;
    }

    async fn get_file_info(&self, _: Request<GetFileInfoRequest>) -> Result<Response<GetFileInfoResponse>, Status> {
        Ok(Response::new(GetFileInfoResponse { info: Some(entry("x", FileType::Directory, "")) }))
    }

    async fn transfer(
        &self,
        request: Request<Streaming<TransferRequest>>,
    ) -> Result<Response<Self::TransferStream>, Status> {
        let (target, lie) = (self.link_target.clone(), self.lie);
        let answers = request.into_inner().flat_map(move |asked| {
            let answers = match asked.ok().and_then(|asked| asked.step) {
                Some(Asked::List(_)) => {
                    vec![listed(vec![entry("s", FileType::Symlink, &target), entry("s", FileType::Regular, "")])]
                }
                Some(Asked::Read(read)) if read.path.ends_with("/s") => lie(),
                Some(Asked::Read(_)) => file(),
                _ => Vec::new(),
            };
            stream::iter(answers.into_iter().map(|step| Ok(TransferResponse { step: Some(step) })))
        });
        Ok(Response::new(answers.boxed()))
    }
}

fn file() -> Vec<Answer> {
    use read_file_response::Step;
    // of "pwned"
    let sha256 = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, b"pwned").as_ref().to_vec().into();
    [Step::Info(entry("pwned", FileType::Regular, "")), Step::Data("pwned".into()), Step::End(ReadFileEnd { sha256 })]
        .map(|step| Answer::Read(ReadFileResponse { step: Some(step) }))
        .into()
}

async fn copied(directory: &Path, lie: fn() -> Vec<Answer>) -> Said {
    let socket = directory.join("liar.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let liar = Liar { link_target: directory.join("victim").display().to_string(), lie };
    let routes = Routes::new(FileServiceServer::new(liar)).prepare();
    let server = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let routes = routes.clone();
            let service = service_fn(move |request: hyper::Request<Incoming>| routes.clone().oneshot(request));
            let http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(async move { http2.serve_connection(TokioIo::new(stream), service).await });
        }
    });
    let source = format!("unix://{}:/x", socket.display());
    let said = Said::by(telexec(["cp", "-qr", &source, directory.join("copy").to_str().unwrap()])).await;
    server.abort();
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_asked_for_is_written_nowhere() {
    let lies: [fn() -> Vec<Answer>; 4] = [
        // a list for a file: what it names would be written where the link leads
        || vec![listed(vec![entry("pwned", FileType::Regular, "")])],
        || vec![Answer::MakeDirectory(MakeDirectoryResponse {})],
        || file().into_iter().skip(1).collect(),
        || file().into_iter().take(1).chain(file()).collect(),
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("victim")).unwrap();
        let said = copied(directory.path(), lie).await;
        assert!(said.failure(125).contains("something else than what was asked"), "{number}: {said:?}");
        assert!(std::fs::read_dir(directory.path().join("victim")).unwrap().next().is_none(), "{number}");
        let left = std::fs::read_dir(directory.path().join("copy")).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), ["s"], "{number}");
    }
}
