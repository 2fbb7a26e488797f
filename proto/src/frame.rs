//! Messages of a gRPC stream, without a copy of the output in them.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use crate::v1::ExecutionEvent;
use crate::v1::execution_event::Event;

/// A shorter chunk is copied: that costs less than a piece of its own.
const LONG_BYTES: usize = 4096;
/// The numbers of the fields; a test compares them with the specification.
const STDOUT: u32 = 2;
const STDERR: u32 = 3;

/// Appends a message with its prefix (see "PROTOCOL-HTTP2" of gRPC) to `head`, but for a long chunk of output: that is
/// returned, and follows it. Empty: there is none.
pub fn encode(mut event: ExecutionEvent, head: &mut BytesMut) -> Bytes {
    let chunk = match &mut event.event {
        Some(Event::Stdout(data)) if data.len() >= LONG_BYTES => Some((STDOUT, std::mem::take(data))),
        Some(Event::Stderr(data)) if data.len() >= LONG_BYTES => Some((STDERR, std::mem::take(data))),
        _ => None,
    };
    let Some((field, data)) = chunk else {
        prefix(event.encoded_len(), head);
        append(&event, head);
        return Bytes::new();
    };
    // fields may come in any order: the chunk is the last
    event.event = None;
    let length = data.len() as u64;
    prefix(event.encoded_len() + key_len(field) + encoded_len_varint(length) + data.len(), head);
    append(&event, head);
    encode_key(field, WireType::LengthDelimited, head);
    encode_varint(length, head);
    data
}

/// Not compressed, and so long.
fn prefix(length: usize, head: &mut BytesMut) {
    head.put_u8(0);
    // a chunk has some KiB, and everything else that is sent is bounded too
    head.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

fn append(event: &ExecutionEvent, head: &mut BytesMut) {
    // it can only fail for want of room, and this makes room
    let _ = event.encode(head);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_in_two_pieces_is_the_message() {
        type Make = fn(Bytes) -> Event;
        for make in [Event::Stdout as Make, Event::Stderr] {
            for length in [0, 1, LONG_BYTES - 1, LONG_BYTES, 100_000] {
                for position in [0, 1, u64::MAX] {
                    let event = ExecutionEvent { event: Some(make(vec![7; length].into())), position };
                    let mut head = BytesMut::from(&b"before"[..]);
                    let data = encode(event.clone(), &mut head);
                    assert_eq!(data.len(), if length < LONG_BYTES { 0 } else { length });
                    let message = [&head[b"before".len()..], &data].concat();
                    let (prefix, message) = message.split_at(5);
                    assert_eq!(prefix[1..], u32::try_from(message.len()).unwrap().to_be_bytes());
                    assert_eq!(ExecutionEvent::decode(message).unwrap(), event);
                }
            }
        }
    }
}
