//! The Connect protocol, with JSON: unary calls, and streams of messages in envelopes of a flag and a length.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::response::{IntoResponse, Response};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::{Stream, StreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::failure::{Code, Failure, answer};
use crate::room::{Held, Room};

/// Of one message. Input of a command is Base64 in it.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// For a whole request, or message of a stream.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
const HEAD_BYTES: usize = 5;
/// Of a long answer, at once.
const PIECE_BYTES: usize = 64 * 1024;
const END_OF_STREAM: u8 = 2;
const STREAM_TYPE: &str = "application/connect+json";

/// The request of a call, for as long as it is acted on.
pub(crate) struct Message {
    text: Bytes,
    _held: Held,
}

impl Message {
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    pub(crate) fn parse<Q: DeserializeOwned>(&self) -> Result<Q, Failure> {
        parse(&self.text)
    }
}

/// The request of a unary call.
pub(crate) async fn request(headers: &HeaderMap, body: Body, room: &Room) -> Result<Message, Failure> {
    expect_type(headers, "application/json")?;
    whole(body, MAX_MESSAGE_BYTES, room).await
}

/// The one request of a call that is answered by a stream.
pub(crate) async fn stream_request(headers: &HeaderMap, body: Body, room: &Room) -> Result<Message, Failure> {
    let mut envelopes = requests(headers, body, room)?;
    let message = async {
        let text = envelopes.next().await?.ok_or_else(|| Failure::invalid("the body has no message"))?;
        match envelopes.next().await? {
            None => Ok(text),
            Some(_) => Err(Failure::invalid("the body has more than one message")),
        }
    };
    let text = timeout(READ_TIMEOUT, message).await.map_err(|_| too_slow())??;
    let mut held = room.hold();
    held.resize(text.len())?;
    Ok(Message { text, _held: held })
}

/// The requests of a call that has many.
pub(crate) fn requests(headers: &HeaderMap, body: Body, room: &Room) -> Result<Envelopes, Failure> {
    expect_type(headers, STREAM_TYPE)?;
    Ok(Envelopes { arriving: Arriving::new(body, room) })
}

fn media_type(headers: &HeaderMap) -> Option<&str> {
    headers.get(CONTENT_TYPE)?.to_str().ok()?.split(';').next().map(str::trim)
}

fn expect_type(headers: &HeaderMap, expected: &str) -> Result<(), Failure> {
    match media_type(headers) {
        Some(found) if found.eq_ignore_ascii_case(expected) => Ok(()),
        found => Err(Failure::invalid(format!("the content type {found:?} is not the expected {expected:?}"))),
    }
}

/// A body as a whole.
pub(crate) async fn whole(body: Body, limit: usize, room: &Room) -> Result<Message, Failure> {
    let mut arriving = Arriving::new(body, room);
    let all = async {
        while arriving.more().await? {
            if arriving.read.len() > limit {
                return Err(Failure::new(Code::TooLarge, format!("the body is longer than {limit} bytes")));
            }
        }
        Ok(())
    };
    timeout(READ_TIMEOUT, all).await.map_err(|_| too_slow())??;
    Ok(Message { text: arriving.read.freeze(), _held: arriving.held })
}

fn too_slow() -> Failure {
    Failure::new(Code::DeadlineExceeded, format!("the body did not arrive within {} s", READ_TIMEOUT.as_secs()))
}

/// A message, or which of its fields is wrong.
pub(crate) fn parse<Q: DeserializeOwned>(text: &[u8]) -> Result<Q, Failure> {
    let mut parser = serde_json::Deserializer::from_slice(text);
    let message = serde_path_to_error::deserialize(&mut parser).map_err(|error| {
        let path = error.path().to_string();
        match path.as_str() {
            // "?": it broke off where no field was named yet
            "." | "?" => Failure::invalid(format!("the message is not the expected JSON: {}", error.inner())),
            field => Failure::invalid(format!("{field}: {}", error.inner())),
        }
    })?;
    parser.end().map_err(|error| Failure::invalid(format!("the message is not the expected JSON: {error}")))?;
    Ok(message)
}

/// A body, and what of it is in memory.
struct Arriving {
    body: BodyDataStream,
    read: BytesMut,
    held: Held,
}

