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
                // without trailers the connection was lost
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::{Bytes, BytesMut};
    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use telexec_proto::frame::encode;
    use telexec_proto::v1::execution_event::Event;

    use super::*;

    /// What is made of an event, cut at `length` if that is given, and these trailers.
    async fn received(length: Option<usize>, status: Option<&'static str>) -> Result<bool, Code> {
        let event = ExecutionEvent { event: Some(Event::Stdout(Bytes::from_static(b"out"))), position: 0 };
        let mut data = BytesMut::new();
        assert!(encode(event, &mut data).is_empty());
        data.truncate(length.unwrap_or(usize::MAX));
        let trailers =
            status.map(|status| HeaderMap::from_iter([("grpc-status".parse().unwrap(), status.parse().unwrap())]));
        let frames = [Some(Frame::data(data.freeze())), trailers.map(Frame::trailers)].into_iter().flatten();
        let body = Body::new(StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>))));
        let mut events = Events::Carried { body, decoder: FrameDecoder::default() };
        if length.is_none() {
            assert!(events.next().await.unwrap().is_some());
        }
        events.next().await.map(|event| event.is_some()).map_err(|status| status.code())
    }

    #[tokio::test]
    async fn the_end_is_what_the_trailers_say() {
        assert_eq!(received(None, Some("0")).await, Ok(false));
        assert_eq!(received(None, Some("4")).await, Err(Code::DeadlineExceeded));
        assert_eq!(received(Some(7), Some("0")).await, Err(Code::Internal));
        // a connection that was lost
        assert_eq!(received(None, None).await, Ok(false));
        assert_eq!(received(Some(7), None).await, Ok(false));
    }
}
