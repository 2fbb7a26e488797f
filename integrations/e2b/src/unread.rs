//! Requests that are answered before all of their body was read. hyper closes their connections, so that a client which still
//! writes may lose the answer: what is short is read first. For the rest the answer says that the connection ends.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::response::Response;
use http::header::{CONNECTION, EXPECT};
use http::{HeaderValue, Request};
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::time::timeout;

/// Longer remainders are not read.
const MAX_DISCARDED_BYTES: u64 = 256 * 1024;
/// For what is left of a body, and from one piece of it to the next: a client that waits for the answer has it then.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);
const IDLE_TIMEOUT: Duration = Duration::from_millis(250);

/// A body that says when it was read, and is given back when it is dropped.
pub(crate) struct Watched {
    body: Option<Incoming>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    was_read: AtomicBool,
    rest: Mutex<Option<Incoming>>,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let polled = Pin::new(&mut *body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None)) || body.is_end_stream() {
            self.shared.was_read.store(true, Ordering::Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        *self.shared.rest.lock().unwrap_or_else(PoisonError::into_inner) = self.body.take();
    }
}

/// Whether a body was read.
pub(crate) struct Reading {
    shared: Arc<Shared>,
    /// The client sends its body when it is asked to, which reading does.
    awaits_continue: bool,
}

pub(crate) fn watched(request: Request<Incoming>) -> (Request<Watched>, Reading) {
    let shared = Arc::new(Shared::default());
    shared.was_read.store(request.body().is_end_stream(), Ordering::Relaxed);
    let reading = Reading { shared: Arc::clone(&shared), awaits_continue: request.headers().contains_key(EXPECT) };
    (request.map(|body| Watched { body: Some(body), shared }), reading)
}

impl Reading {
    /// The answer, which ends the connection if there is more of the request.
    pub(crate) async fn answered(&self, mut response: Response) -> Response {
        if !self.shared.was_read.load(Ordering::Relaxed) && !self.discard().await {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// Reads the rest of a body that nobody reads any more; whether that was all of it.
    async fn discard(&self) -> bool {
        let rest = self.shared.rest.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(rest) = rest.filter(|_| !self.awaits_continue) else { return false };
        if rest.size_hint().lower() > MAX_DISCARDED_BYTES {
            return false;
        }
        timeout(DISCARD_TIMEOUT, discard(rest)).await.unwrap_or(false)
    }
}

async fn discard(mut rest: Incoming) -> bool {
    let mut bytes = 0;
    loop {
        let frame = match timeout(IDLE_TIMEOUT, rest.frame()).await {
            Ok(None) => return true,
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(_))) | Err(_) => return false,
        };
        bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
        if bytes > MAX_DISCARDED_BYTES {
            return false;
        }
    }
}
