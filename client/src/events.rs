//! The events of an execution, from the body of their response: tonic would copy all output once more.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use hyper::body::Body as _;
use telexec_proto::frame_decoder::FrameDecoder;
use telexec_proto::v1::ExecutionEvent;
use tonic::body::Body;
use tonic::codegen::http::header::HeaderMap;
use tonic::codegen::http::{Response, StatusCode};
use tonic::{Code, Status, Streaming};

/// The methods whose responses are events.
const PATHS: [&str; 2] = ["/telexec.v1.ExecutionService/Execute", "/telexec.v1.ExecutionService/Attach"];

/// The body of a response, which passes tonic among the extensions.
#[derive(Clone)]
struct Carried(Arc<Mutex<Option<Body>>>);

/// Whether the responses of this method are events.
pub(crate) fn are_sent_by(path: &str) -> bool {
    PATHS.contains(&path)
}

/// Carries the body past tonic; [`Events::of`] takes it out.
pub(crate) fn carrying(response: Response<Body>) -> Response<Body> {
    // of the others, tonic makes a status
    if response.status() != StatusCode::OK {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    parts.extensions.insert(Carried(Arc::new(Mutex::new(Some(body)))));
    Response::from_parts(parts, Body::empty())
}

/// The events of an execution. Dropping this resets the HTTP/2 stream.
pub(crate) enum Events {
    Carried {
        body: Body,
        decoder: FrameDecoder,
    },
    /// There is only a status.
    Failed(Streaming<ExecutionEvent>),
}

impl Events {
    pub(crate) fn of(mut response: tonic::Response<Streaming<ExecutionEvent>>) -> Self {
        let carried = response.extensions_mut().remove::<Carried>();
        match carried.and_then(|carried| carried.0.lock().unwrap_or_else(PoisonError::into_inner).take()) {
            Some(body) => Self::Carried { body, decoder: FrameDecoder::default() },
            None => Self::Failed(response.into_inner()),
        }
    }

    /// The next event; `None`: there are no more.
    ///
    /// # Errors
    /// The status that ended the stream, or what is wrong with it.
    pub(crate) async fn next(&mut self) -> Result<Option<ExecutionEvent>, Status> {
        let (body, decoder) = match self {
            Self::Carried { body, decoder } => (body, decoder),
            Self::Failed(stream) => return stream.message().await,
        };
        loop {
            if let Some(event) = decoder.message()? {
                return Ok(Some(event));
            }
            let Some(frame) = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await.transpose()? else {
                return Ok(None);
            };
            match frame.into_data() {
                Ok(data) => decoder.add(data),
                Err(frame) => return end(decoder, frame.into_trailers().ok().as_ref()),
            }
        }
    }
}

/// What the trailers say.
fn end(decoder: &FrameDecoder, trailers: Option<&HeaderMap>) -> Result<Option<ExecutionEvent>, Status> {
    match trailers.and_then(Status::from_header_map) {
        Some(status) if status.code() != Code::Ok => Err(status),
        Some(_) if decoder.is_within_message() => Err(Status::internal("the response ends within a message")),
        _ => Ok(None),
    }
}
