//! Messages of a gRPC stream, decoded without a copy of the output in them.

use bytes::{Buf, Bytes, BytesMut};
use prost::Message;
use tonic::Status;

use crate::v1::ExecutionEvent;

/// The prefix of a message: whether it is compressed, and its length. See "PROTOCOL-HTTP2" of gRPC.
const PREFIX_BYTES: usize = 5;
/// As tonic has it.
const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
/// A shorter message is copied: it would keep the much larger buffer that it was received in.
const LONG_BYTES: usize = 4096;

/// Finds the messages in data that arrives in pieces of any length. A message that is in one piece is not copied, unless it is
/// short.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    /// The beginning of a message that is in several pieces.
    begun: BytesMut,
    /// What follows it.
    data: Bytes,
}

impl FrameDecoder {
    /// Adds what follows. All messages of what was added before must have been taken.
    pub fn add(&mut self, data: Bytes) {
        debug_assert!(self.data.is_empty(), "messages were left");
        self.data = data;
    }

    /// Whether only a part of a message is left.
    pub fn is_within_message(&self) -> bool {
        !self.begun.is_empty()
    }

    /// The next message; `None`: more data is needed.
    ///
    /// # Errors
    /// What was added is no such message.
    pub fn message(&mut self) -> Result<Option<ExecutionEvent>, Status> {
        let Some(message) = self.complete()? else { return Ok(None) };
        let decoded = match message.len() {
            LONG_BYTES.. => ExecutionEvent::decode(message),
            _ => ExecutionEvent::decode(&*message),
        };
        decoded.map(Some).map_err(|error| Status::internal(error.to_string()))
    }

    /// The next message that is complete, without its prefix.
    fn complete(&mut self) -> Result<Option<Bytes>, Status> {
        if self.begun.is_empty()
            && let Some(length) = length(&self.data)?
            && self.data.len() >= PREFIX_BYTES + length
        {
            self.data.advance(PREFIX_BYTES);
            return Ok(Some(self.data.split_to(length)));
        }
        // first the prefix, then what it says
        self.move_until(PREFIX_BYTES);
        let Some(length) = length(&self.begun)? else { return Ok(None) };
        self.move_until(PREFIX_BYTES + length);
        if self.begun.len() < PREFIX_BYTES + length {
            return Ok(None);
        }
        self.begun.advance(PREFIX_BYTES);
        Ok(Some(self.begun.split().freeze()))
    }

    /// Moves data to the begun message until that has this length, or there is no more.
    fn move_until(&mut self, length: usize) {
        let missing = length.saturating_sub(self.begun.len());
        let found = self.data.split_to(missing.min(self.data.len()));
        if !found.is_empty() {
            self.begun.reserve(missing);
            self.begun.extend_from_slice(&found);
        }
    }
}

/// The length of the message after a prefix; `None`: the prefix is incomplete.
fn length(data: &[u8]) -> Result<Option<usize>, Status> {
    let Some([compressed, length @ ..]) = data.first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
    if *compressed != 0 {
        return Err(Status::internal("a message is compressed, although that was not asked for"));
    }
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    match length <= MAX_MESSAGE_BYTES {
        true => Ok(Some(length)),
        false => Err(Status::out_of_range(format!("a message has {length} bytes, more than {MAX_MESSAGE_BYTES}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::encode;
    use crate::v1::execution_event::Event;

    fn events() -> Vec<ExecutionEvent> {
        let lengths = [0, 1, LONG_BYTES - 20, LONG_BYTES, 100_000, 7];
        let event = |(at, length)| ExecutionEvent {
            event: Some(Event::Stdout(vec![at as u8; length].into())),
            position: at as u64,
        };
        lengths.into_iter().enumerate().map(event).collect()
    }

    fn encoded(events: &[ExecutionEvent]) -> Bytes {
        let mut all = BytesMut::new();
        for event in events {
            let data = encode(event.clone(), &mut all);
            all.extend_from_slice(&data);
        }
        all.freeze()
    }

    #[test]
    fn messages_are_found_however_they_arrive() {
        let events = events();
        let whole = encoded(&events);
        for piece in [1, 2, 4, 5, 6, 4096, 65_536, whole.len() - 1, whole.len()] {
            let (mut decoder, mut rest, mut found) = (FrameDecoder::default(), whole.clone(), Vec::new());
            while !rest.is_empty() {
                decoder.add(rest.split_to(piece.min(rest.len())));
                while let Some(event) = decoder.message().unwrap() {
                    found.push(event);
                }
            }
            assert!(!decoder.is_within_message() && found == events, "in pieces of {piece}");
        }
    }

    #[test]
    fn what_is_long_and_in_one_piece_is_not_copied() {
        let long = &events()[4..5];
        let data = encoded(long);
        let mut decoder = FrameDecoder::default();
        decoder.add(data.clone());
        let Some(Event::Stdout(output)) = decoder.message().unwrap().unwrap().event else { panic!() };
        assert!(data.as_ptr_range().contains(&output.as_ptr()));
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        for invalid in [&[1, 0, 0, 0, 0][..], &[0, 0, 64, 0, 1], &[0, 0, 0, 0, 1, 0xff]] {
            let mut decoder = FrameDecoder::default();
            decoder.add(Bytes::copy_from_slice(invalid));
            assert!(decoder.message().is_err(), "{invalid:?}");
        }
        let mut decoder = FrameDecoder::default();
        decoder.add(Bytes::from_static(&[0, 0, 0, 0, 2, 8]));
        assert!(decoder.message().unwrap().is_none() && decoder.is_within_message());
    }
}
