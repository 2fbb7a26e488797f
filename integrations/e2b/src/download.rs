//! GET /files: the content of a file, or a part of it; and who may have it by a signed URL.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use async_compression::tokio::bufread::GzipEncoder;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, RANGE,
};
use http::{HeaderMap, HeaderValue, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use telexec_executor::{FileContent, FilePiece, FileRange, Files};
use tokio_util::io::{ReaderStream, StreamReader};

use crate::app::{App, sandbox_id};
use crate::auth::{self, Signature};
use crate::entry::name;
use crate::failure::{Code, Failure};
use crate::sandbox::Sandbox;

/// The parameters of a URL.
pub(crate) struct Query(HashMap<String, String>);

impl Query {
    pub(crate) fn read(text: Option<&str>) -> Self {
        Self(form_urlencoded::parse(text.unwrap_or_default().as_bytes()).into_owned().collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

impl App {
    /// The sandbox of a request about files, and the user that it names.
    pub(crate) fn for_files(
        &self,
        headers: &HeaderMap,
        query: &Query,
        operation: &str,
    ) -> Result<(Arc<Sandbox>, Option<String>), Failure> {
        let by_query = query.get("username").map(auth::named).transpose()?;
        let (sandbox, asked) = match query.get("signature") {
            Some(signature) if !headers.contains_key("x-access-token") => {
                let signature = Signature {
                    path: query.get("path").unwrap_or_default(),
                    operation,
                    user: query.get("username").unwrap_or_default(),
                    signature,
                    expiration: query.get("signature_expiration"),
                };
                // the user is what was signed, and nobody else
                (self.signed(headers, &signature)?, by_query.flatten())
            }
            _ => (self.entered(headers)?, by_query.map_or_else(|| auth::user(headers), Ok)?),
        };
        let user = sandbox.user(asked.as_deref());
        Ok((sandbox, user))
    }

    /// Where no sandbox is named, the signature says which one it is.
    fn signed(&self, headers: &HeaderMap, signature: &Signature<'_>) -> Result<Arc<Sandbox>, Failure> {
        let refused = |why| Failure::new(Code::Unauthenticated, why);
        let named = sandbox_id(headers).map(|(id, _)| id);
        let found = self.pool.sandboxes().map(|(_, sandbox)| sandbox).find(|sandbox| {
            let is_asked = named.as_ref().is_none_or(|named| named == sandbox.id());
            is_asked && signature.is_of(&sandbox.claim.token)
        });
        let sandbox =
            found.ok_or_else(|| refused("the signature is not of a sandbox that runs, for this path and user"))?;
        if signature.is_expired() {
            return Err(refused("the signature has expired"));
        }
        if sandbox.is_paused { Err(Failure::gone()) } else { Ok(sandbox) }
    }
}

pub(crate) async fn download(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    let query = Query::read(query.as_deref());
    let (sandbox, user) = app.for_files(&headers, &query, "read")?;
    let path = query.get("path").filter(|path| !path.is_empty()).ok_or_else(|| Failure::invalid("path: is missing"))?;
    let (file, path) = sandbox.file(path, user.as_deref()).await?;
    let files = &sandbox.link.files;
    let mut response = match headers.get(RANGE).and_then(|range| range.to_str().ok()).and_then(Wanted::read) {
        Some(wanted) => {
            let size = files.read(file.clone(), FileRange { length: 1, ..FileRange::default() }).await?.info.size;
            let Some((first, length)) = wanted.of(size) else { return Ok(unsatisfiable(size)) };
            let range = FileRange { offset: first, length, ..FileRange::default() };
            let content = files.read(file, range).await?;
            let range = format!("bytes {first}-{}/{size}", first + length - 1);
            (StatusCode::PARTIAL_CONTENT, [(CONTENT_RANGE, range)], Body::from_stream(pieces(content))).into_response()
        }
        None => {
            let content = files.read(file, FileRange::default()).await?;
            match accepts_gzip(&headers) {
                true => {
                    let packed = GzipEncoder::new(StreamReader::new(Box::pin(pieces(content))));
                    ([(CONTENT_ENCODING, "gzip")], Body::from_stream(ReaderStream::new(packed))).into_response()
                }
                false => Body::from_stream(pieces(content)).into_response(),
            }
        }
    };
    describe(response.headers_mut(), &path);
    Ok(response)
}

fn describe(headers: &mut HeaderMap, path: &str) {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let name = utf8_percent_encode(name(path), NON_ALPHANUMERIC);
    if let Ok(value) = HeaderValue::from_str(&format!("inline; filename*=UTF-8''{name}")) {
        headers.insert(CONTENT_DISPOSITION, value);
    }
}

fn unsatisfiable(size: u64) -> Response {
    let mut response = Failure::invalid("range: is beyond the end of the file").response();
    *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
    if let Ok(value) = HeaderValue::from_str(&format!("bytes */{size}")) {
        response.headers_mut().insert(CONTENT_RANGE, value);
    }
    response
}

/// An error cuts the answer off, which clients notice.
fn pieces(content: FileContent) -> impl Stream<Item = io::Result<Bytes>> + Send {
    content.pieces.filter_map(|piece| async {
        match piece {
            Ok(FilePiece::Data(data)) => Some(Ok(data)),
            // not asked for
            Ok(FilePiece::Hole(_) | FilePiece::End { .. }) => None,
            Err(error) => Some(Err(io::Error::other(error))),
        }
    })
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accepted.split(',').any(|coding| matches!(coding.trim(), "gzip" | "gzip;q=1" | "gzip;q=1.0"))
}

/// One range of bytes; several are not served as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    From(u64, Option<u64>),
    Last(u64),
}

impl Wanted {
    fn read(text: &str) -> Option<Self> {
        let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
        match (first.trim(), last.trim()) {
            ("", last) => Some(Self::Last(last.parse().ok()?)),
            (first, "") => Some(Self::From(first.parse().ok()?, None)),
            (first, last) => {
                let (first, last) = (first.parse().ok()?, last.parse().ok()?);
                (first <= last).then_some(Self::From(first, Some(last)))
            }
        }
    }

    /// The first byte and how many; `None`: there are none.
    fn of(self, size: u64) -> Option<(u64, u64)> {
        let (first, end) = match self {
            Self::From(first, last) => (first, last.map_or(size, |last| last.saturating_add(1).min(size))),
            Self::Last(count) => (size.saturating_sub(count), size),
        };
        (first < end).then(|| (first, end - first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_to_the_file() {
        for (text, size, expected) in [
            ("bytes=0-0", 10, Some((0, 1))),
            ("bytes=3-", 10, Some((3, 7))),
            ("bytes=3-99", 10, Some((3, 7))),
            ("bytes=-4", 10, Some((6, 4))),
            ("bytes=-40", 10, Some((0, 10))),
            ("bytes=10-", 10, None),
            ("bytes=0-", 0, None),
            ("bytes=-0", 10, None),
        ] {
            assert_eq!(Wanted::read(text).unwrap().of(size), expected, "{text}");
        }
        for wrong in ["bytes=2-1", "lines=1-2", "bytes=a-b", "bytes=1-2,3-4", "bytes=", "bytes=--1"] {
            assert_eq!(Wanted::read(wrong), None, "{wrong}");
        }
    }
}
