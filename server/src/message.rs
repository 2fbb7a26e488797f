//! What a request must be before it reaches a service: gRPC, in messages that are not too long.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use hyper::body::{Body, Buf, Frame, SizeHint};
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, Request, Response, StatusCode};
use tonic::Status;

/// The longest message that a caller may send, as tonic's own limit is; but tonic says OUT_OF_RANGE.
const MAX_MESSAGE_BYTES: u32 = 4 * 1024 * 1024;

/// The most that a connection's messages may have together before they are whole: each is kept until then.
const MAX_UNFINISHED_BYTES: usize = 32 * 1024 * 1024;

/// How many bytes of a connection's messages are there that are not whole; its clones count together.
#[derive(Clone, Default)]
pub(crate) struct Unfinished(Arc<AtomicUsize>);

/// The same request with its messages limited; `None`: it is not gRPC.
pub(crate) fn admit<B>(request: Request<B>, unfinished: Unfinished) -> Option<Request<Limited<B>>> {
    let limited = |body| Limited { body, framing: Framing::default(), held: 0, unfinished };
    is_grpc(request.headers()).then(|| request.map(limited))
}

/// The answer to what is not gRPC.
pub(crate) fn unsupported() -> Response<tonic::body::Body> {
    let mut response = Response::new(tonic::body::Body::empty());
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    response
}

/// `application/grpc`, perhaps with a format (`+proto`) or parameters (`;`).
fn is_grpc(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map_or(&[][..], |value| value.as_bytes());
    let name = b"application/grpc";
    let (begin, rest) = value.split_at_checked(name.len()).unwrap_or_default();
    begin.eq_ignore_ascii_case(name) && matches!(rest.first(), None | Some(b'+' | b';'))
}

/// A request's body, which fails with RESOURCE_EXHAUSTED at the beginning of a message that is too long, and where too much
/// of others of its connection is there already.
pub(crate) struct Limited<B> {
    body: B,
    framing: Framing,
    /// What it has a part in `unfinished`.
    held: usize,
    unfinished: Unfinished,
}

impl<B> Limited<B> {
    /// # Errors
    /// What the caller is told.
    fn read(&mut self, data: &[u8]) -> Result<(), Status> {
        self.framing.read(data).map_err(|length| {
            let text = format!("the message has {length} bytes; a request may have {MAX_MESSAGE_BYTES}");
            Status::resource_exhausted(text)
        })?;
        let all = self.hold(self.framing.unfinished());
        if all > MAX_UNFINISHED_BYTES {
            let text = format!("{all} bytes of this connection's requests are there without their ends");
            return Err(Status::resource_exhausted(text));
        }
        Ok(())
    }

    /// How much all hold once this holds so much.
    fn hold(&mut self, held: usize) -> usize {
        let all = &self.unfinished.0;
        let before = match held.checked_sub(self.held) {
            Some(more) => all.fetch_add(more, Ordering::Relaxed).saturating_add(more),
            None => all.fetch_sub(self.held - held, Ordering::Relaxed),
        };
        self.held = held;
        before
    }
}

impl<B> Drop for Limited<B> {
    fn drop(&mut self) {
        self.hold(0);
    }
}

impl<B> Body for Limited<B>
where
    B: Body<Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    type Data = B::Data;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref())
            && let Err(status) = self.read(data.chunk())
        {
            return Poll::Ready(Some(Err(status.into())));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Where in its messages a body is: each has a flag, four bytes of length, and so many bytes.
#[derive(Default)]
struct Framing {
    header: u64,
    header_bytes: u8,
    /// Of the message that is being read.
    length: usize,
    /// What is missing of it.
    message_bytes: usize,
}

impl Framing {
    /// How much is there of a message that is not whole.
    fn unfinished(&self) -> usize {
        if self.message_bytes == 0 { 0 } else { self.length - self.message_bytes }
    }

    /// # Errors
    /// The length of a message that is too long.
    fn read(&mut self, mut data: &[u8]) -> Result<(), u32> {
        const HEADER_BYTES: u8 = 5;
        loop {
            let skipped = self.message_bytes.min(data.len());
            self.message_bytes -= skipped;
            let Some((byte, rest)) = data.split_at_checked(skipped).and_then(|(_, rest)| rest.split_first()) else {
                return Ok(());
            };
            (self.header, self.header_bytes, data) = (self.header << 8 | u64::from(*byte), self.header_bytes + 1, rest);
            if self.header_bytes == HEADER_BYTES {
                let length = self.header as u32; // without the flag
                if length > MAX_MESSAGE_BYTES {
                    return Err(length);
                }
                (self.header_bytes, self.length, self.message_bytes) = (0, length as usize, length as usize);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(length: u32) -> Vec<u8> {
        [&[0][..], &length.to_be_bytes(), &vec![255; length as usize]].concat()
    }

    #[test]
    fn a_long_message_is_found_wherever_it_begins_and_however_it_is_cut() {
        let short = [message(0), message(3), message(300), message(0)].concat();
        let long = [1, 0, 0x40, 0, 1];
        for size in 1..short.len() + long.len() {
            let mut framing = Framing::default();
            assert!(short.chunks(size).all(|chunk| framing.read(chunk).is_ok()));
            let last = long.chunks(size).map(|chunk| framing.read(chunk)).last();
            assert_eq!(last, Some(Err(MAX_MESSAGE_BYTES + 1)));
        }
        assert_eq!(Framing::default().read(&message(MAX_MESSAGE_BYTES)), Ok(()));
    }

    #[test]
    fn what_is_not_whole_is_counted_until_it_is_or_is_given_up() {
        let unfinished = Unfinished::default();
        let counted = || unfinished.0.load(Ordering::Relaxed);
        let body = || {
            let request = Request::builder().header(CONTENT_TYPE, "application/grpc").body(()).unwrap();
            admit(request, unfinished.clone()).unwrap().into_body()
        };
        let (mut one, mut other) = (body(), body());
        one.read(&message(100)[..50]).unwrap();
        other.read(&message(7)).unwrap();
        assert_eq!(counted(), 45);
        one.read(&message(100)[50..]).unwrap();
        assert_eq!(counted(), 0);
        let part = &message(MAX_MESSAGE_BYTES)[..4_000_005];
        let mut bodies: Vec<_> = (0..8).map(|_| body()).collect();
        bodies.iter_mut().for_each(|body| body.read(part).unwrap());
        assert_eq!(counted(), 32_000_000);
        assert_eq!(one.read(part).unwrap_err().code(), tonic::Code::ResourceExhausted);
        drop((one, bodies));
        assert_eq!(counted(), 0);
    }

    #[test]
    fn grpc_is_known_by_its_content_type() {
        for (value, is) in [
            ("application/grpc", true),
            ("Application/gRPC", true),
            ("application/grpc+proto", true),
            ("application/grpc;v=1", true),
            ("application/grpc-web", false),
            ("application/grp", false),
            ("text/html", false),
            ("", false),
        ] {
            let headers = [(CONTENT_TYPE, value.parse().unwrap())].into_iter().collect();
            assert_eq!(is_grpc(&headers), is, "{value}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }
}