impl Arriving {
    fn new(body: Body, room: &Room) -> Self {
        Self { body: body.into_data_stream(), read: BytesMut::new(), held: room.hold() }
    }

    /// One more piece; `false`: it is at its end.
    async fn more(&mut self) -> Result<bool, Failure> {
        let Some(data) = self.body.next().await else { return Ok(false) };
        let data = data.map_err(|error| Failure::invalid(format!("the body ended early: {error}")))?;
        self.held.resize(self.read.len() + data.len())?;
        self.read.extend_from_slice(&data);
        Ok(true)
    }
}

/// Messages of a body.
pub(crate) struct Envelopes {
    arriving: Arriving,
}

impl Envelopes {
    /// When the one before was acted on. `None`: there are no more.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        self.arriving.held.resize(self.arriving.read.len())?;
        // how long a client waits before it begins one is its own matter
        while self.arriving.read.is_empty() {
            if !self.arriving.more().await? {
                return Ok(None);
            }
        }
        timeout(READ_TIMEOUT, self.begun()).await.map_err(|_| too_slow())?.map(Some)
    }

    async fn begun(&mut self) -> Result<Bytes, Failure> {
        loop {
            let read = &mut self.arriving.read;
            if let Some(message) = take_message(read)? {
                if message.len() >= read.len() {
                    // a copy, since they share their memory
                    *read = BytesMut::from(&read[..]);
                }
                return Ok(message);
            }
            if !self.arriving.more().await? {
                return Err(Failure::invalid("the body ends in the middle of a message"));
            }
        }
    }
}

/// The first message, once all of it is there.
fn take_message(read: &mut BytesMut) -> Result<Option<Bytes>, Failure> {
    let Some(&[flags, a, b, c, d]) = read.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    match flags {
        0 => {}
        1 => return Err(Failure::new(Code::Unimplemented, "compressed messages are not supported")),
        _ => return Err(Failure::invalid(format!("an envelope has the flags {flags}, which a request has not"))),
    }
    if length > MAX_MESSAGE_BYTES {
        let message = format!("a message of {length} bytes is longer than {MAX_MESSAGE_BYTES}");
        return Err(Failure::new(Code::TooLarge, message));
    }
    if read.len() < HEAD_BYTES + length {
        return Ok(None);
    }
    read.advance(HEAD_BYTES);
    Ok(Some(read.split_to(length).freeze()))
}

fn envelope(flags: u8, message: &Value) -> Bytes {
    let mut frame = BytesMut::with_capacity(256);
    frame.put_u8(flags);
    frame.put_u32(0);
    let mut frame = frame.writer();
    // into memory, of what is JSON already
    let _ = serde_json::to_writer(&mut frame, message);
    let mut frame = frame.into_inner();
    let length = u32::try_from(frame.len() - HEAD_BYTES).unwrap_or(u32::MAX);
    if let Some(head) = frame.get_mut(1..HEAD_BYTES) {
        head.copy_from_slice(&length.to_be_bytes());
    }
    frame.freeze()
}

/// The answer to a unary call.
pub(crate) fn reply(result: Result<Value, Failure>) -> Response {
    match result {
        Ok(value) => answer(StatusCode::OK, &value),
        Err(failure) => failure.connect_response(),
    }
}

/// The same, where it may be long: it takes its room until the client has read it.
pub(crate) fn reply_held(result: Result<(Value, Held), Failure>) -> Response {
    let (text, held) = match result {
        Ok((value, held)) => (Bytes::from(value.to_string()), held),
        Err(failure) => return failure.connect_response(),
    };
    let pieces = (0..text.len()).step_by(PIECE_BYTES).map(move |start| {
        let _held = &held;
        Ok::<_, Infallible>(text.slice(start..text.len().min(start + PIECE_BYTES)))
    });
    let body = Body::from_stream(stream::iter(pieces));
    (StatusCode::OK, [(CONTENT_TYPE, "application/json")], body).into_response()
}

