//! The bytes of a forwarded connection, in pieces for the wire.

use bytes::{Bytes, BytesMut};

/// What is read at once: little from a quiet connection, since the room is held while it waits.
const QUIET_BYTES: usize = 8 * 1024;
/// The longest piece.
pub const MAX_PIECE_BYTES: usize = 256 * 1024;

/// Room to read into, as much as the connection has used lately: 8 KiB while it is quiet, 256 KiB while it is busy.
#[derive(Debug)]
pub struct Pieces {
    buffer: BytesMut,
    size: usize,
    room: usize,
}

impl Default for Pieces {
    fn default() -> Self {
        Self { buffer: BytesMut::new(), size: QUIET_BYTES, room: 0 }
    }
}

impl Pieces {
    /// An empty buffer, to be read into once, without making it larger.
    pub fn room(&mut self) -> &mut BytesMut {
        if self.buffer.capacity() < self.size / 4 {
            self.buffer.reserve(self.size);
        }
        self.room = self.buffer.capacity();
        &mut self.buffer
    }

    /// What was read.
    pub fn take(&mut self) -> Bytes {
        let piece = self.buffer.split().freeze();
        self.size = match piece.len() {
            length if length == self.room => MAX_PIECE_BYTES,
            ..QUIET_BYTES => QUIET_BYTES,
            _ => self.size,
        };
        if self.size == QUIET_BYTES && self.buffer.capacity() > QUIET_BYTES {
            // what a busy connection needed is not kept for a quiet one
            self.buffer = BytesMut::new();
        }
        piece
    }
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;

    use super::*;

    fn read(pieces: &mut Pieces, most: usize) -> usize {
        let room = pieces.room();
        let length = room.capacity().min(most);
        room.put_bytes(7, length);
        let piece = pieces.take();
        assert!(piece.len() == length && piece.iter().all(|byte| *byte == 7));
        length
    }

    #[test]
    fn a_busy_connection_is_read_in_long_pieces_and_a_quiet_one_holds_little() {
        let mut pieces = Pieces::default();
        assert_eq!(read(&mut pieces, usize::MAX), QUIET_BYTES);
        assert_eq!(read(&mut pieces, usize::MAX), MAX_PIECE_BYTES);
        // less than there is room for, but not little
        assert_eq!(read(&mut pieces, MAX_PIECE_BYTES / 2), MAX_PIECE_BYTES / 2);
        assert!(pieces.room().capacity() >= MAX_PIECE_BYTES / 4);
        read(&mut pieces, 1);
        assert!(pieces.room().capacity() <= QUIET_BYTES);
    }
}
