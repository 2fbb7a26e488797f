//! Packets from the client: a length, and that many bytes.

use std::io::{self, ErrorKind, Read};

use super::wire::MAX_PACKET;
use crate::session::malformed;

const LENGTH_BYTES: usize = 4;
/// With room beside the longest data that some client may send after it was told of [`MAX_PACKET`].
const LONGEST: usize = MAX_PACKET as usize + 1024;
/// A packet is moved to the begin of the buffer only if it may not fit behind others.
const BUFFER_BYTES: usize = 2 * (LENGTH_BYTES + LONGEST);

/// What was read and is not handled yet.
pub(crate) struct Packets<I> {
    input: I,
    buffer: Vec<u8>,
    begin: usize,
    end: usize,
}

impl<I: Read> Packets<I> {
    pub(crate) fn new(input: I) -> Self {
        Self { input, buffer: vec![0; BUFFER_BYTES], begin: 0, end: 0 }
    }

    /// The next packet that is here as a whole, without its length.
    ///
    /// # Errors
    /// It is empty or too long.
    pub(crate) fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let here = self.buffer.get(self.begin..self.end).unwrap_or_default();
        let Some((length, rest)) = here.split_first_chunk() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if length == 0 || length > LONGEST {
            return Err(malformed(&format!("an SFTP packet of {length} bytes (at most {LONGEST})")));
        }
        let packet = rest.get(..length);
        if packet.is_some() {
            self.begin += LENGTH_BYTES + length;
        }
        Ok(packet)
    }

    /// Waits for more; `false`: there is no more.
    ///
    /// # Errors
    /// Of the input; it ends in the middle of a packet.
    pub(crate) fn fill(&mut self) -> io::Result<bool> {
        if self.begin == self.end || self.buffer.len() - self.begin < LENGTH_BYTES + LONGEST {
            self.buffer.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        loop {
            match self.input.read(room) {
                Ok(0) if self.begin == self.end => return Ok(false),
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    self.end += read;
                    return Ok(true);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
