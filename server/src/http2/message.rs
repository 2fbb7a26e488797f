//! Limits on requests before they reach a service: gRPC, with bounded messages and bounded memory. Checked on the wire format,
//! before anything is decoded.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Body, Buf, Frame, SizeHint};
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, Request, Response, StatusCode};
use telexec_executor::ExecutorError;
use telexec_proto::convert::error_to_status;
use tonic::Status;

use crate::call::Rpc;
use crate::http2::fields::Fields;
use crate::metrics::{Metrics, Refusal};
use crate::request_memory::{Account, Reservation};

/// The longest message that a caller may send. tonic has the same limit, but answers OUT_OF_RANGE.
const MAX_MESSAGE_BYTES: u32 = 4 * 1024 * 1024;

/// The approximate cost of a decoded field beside its bytes: an entry of a map, validated and evaluated.
const FIELD_BYTES: usize = 256;

/// Methods whose first field is a nested request, whose fields count.
const NESTED: [&str; 2] = [Rpc::Interact.path(), Rpc::CheckCommand.path()];

/// Methods with streams of requests. For others all messages count together, and one is expected.
const STREAMS: [&str; 7] = [
    Rpc::Interact.path(),
    Rpc::Connect.path(),
    Rpc::WriteFile.path(),
    Rpc::Transfer.path(),
    Rpc::ServeSftp.path(),
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// The request with limited messages, and its memory reservation, also among its extensions. `None`: it is not gRPC.
pub(crate) fn admit<B>(
    mut request: Request<B>,
    account: &Account,
    metrics: Metrics,
) -> Option<(Request<Limited<B>>, Arc<Reservation>)> {
    if !is_grpc(request.headers()) {
        return None;
    }
    let reservation = Arc::new(account.reservation());
    request.extensions_mut().insert(Arc::clone(&reservation));
    let path = request.uri().path();
    let framing = Framing::new(NESTED.contains(&path), STREAMS.contains(&path));
    let max_fields = account.limits().fields;
    let limited = |reservation| move |body| Limited { body, framing, reservation, max_fields, metrics };
    Some((request.map(limited(Arc::clone(&reservation))), reservation))
}

/// The response to what is not gRPC.
pub(crate) fn unsupported() -> Response<tonic::body::Body> {
    let mut response = Response::new(tonic::body::Body::empty());
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    response
}

/// `application/grpc`, optionally with a format (`+proto`) or parameters (`;`).
fn is_grpc(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map_or(&[][..], |value| value.as_bytes());
    let name = b"application/grpc";
    let (begin, rest) = value.split_at_checked(name.len()).unwrap_or_default();
    begin.eq_ignore_ascii_case(name) && matches!(rest.first(), None | Some(b'+' | b';'))
}

/// A request's body. Fails with RESOURCE_EXHAUSTED at the beginning of a message that is too long or exceeds the memory limits,
/// and within one that has too many fields.
pub(crate) struct Limited<B> {
    body: B,
    framing: Framing,
    /// For the messages read since the last complete one; those before are released when more is read.
    reservation: Arc<Reservation>,
    max_fields: usize,
    metrics: Metrics,
}

impl<B: Body> Limited<B> {
    /// # Errors
    /// The body does not end where its caller ended it: hyper has a stream that was cancelled end as if it was complete.
    fn end(&mut self) -> Result<(), Status> {
        match self.body.is_end_stream() || self.framing.failed {
            true => self.framing.end(),
            false => {
                self.framing.failed = true;
                Err(Status::unknown("the call was cancelled"))
            }
        }
    }
}

impl<B> Limited<B> {
    /// # Errors
    /// The status for the caller.
    fn read(&mut self, data: &[u8]) -> Result<(), Status> {
        let (framing, reservation, max_fields) = (&mut self.framing, &self.reservation, self.max_fields);
        framing.read(data, |weight| {
            if weight.length > MAX_MESSAGE_BYTES {
                let length = weight.length;
                let text = format!("the message has {length} bytes; a request may have {MAX_MESSAGE_BYTES}");
                return Err(Status::resource_exhausted(text));
            }
            if weight.fields > max_fields {
                let text = format!(
                    "the request has more than {max_fields} arguments, variables, labels and other fields: max_request_fields"
                );
                return Err(Status::resource_exhausted(text));
            }
            reservation.set(weight.bytes).map_err(|excess| error_to_status(&ExecutorError::from(excess)))
        })
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
        let read = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(Ok(()), |data| self.read(data.chunk())),
            Some(Err(_)) => Ok(()),
            None => self.end(),
        };
        if let Err(status) = read {
            self.metrics.refused(Refusal::Requests);
            return Poll::Ready(Some(Err(status.into())));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(|error| cut_off(error.into()).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The error of a request that its caller did not end. Not CANCELLED, which tonic takes for its end, as if it was complete;
/// with some of its features it makes that of a stream that was reset.
fn cut_off(cause: Box<dyn std::error::Error + Send + Sync>) -> Status {
    let mut status = Status::unknown("the call was cancelled, or its connection was lost");
    status.set_source(Arc::from(cause));
    status
}

/// The cost of the messages of a body.
struct Weight {
    /// Bytes of all messages that have arrived or begun to, with the cost of their fields.
    bytes: usize,
    /// Fields of the current message.
    fields: usize,
    /// The length of the current message.
    length: u32,
}

/// Parses gRPC framing: each message has a flag, four bytes of length, and that many bytes.
struct Framing {
    header: u64,
    header_bytes: u8,
    /// Bytes still missing of the current message.
    missing: usize,
    /// The length of the current message.
    length: usize,
    fields: Fields,
    nested: bool,
    /// A stream of messages, each released when the next one is read.
    streams: bool,
    /// The cost of earlier messages that are not released yet.
    before: usize,
    /// The number of messages begun.
    messages: u64,
    failed: bool,
}

impl Framing {
    fn new(nested: bool, streams: bool) -> Self {
        let fields = Fields::new(nested);
        let (missing, length, before) = (0, 0, 0);
        Self {
            header: 0,
            header_bytes: 0,
            missing,
            length,
            fields,
            nested,
            streams,
            before,
            messages: 0,
            failed: false,
        }
    }

    /// Called at the end of the body.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, once: the body ends too early.
    fn end(&mut self) -> Result<(), Status> {
        if std::mem::replace(&mut self.failed, true) {
            return Ok(());
        }
        match (self.missing, self.header_bytes, self.messages) {
            (0, 0, 0) if !self.streams => Err(Status::invalid_argument("the request has no message")),
            (0, 0, _) => Ok(()),
            _ => Err(Status::invalid_argument("the request ends within a message")),
        }
    }

    /// Calls `admit` at the beginning of each message, and whenever more of its fields have been counted.
    ///
    /// # Errors
    /// Those of `admit`.
    fn read(&mut self, mut data: &[u8], mut admit: impl FnMut(Weight) -> Result<(), Status>) -> Result<(), Status> {
        const HEADER_BYTES: u8 = 5;
        // complete messages of one piece are kept until the next piece is read
        if self.streams {
            self.before = 0;
            if self.missing == 0 {
                (self.length, self.fields) = (0, Fields::new(self.nested));
            }
        }
        loop {
            let (message, rest) = data.split_at(self.missing.min(data.len()));
            if !message.is_empty() {
                self.missing -= message.len();
                self.fields.read(message);
                self.admit(&mut admit)?;
            }
            let Some((byte, rest)) = rest.split_first() else { return Ok(()) };
            (self.header, self.header_bytes, data) = (self.header << 8 | u64::from(*byte), self.header_bytes + 1, rest);
            if self.header_bytes == HEADER_BYTES {
                self.before = self.weight().bytes;
                self.messages += 1;
                let length = self.header as u32 as usize; // without the flag
                (self.header_bytes, self.length, self.missing) = (0, length, length);
                self.fields = Fields::new(self.nested);
                self.admit(&mut admit)?;
            }
        }
    }

    fn admit(&mut self, admit: &mut impl FnMut(Weight) -> Result<(), Status>) -> Result<(), Status> {
        admit(self.weight()).inspect_err(|_| self.failed = true)
    }

    fn weight(&self) -> Weight {
        let fields = self.fields.count();
        let bytes = self.before.saturating_add(self.length).saturating_add(fields.saturating_mul(FIELD_BYTES));
        Weight { bytes, fields, length: u32::try_from(self.length).unwrap_or(u32::MAX) }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn message(length: u32) -> Vec<u8> {
        [&[0][..], &length.to_be_bytes(), &vec![255; length as usize]].concat()
    }

    fn read(framing: &mut Framing, data: &[u8]) -> Result<usize, u32> {
        let (mut bytes, mut long) = (0, None);
        let read = framing.read(data, |weight| {
            bytes = weight.bytes;
            long = Some(weight.length).filter(|length| *length > MAX_MESSAGE_BYTES);
            if long.is_some() { Err(Status::unknown("")) } else { Ok(()) }
        });
        read.map(|()| bytes).map_err(|_| long.unwrap())
    }

    #[test]
    fn a_long_message_is_found_wherever_it_begins_and_however_it_is_cut() {
        let short = [message(0), message(3), message(300), message(0)].concat();
        let long = [1, 0, 0x40, 0, 1];
        for size in 1..short.len() + long.len() {
            let mut framing = Framing::new(false, true);
            assert!(short.chunks(size).all(|chunk| read(&mut framing, chunk).is_ok()));
            let last = long.chunks(size).map(|chunk| read(&mut framing, chunk)).last();
            assert_eq!(last, Some(Err(MAX_MESSAGE_BYTES + 1)));
        }
        assert!(read(&mut Framing::new(false, true), &message(MAX_MESSAGE_BYTES)).is_ok());
    }

    #[test]
    fn a_message_counts_whole_from_its_beginning_and_others_until_more_is_read() {
        let mut framing = Framing::new(false, true);
        assert_eq!(read(&mut framing, &message(100)[..50]), Ok(100));
        assert_eq!(read(&mut framing, &[&message(100)[50..], &message(7), &message(20)[..6]].concat()), Ok(127));
        // the first two were released before this was read
        assert_eq!(read(&mut framing, &message(20)[6..10]), Ok(20));
        assert_eq!(read(&mut framing, &[&message(20)[10..], &message(9)].concat()), Ok(29));
        assert_eq!(read(&mut framing, &message(9)), Ok(9));
    }

    #[test]
    fn messages_of_what_is_no_stream_count_together() {
        let mut framing = Framing::new(false, false);
        assert_eq!(read(&mut framing, &message(100)), Ok(100));
        // an empty one after it takes nothing back
        assert_eq!(read(&mut framing, &message(0)), Ok(100));
        assert_eq!(read(&mut framing, &message(7)[..6]), Ok(107));
    }

    #[test]
    fn a_request_is_a_whole_message() {
        let end = |streams, data: &[u8]| {
            let mut framing = Framing::new(false, streams);
            read(&mut framing, data).unwrap();
            let ended = framing.end().map_err(|status| status.code());
            assert!(framing.end().is_ok(), "said once");
            ended
        };
        for streams in [false, true] {
            assert_eq!(end(streams, &message(3)), Ok(()));
            assert_eq!(end(streams, &message(3)[..4]), Err(Code::InvalidArgument));
            assert_eq!(end(streams, &message(3)[..7]), Err(Code::InvalidArgument));
        }
        assert_eq!((end(false, &[]), end(true, &[])), (Err(Code::InvalidArgument), Ok(())));
    }

    #[test]
    fn fields_count() {
        let fields = [10, 1, b'a'].repeat(100);
        let whole = [&[0, 0, 0, 1, 44][..], &fields].concat();
        for size in [1, 7, 1000] {
            let mut framing = Framing::new(false, true);
            let last = whole.chunks(size).map(|chunk| read(&mut framing, chunk)).last();
            assert_eq!(last, Some(Ok(300 + 100 * FIELD_BYTES)), "{size}");
        }
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
