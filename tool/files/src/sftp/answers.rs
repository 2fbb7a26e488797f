//! Packets to the client.

use std::io::{self, Write};

use super::attributes::Attributes;
use super::wire::{MAX_DATA, Status, answer};

/// The length, the type, the id, and the length of data.
const DATA_HEADER_BYTES: usize = 13;
/// Two of the longest answers.
const BUFFER_BYTES: usize = 2 * (DATA_HEADER_BYTES + MAX_DATA as usize);
/// A text in a status: for people.
const MAX_TEXT_BYTES: usize = 1024;

/// Answers that are not sent yet.
pub(crate) struct Answers<O> {
    output: O,
    buffer: Vec<u8>,
    end: usize,
}

impl<O: Write> Answers<O> {
    pub(crate) fn new(output: O) -> Self {
        Self { output, buffer: vec![0; BUFFER_BYTES], end: 0 }
    }

    /// Sends what there is.
    ///
    /// # Errors
    /// As of all here: of the output.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let end = std::mem::take(&mut self.end);
        if end == 0 {
            return Ok(());
        }
        self.output.write_all(self.buffer.get(..end).unwrap_or_default())?;
        self.output.flush()
    }

    pub(crate) fn send(&mut self, packet: Packet) -> io::Result<()> {
        let packet = packet.finish();
        if self.buffer.len() - self.end < packet.len() {
            self.flush()?;
        }
        match self.buffer.get_mut(self.end..self.end + packet.len()) {
            Some(room) => {
                room.copy_from_slice(&packet);
                self.end += packet.len();
                Ok(())
            }
            None => self.output.write_all(&packet),
        }
    }

    pub(crate) fn status(&mut self, id: u32, status: Status, text: &str) -> io::Result<()> {
        let text = text.get(..text.floor_char_boundary(MAX_TEXT_BYTES)).unwrap_or_default();
        self.send(Packet::new(answer::STATUS, id).u32(status as u32).string(text.as_bytes()).string(b""))
    }

    pub(crate) fn done(&mut self, id: u32) -> io::Result<()> {
        self.status(id, Status::Ok, "")
    }

    pub(crate) fn handle(&mut self, id: u32, handle: u64) -> io::Result<()> {
        self.send(Packet::new(answer::HANDLE, id).string(&handle.to_be_bytes()))
    }

    pub(crate) fn attributes(&mut self, id: u32, attributes: &Attributes) -> io::Result<()> {
        self.send(Packet::new(answer::ATTRIBUTES, id).attributes(attributes))
    }

    /// A path.
    pub(crate) fn name(&mut self, id: u32, name: &[u8]) -> io::Result<()> {
        let packet = Packet::new(answer::NAME, id).u32(1).string(name).string(name);
        self.send(packet.attributes(&Attributes::default()))
    }

    /// Data, which is read into its place. At the end of the file nothing is sent.
    ///
    /// # Errors
    /// Of the output, and of reading.
    pub(crate) fn data<E: From<io::Error>>(
        &mut self,
        id: u32,
        length: u32,
        read: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let length = length.min(MAX_DATA) as usize;
        if self.buffer.len() - self.end < DATA_HEADER_BYTES + length {
            self.flush()?;
        }
        let room = self.buffer.get_mut(self.end..self.end + DATA_HEADER_BYTES + length).unwrap_or_default();
        let Some((header, room)) = room.split_first_chunk_mut() else { return Ok(0) };
        let read = match read(room)? {
            0 if length > 0 => return Ok(0),
            read => read,
        };
        *header = data_header(id, u32::try_from(read).unwrap_or(MAX_DATA));
        self.end += DATA_HEADER_BYTES + read;
        Ok(read)
    }
}

fn data_header(id: u32, length: u32) -> [u8; DATA_HEADER_BYTES] {
    let [a, b, c, d] = (DATA_HEADER_BYTES as u32 - 4 + length).to_be_bytes();
    let [e, f, g, h] = id.to_be_bytes();
    let [i, j, k, l] = length.to_be_bytes();
    [a, b, c, d, answer::DATA, e, f, g, h, i, j, k, l]
}

/// A packet that is being put together.
pub(crate) struct Packet(Vec<u8>);

impl Packet {
    /// That answers the request with this id; of the version packet, which is no answer, the version.
    pub(crate) fn new(kind: u8, id: u32) -> Self {
        Self(vec![0, 0, 0, 0, kind]).u32(id)
    }

    pub(crate) fn u32(mut self, number: u32) -> Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    pub(crate) fn u64(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    pub(crate) fn string(self, string: &[u8]) -> Self {
        // none is longer than what was received, or than a path
        let mut packet = self.u32(u32::try_from(string.len()).unwrap_or(u32::MAX));
        packet.0.extend_from_slice(string);
        packet
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn attributes(mut self, attributes: &Attributes) -> Self {
        attributes.put(&mut self.0);
        self
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len().saturating_sub(4)).unwrap_or(u32::MAX);
        if let Some(first) = self.0.first_chunk_mut() {
            *first = length.to_be_bytes();
        }
        self.0
    }
}
