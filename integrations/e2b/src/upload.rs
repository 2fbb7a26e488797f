//! POST /files: one file as the body, or many as parts of a form. Each is written as a whole or not at all.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use async_compression::tokio::bufread::GzipDecoder;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use multer::{Constraints, Multipart, SizeLimit};
use serde_json::{Value, json};
use telexec_executor::{ExecutorError, FilePiece, Files, InvalidCommand, WriteOptions};
use tokio_util::io::{ReaderStream, StreamReader};

use crate::app::App;
use crate::download::Query;
use crate::entry::name;
use crate::failure::{Code, Failure, answer};
use crate::sandbox::Sandbox;

/// From one piece of a body to the next.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// What a form may have between the contents of its files.
const MAX_HEAD_BYTES: usize = 1024 * 1024;
const MAX_FILES: usize = 10_000;
const METADATA_PREFIX: &str = "x-metadata-";

type Pieces = BoxStream<'static, Result<Bytes, Failure>>;

pub(crate) async fn upload(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
    body: Body,
) -> Result<Response, Failure> {
    let query = Query::read(query.as_deref());
    let (sandbox, user) = app.for_files(&headers, &query, "write")?;
    if headers.keys().any(|name| name.as_str().starts_with(METADATA_PREFIX)) {
        return Err(Failure::invalid("metadata: telexec-e2b does not support this"));
    }
    let path = query.get("path").filter(|path| !path.is_empty());
    let body = unpacked(&headers, arriving(body))?;
    let upload = Upload { sandbox, user, limit: app.max_file_size };
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let written = match multer::parse_boundary(content_type) {
        Ok(boundary) => upload.sandbox.while_running(upload.form(body, boundary, path)).await?,
        Err(_) if content_type.trim().eq_ignore_ascii_case("application/octet-stream") => {
            let path = path.ok_or_else(|| Failure::invalid("path: is missing"))?;
            vec![upload.sandbox.while_running(upload.write(path, body)).await?]
        }
        Err(_) => {
            let message = "content-type: expected application/octet-stream, or multipart/form-data with a boundary";
            return Err(Failure::invalid(message));
        }
    };
    Ok(answer(StatusCode::OK, &written.into()))
}

/// The body as it comes; one that stalls fails.
fn arriving(body: Body) -> Pieces {
    let pieces = tokio_stream::StreamExt::timeout(body.into_data_stream(), IDLE_TIMEOUT).map(|piece| match piece {
        Ok(Ok(data)) => Ok(data),
        Ok(Err(error)) => Err(Failure::invalid(format!("the body ended early: {error}"))),
        Err(_) => {
            let message = format!("nothing of the body arrived for {} s", IDLE_TIMEOUT.as_secs());
            Err(Failure::new(Code::DeadlineExceeded, message))
        }
    });
    pieces.boxed()
}

fn unpacked(headers: &HeaderMap, body: Pieces) -> Result<Pieces, Failure> {
    match headers.get(CONTENT_ENCODING).map(|value| value.as_bytes()) {
        None | Some(b"identity") => Ok(body),
        Some(b"gzip") => {
            let mut decoder = GzipDecoder::new(StreamReader::new(body.map(|piece| piece.map_err(io::Error::other))));
            decoder.multiple_members(true);
            Ok(ReaderStream::new(decoder).map(|piece| piece.map_err(packed_wrongly)).boxed())
        }
        Some(_) => Err(Failure::invalid("content-encoding: expected gzip, or none")),
    }
}

/// What went wrong before it was unpacked, or in unpacking it.
fn packed_wrongly(error: io::Error) -> Failure {
    match error.get_ref().and_then(|error| error.downcast_ref::<Failure>()) {
        Some(failure) => failure.clone(),
        None => Failure::invalid(format!("the body is not gzip as a whole: {error}")),
    }
}

struct Upload {
    sandbox: Arc<Sandbox>,
    user: Option<String>,
    limit: u64,
}

