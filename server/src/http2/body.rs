//! Response bodies. The events of an execution are sent without copying its output.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::buf::Chain;
use bytes::{Buf, Bytes, BytesMut};
use futures_util::{Stream, stream};
use hyper::body::{Frame, SizeHint};
use hyper::{HeaderMap, Response};
use telexec_proto::frame;
use telexec_proto::v1::ExecutionEvent;
use tonic::Status;

use crate::call::events::EventStream;

/// Short messages that are ready at the same time are sent together, up to about this size.
const BATCH_BYTES: usize = 32 * 1024;

/// Copied bytes, followed by output that is not copied.
type Piece = Chain<Bytes, Bytes>;

/// The stream that tonic sees instead of the events: an error, in case these are not taken out. See [`carrying`].
pub(crate) type EventPlaceholder = stream::Iter<std::array::IntoIter<Result<ExecutionEvent, Status>, 1>>;

/// Carries the events past tonic, whose encoder copies every byte.
#[derive(Clone)]
struct Events(Arc<Mutex<Option<EventStream>>>);

/// A response with these events among its extensions; [`of`] sends them.
pub(crate) fn carrying(events: EventStream) -> tonic::Response<EventPlaceholder> {
    let left = Status::internal("the events were left in the answer");
    let mut response = tonic::Response::new(stream::iter([Err(left)]));
    response.extensions_mut().insert(Events(Arc::new(Mutex::new(Some(events)))));
    response
}

/// The response as it is sent.
pub(crate) fn of(mut response: Response<tonic::body::Body>) -> Response<Body> {
    let events = response.extensions_mut().remove::<Events>();
    let events = events.and_then(|events| events.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    response.map(|body| match events {
        Some(events) => Body::Events { events, head: BytesMut::new(), status: None, ended: false },
        None => Body::Whole(body),
    })
}

/// The body of a response. Dropping it, when the call is cancelled or its connection is lost, drops the execution.
pub(crate) enum Body {
    /// Encoded by tonic.
    Whole(tonic::body::Body),
    Events {
        events: EventStream,
        /// Encoded messages that were not sent yet.
        head: BytesMut,
        /// The final status, once known.
        status: Option<Status>,
        ended: bool,
    },
}

impl hyper::body::Body for Body {
    type Data = Piece;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, Status>>> {
        match self.get_mut() {
            Self::Whole(body) => {
                let frame = ready!(Pin::new(body).poll_frame(cx));
                Poll::Ready(frame.map(|frame| Ok(frame?.map_data(|data| data.chain(Bytes::new())))))
            }
            Self::Events { ended: true, .. } => Poll::Ready(None),
            Self::Events { events, head, status, ended } => {
                if status.is_none() {
                    let data = ready!(poll_messages(events, head, status, cx));
                    if head.has_remaining() {
                        return Poll::Ready(Some(Ok(Frame::data(head.split().freeze().chain(data)))));
                    }
                }
                *ended = true;
                let status = status.take().unwrap_or_else(|| Status::ok(""));
                let mut trailers = HeaderMap::new();
                Poll::Ready(Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Events { ended, .. } => *ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Events { .. } => SizeHint::default(),
        }
    }
}

/// Gathers the messages that are ready; returns output that follows them uncopied. After a status there are no more.
fn poll_messages(
    events: &mut EventStream,
    head: &mut BytesMut,
    status: &mut Option<Status>,
    cx: &mut Context<'_>,
) -> Poll<Bytes> {
    while head.len() < BATCH_BYTES {
        match Pin::new(&mut *events).poll_next(cx) {
            Poll::Ready(Some(Ok(event))) => {
                let data = frame::encode(event, head);
                if !data.is_empty() {
                    return Poll::Ready(data);
                }
            }
            Poll::Ready(Some(Err(error))) => {
                *status = Some(error);
                break;
            }
            Poll::Ready(None) => {
                *status = Some(Status::ok(""));
                break;
            }
            Poll::Pending if head.is_empty() => return Poll::Pending,
            Poll::Pending => break,
        }
    }
    Poll::Ready(Bytes::new())
}
