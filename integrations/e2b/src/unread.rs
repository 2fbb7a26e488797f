//! Requests that are answered before all of their body was read: hyper closes their connections, and clients must be told, or the
//! next request on one fails.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::response::Response;
use http::header::CONNECTION;
use http::{HeaderValue, Request};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};

/// A body that says when it was read.
pub(crate) struct Watched {
    body: Incoming,
    was_read: Arc<AtomicBool>,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None)) || self.body.is_end_stream() {
            self.was_read.store(true, Ordering::Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Whether a body was read.
pub(crate) struct Reading(Arc<AtomicBool>);

pub(crate) fn watched(request: Request<Incoming>) -> (Request<Watched>, Reading) {
    let was_read = Arc::new(AtomicBool::new(request.body().is_end_stream()));
    let reading = Reading(Arc::clone(&was_read));
    (request.map(|body| Watched { body, was_read }), reading)
}

impl Reading {
    /// The answer, which ends the connection if there is more of the request.
    pub(crate) fn answered(&self, mut response: Response) -> Response {
        if !self.0.load(Ordering::Relaxed) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