impl Upload {
    async fn form(&self, body: Pieces, boundary: String, path: Option<&str>) -> Result<Vec<Value>, Failure> {
        let unseen = Arc::new(AtomicUsize::new(0));
        let body = Metered { body, unseen: Arc::clone(&unseen), pauses: false };
        let limits = Constraints::new().size_limit(SizeLimit::new().whole_stream(u64::MAX));
        let mut form = Multipart::with_constraints(body, boundary, limits);
        let mut written = Vec::new();
        while let Some(part) = form.next_field().await.map_err(malformed)? {
            unseen.store(0, Ordering::Relaxed);
            let file_name = part.file_name().map(str::to_owned);
            let target = match (path, &file_name) {
                (Some(_), _) if !written.is_empty() => {
                    return Err(Failure::invalid("path: names one file, and the form has several"));
                }
                (Some(path), _) => path.to_owned(),
                (None, Some(name)) if !name.is_empty() => name.clone(),
                (None, _) => return Err(Failure::invalid("a part of the form has no file name, and there is no path")),
            };
            let seen = Arc::clone(&unseen);
            let content = part.map(move |piece| {
                seen.store(0, Ordering::Relaxed);
                piece.map_err(malformed)
            });
            written.push(self.write(&target, content.boxed()).await?);
            if written.len() > MAX_FILES {
                return Err(Failure::new(Code::TooLarge, format!("the form has more than {MAX_FILES} files")));
            }
        }
        if written.is_empty() { Err(Failure::invalid("the form has no file")) } else { Ok(written) }
    }

    async fn write(&self, path: &str, content: Pieces) -> Result<Value, Failure> {
        let (file, path) = self.sandbox.file(path, self.user.as_deref()).await?;
        let failed = Arc::new(Mutex::new(None));
        let (report, limit, mut length) = (Arc::clone(&failed), self.limit, 0);
        let pieces = content.map(move |piece| {
            let piece = piece.and_then(|data| {
                length += data.len() as u64;
                match length <= limit {
                    true => Ok(FilePiece::Data(data)),
                    false => Err(Failure::new(Code::TooLarge, format!("the file has more than {limit} bytes"))),
                }
            });
            piece.map_err(|failure| {
                *report.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
                ExecutorError::from(InvalidCommand::new("body", "failed"))
            })
        });
        let options = WriteOptions { make_parents: true, ..WriteOptions::default() };
        let written = self.sandbox.link.files.write(file, options, pieces.boxed()).await;
        let failure = failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (failure, written) {
            (Some(failure), _) => Err(failure),
            (None, Err(error)) => Err(error.into()),
            (None, Ok(_)) => Ok(json!({"path": path, "name": name(&path), "type": "file"})),
        }
    }
}

fn malformed(error: multer::Error) -> Failure {
    match error {
        multer::Error::StreamReadFailed(source) => match source.downcast::<Failure>() {
            Ok(failure) => *failure,
            Err(source) => Failure::invalid(format!("the form cannot be read: {source}")),
        },
        error => Failure::invalid(format!("the form is malformed: {error}")),
    }
}

/// One piece at a time, since multer takes all that is there before it looks at any of it; and no more than a part's headers
/// may have, unless content is seen meanwhile.
struct Metered {
    body: Pieces,
    unseen: Arc<AtomicUsize>,
    pauses: bool,
}

impl fmt::Debug for Metered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metered").finish_non_exhaustive()
    }
}

impl Stream for Metered {
    type Item = Result<Bytes, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if std::mem::take(&mut self.pauses) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let polled = self.body.poll_next_unpin(cx);
        if let Poll::Ready(Some(Ok(data))) = &polled {
            self.pauses = true;
            if self.unseen.fetch_add(data.len(), Ordering::Relaxed) > MAX_HEAD_BYTES {
                return Poll::Ready(Some(Err(Failure::new(Code::TooLarge, "the headers of the form are too long"))));
            }
        }
        polled
    }
}
