//! Packets of SFTP, version 3 (draft-ietf-secsh-filexfer-02).

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{Attributes, SftpError};

/// Also the id of the first request, which has no other.
pub(crate) const VERSION: u32 = 3;
/// An answer is no longer.
const MAX_PACKET_BYTES: usize = 1024 * 1024;

pub(crate) mod request {
    pub(crate) const INIT: u8 = 1;
    pub(crate) const OPEN: u8 = 3;
    pub(crate) const CLOSE: u8 = 4;
    pub(crate) const READ: u8 = 5;
    pub(crate) const WRITE: u8 = 6;
    pub(crate) const LSTAT: u8 = 7;
    pub(crate) const FSTAT: u8 = 8;
    pub(crate) const SETSTAT: u8 = 9;
    pub(crate) const FSETSTAT: u8 = 10;
    pub(crate) const OPENDIR: u8 = 11;
    pub(crate) const READDIR: u8 = 12;
    pub(crate) const REMOVE: u8 = 13;
    pub(crate) const MKDIR: u8 = 14;
    pub(crate) const READLINK: u8 = 19;
    pub(crate) const SYMLINK: u8 = 20;
    pub(crate) const EXTENDED: u8 = 200;
}

mod answer {
    pub(super) const VERSION: u8 = 2;
    pub(super) const STATUS: u8 = 101;
    pub(super) const HANDLE: u8 = 102;
    pub(super) const DATA: u8 = 103;
    pub(super) const NAME: u8 = 104;
    pub(super) const ATTRIBUTES: u8 = 105;
}

pub(crate) mod status {
    pub(crate) const OK: u32 = 0;
    pub(crate) const EOF: u32 = 1;
    pub(crate) const NO_SUCH_FILE: u32 = 2;
    pub(crate) const PERMISSION_DENIED: u32 = 3;
    pub(crate) const BAD_MESSAGE: u32 = 5;
}

/// Who a file belongs to, by numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

mod attribute {
    pub(super) const SIZE: u32 = 0x01;
    pub(super) const OWNER: u32 = 0x02;
    pub(super) const MODE: u32 = 0x04;
    pub(super) const TIMES: u32 = 0x08;
    pub(super) const EXTENDED: u32 = 0x8000_0000;
}

/// A request that is being put together.
pub(crate) struct Packet(BytesMut);

impl Packet {
    pub(crate) fn new(kind: u8) -> Self {
        let mut packet = BytesMut::with_capacity(64);
        // the length and the id are not known yet
        packet.put_u32(0);
        packet.put_u8(kind);
        packet.put_u32(0);
        Self(packet)
    }

    pub(crate) fn u32(mut self, number: u32) -> Self {
        self.0.put_u32(number);
        self
    }

    pub(crate) fn u64(mut self, number: u64) -> Self {
        self.0.put_u64(number);
        self
    }

    pub(crate) fn string(mut self, string: impl AsRef<[u8]>) -> Self {
        let string = string.as_ref();
        // no path and no piece of a file is that long
        self.0.put_u32(u32::try_from(string.len()).unwrap_or(u32::MAX));
        self.0.put_slice(string);
        self
    }

    /// Attributes that have no more than the permissions and one time for both.
    pub(crate) fn attributes(self, mode: Option<u32>, time: Option<u32>) -> Self {
        let flags = mode.map_or(0, |_| attribute::MODE) | time.map_or(0, |_| attribute::TIMES);
        let packet = mode.into_iter().fold(self.u32(flags), Self::u32);
        time.into_iter().flat_map(|time| [time, time]).fold(packet, Self::u32)
    }

    /// Attributes that have no more than the owner and the permissions.
    pub(crate) fn owned_by(self, Owner { user, group }: Owner, mode: u32) -> Self {
        self.u32(attribute::OWNER | attribute::MODE).u32(user).u32(group).u32(mode)
    }

    pub(crate) fn finish(mut self, id: u32) -> Bytes {
        let length = u32::try_from(self.0.len().saturating_sub(4)).unwrap_or(u32::MAX);
        if let Some([a, b, c, d, _, e, f, g, h]) = self.0.first_chunk_mut() {
            [*a, *b, *c, *d] = length.to_be_bytes();
            [*e, *f, *g, *h] = id.to_be_bytes();
        }
        self.0.freeze()
    }
}

/// What a server answers.
#[derive(Debug)]
pub(crate) enum Answer {
    Version,
    Status(u32, String),
    Handle(Bytes),
    Data(Bytes),
    Names(Vec<(Bytes, Attributes)>),
    Attributes(Attributes),
}

