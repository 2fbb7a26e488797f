//! Requests that were not sent because their connection accepts no more, as an agent asks for (GOAWAY of RFC 9113, section 6.8): they are
//! made again on another one.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::request::Parts;
use tonic::codegen::http::{Extensions, Request};

use crate::error::find;

/// A request that is kept until some of it has been sent.
pub(crate) struct KeptRequest {
    parts: Parts,
    body: KeptBody,
}

#[derive(Clone)]
struct KeptBody(Arc<Mutex<State>>);

struct State {
    body: Body,
    /// Some of it may have been sent.
    is_taken: bool,
}

impl KeptRequest {
    pub(crate) fn new(request: Request<Body>) -> Self {
        let (mut parts, body) = request.into_parts();
        // of the layers above, which have seen them
        parts.extensions = Extensions::new();
        // an empty one is sent with the headers
        let is_taken = body.is_end_stream();
        Self { parts, body: KeptBody(Arc::new(Mutex::new(State { body, is_taken }))) }
    }

    /// The request, to be sent.
    pub(crate) fn request(&self) -> Request<Body> {
        Request::from_parts(self.parts.clone(), Body::new(self.body.clone()))
    }

    /// Whether nothing of it was sent, going by the error of a call with it.
    pub(crate) fn is_unsent(&self, error: &(dyn std::error::Error + 'static)) -> bool {
        // it was still waiting for the connection, or no stream could be opened for it
        let is_refused = find::<hyper::Error>(error).is_some_and(hyper::Error::is_canceled)
            || find::<h2::Error>(error).is_some_and(|error| error.is_go_away() && error.is_remote());
        is_refused && !self.body.with(|state| state.is_taken)
    }
}

impl KeptBody {
    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl HttpBody for KeptBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.with(|state| {
            state.is_taken = true;
            Pin::new(&mut state.body).poll_frame(cx)
        })
    }

    fn is_end_stream(&self) -> bool {
        self.with(|state| state.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.with(|state| state.body.size_hint())
    }
}