/// The answer to any call whose type is that of a stream.
pub(crate) fn reply_stream<S>(result: Result<S, Failure>) -> Response
where
    S: Stream<Item = Result<Value, Failure>> + Send + 'static,
{
    let events = match result {
        Ok(events) => events.boxed(),
        Err(failure) if failure.code == Code::BadGateway => return failure.response(),
        Err(failure) => stream::iter([Err(failure)]).boxed(),
    };
    let frames = stream::unfold(Some(events), |events| async {
        let mut events = events?;
        Some(match events.next().await {
            Some(Ok(event)) => (envelope(0, &event), Some(events)),
            Some(Err(failure)) => (envelope(END_OF_STREAM, &json!({"error": failure.to_connect()})), None),
            None => (envelope(END_OF_STREAM, &json!({})), None),
        })
    });
    let body = Body::from_stream(frames.map(Ok::<_, Infallible>));
    (StatusCode::OK, [(CONTENT_TYPE, STREAM_TYPE)], body).into_response()
}

/// How long the caller waits, if it says so.
pub(crate) fn call_timeout(headers: &HeaderMap) -> Result<Option<Duration>, Failure> {
    number(headers, "connect-timeout-ms").map(|time| time.filter(|time| *time > 0).map(Duration::from_millis))
}

/// How often the caller wants to hear of an open stream.
pub(crate) fn keepalive(headers: &HeaderMap) -> Result<Duration, Failure> {
    const DEFAULT: u64 = 90;
    let seconds = number(headers, "keepalive-ping-interval")?.unwrap_or(DEFAULT);
    Ok(Duration::from_secs(seconds.clamp(1, 3600)))
}

fn number(headers: &HeaderMap, name: &str) -> Result<Option<u64>, Failure> {
    const MAX_DIGITS: usize = 10;
    let Some(value) = headers.get(name) else { return Ok(None) };
    let digits =
        value.to_str().ok().filter(|text| text.len() <= MAX_DIGITS && text.bytes().all(|b| b.is_ascii_digit()));
    match digits.and_then(|digits| digits.parse().ok()) {
        Some(number) => Ok(Some(number)),
        None => Err(Failure::invalid(format!("{name}: is not a number of at most {MAX_DIGITS} digits"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelopes_read_back_in_pieces() {
        let frame = envelope(0, &json!({"a": 1}));
        for cut in 0..frame.len() {
            let mut read = BytesMut::from(&frame[..cut]);
            assert_eq!(take_message(&mut read), Ok(None), "{cut}");
            read.extend_from_slice(&frame[cut..]);
            assert_eq!(take_message(&mut read).unwrap().unwrap(), br#"{"a":1}"#.as_slice());
            assert!(read.is_empty());
        }
    }

    #[test]
    fn what_is_no_envelope_is_refused_before_its_content_is_there() {
        for (head, code) in [
            ([2, 0, 0, 0, 0], Code::InvalidArgument),
            ([1, 0, 0, 0, 0], Code::Unimplemented),
            ([b'{', b'"', b'a', b'"', b':'], Code::InvalidArgument),
            ([0, 255, 255, 255, 255], Code::TooLarge),
        ] {
            assert_eq!(take_message(&mut BytesMut::from(&head[..])).unwrap_err().code, code, "{head:?}");
        }
    }

    #[test]
    fn a_wrong_field_is_named() {
        #[derive(Debug, serde::Deserialize)]
        #[expect(dead_code, reason = "only parsed")]
        struct Outer {
            inner: Vec<u8>,
        }
        let message = |text: &str| parse::<Outer>(text.as_bytes()).unwrap_err().message;
        assert!(message(r#"{"inner": [1, "x"]}"#).starts_with("inner[1]: "), "{}", message(r#"{"inner": [1, "x"]}"#));
        assert!(message("{").contains("not the expected JSON"));
        assert!(message(r#"{"inner": []} x"#).contains("trailing"));
    }

    #[test]
    fn times_are_plain_numbers() {
        let headers =
            |value: &str| HeaderMap::from_iter([("connect-timeout-ms".parse().unwrap(), value.parse().unwrap())]);
        assert_eq!(call_timeout(&headers("1500")), Ok(Some(Duration::from_millis(1500))));
        assert_eq!(call_timeout(&headers("0")), Ok(None));
        for wrong in ["-1", "1e3", "", "x", "12345678901"] {
            assert!(call_timeout(&headers(wrong)).is_err(), "{wrong}");
        }
    }
}