/// Takes the next whole packet out of what has arrived: the id of its request, and the answer.
pub(crate) fn next(arrived: &mut BytesMut) -> Result<Option<(u32, Answer)>, SftpError> {
    let Some(length) = arrived.first_chunk().map(|length| u32::from_be_bytes(*length) as usize) else {
        return Ok(None);
    };
    if !(5..=MAX_PACKET_BYTES).contains(&length) {
        return Err(SftpError::Malformed);
    }
    if arrived.len() < 4 + length {
        return Ok(None);
    }
    arrived.advance(4);
    parse(arrived.split_to(length).freeze()).map(Some)
}

fn parse(packet: Bytes) -> Result<(u32, Answer), SftpError> {
    let mut fields = Fields(packet);
    let kind = fields.u8()?;
    let id = fields.u32()?;
    let answer = match kind {
        // the version is where others have the id; the extensions follow
        answer::VERSION => return Ok((VERSION, Answer::Version)),
        answer::STATUS => Answer::Status(fields.u32()?, String::from_utf8_lossy(&fields.string()?).into_owned()),
        answer::HANDLE => Answer::Handle(fields.string()?),
        answer::DATA => Answer::Data(fields.string()?),
        answer::ATTRIBUTES => Answer::Attributes(fields.attributes()?),
        answer::NAME => {
            let mut names = Vec::new();
            for _ in 0..fields.u32()? {
                let name = fields.string()?;
                // for people, as ls -l has it
                fields.string()?;
                names.push((name, fields.attributes()?));
            }
            Answer::Names(names)
        }
        _ => return Err(SftpError::Malformed),
    };
    Ok((id, answer))
}

struct Fields(Bytes);

impl Fields {
    fn u8(&mut self) -> Result<u8, SftpError> {
        self.0.try_get_u8().map_err(|_| SftpError::Malformed)
    }

    fn u32(&mut self) -> Result<u32, SftpError> {
        self.0.try_get_u32().map_err(|_| SftpError::Malformed)
    }

    fn u64(&mut self) -> Result<u64, SftpError> {
        self.0.try_get_u64().map_err(|_| SftpError::Malformed)
    }

    fn string(&mut self) -> Result<Bytes, SftpError> {
        let length = self.u32()? as usize;
        if length > self.0.len() { Err(SftpError::Malformed) } else { Ok(self.0.split_to(length)) }
    }

    fn attributes(&mut self) -> Result<Attributes, SftpError> {
        let flags = self.u32()?;
        let mut attributes = Attributes::default();
        if flags & attribute::SIZE != 0 {
            attributes.size = self.u64()?;
        }
        if flags & attribute::OWNER != 0 {
            attributes.owner = self.u32()?;
            // the group
            self.u32()?;
        }
        if flags & attribute::MODE != 0 {
            attributes.mode = self.u32()?;
        }
        if flags & attribute::TIMES != 0 {
            self.u32()?;
            attributes.changed = self.u32()?;
        }
        if flags & attribute::EXTENDED != 0 {
            for _ in 0..self.u32()? {
                self.string()?;
                self.string()?;
            }
        }
        Ok(attributes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_arrive_in_pieces() {
        let packet = Packet::new(super::answer::STATUS).u32(status::NO_SUCH_FILE).string("gone").string("").finish(7);
        let mut arrived = BytesMut::new();
        for byte in packet.iter().take(packet.len() - 1) {
            arrived.put_u8(*byte);
            assert!(next(&mut arrived).unwrap().is_none());
        }
        arrived.extend_from_slice(&packet[packet.len() - 1..]);
        arrived.extend_from_slice(&packet);
        for _ in 0..2 {
            let (id, answer) = next(&mut arrived).unwrap().unwrap();
            assert!(id == 7 && matches!(answer, Answer::Status(status::NO_SUCH_FILE, text) if text == "gone"));
        }
        assert!(arrived.is_empty());
    }

    #[test]
    fn malformed_packets_are_errors() {
        for wrong in [
            vec![0, 0, 0, 0, 0],
            vec![0xff, 0xff, 0xff, 0xff],
            // a string that is longer than the packet
            vec![0, 0, 0, 9, super::answer::HANDLE, 0, 0, 0, 1, 0, 0, 0, 9],
            // names that are not there
            vec![0, 0, 0, 9, super::answer::NAME, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff],
            vec![0, 0, 0, 5, 99, 0, 0, 0, 1],
        ] {
            assert!(next(&mut BytesMut::from(wrong.as_slice())).is_err(), "{wrong:?}");
        }
    }
}
