//! What goes over the pipes between the agent and the process: a type, a length, and that many bytes.

use std::io::{self, Read, Write};

/// The longest frame: longer ones are a fault.
pub const MAX_BYTES: usize = 1024 * 1024;
/// Before each frame.
pub const HEADER_BYTES: usize = 5;

/// What is in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// To the process: a [`Request`](crate::message::Request).
    Request = 1,
    /// Either way: a piece of a file.
    Data = 2,
    /// To the process: the file is complete.
    End = 3,
    /// From the process: a [`Question`](crate::message::Question).
    Question = 4,
    /// To the process: one byte, 1 for yes.
    Verdict = 5,
    /// From the process: an [`Answer`](crate::message::Answer).
    Answer = 6,
    /// Either way: so many zeros of a file that take no room on the disk, eight bytes.
    Hole = 7,
    /// From the process: a [`Report`](crate::message::Report).
    Report = 8,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        [Self::Request, Self::Data, Self::End, Self::Question, Self::Verdict, Self::Answer, Self::Hole, Self::Report]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// The header of a frame.
pub fn header(kind: Kind, length: usize) -> [u8; HEADER_BYTES] {
    let [a, b, c, d] = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    [kind as u8, a, b, c, d]
}

/// The type of the frame with this header, and its length.
///
/// # Errors
/// It is none, or is too long.
pub fn parse([kind, length @ ..]: [u8; HEADER_BYTES]) -> io::Result<(Kind, usize)> {
    let malformed = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let kind = Kind::of(kind).ok_or_else(|| malformed("a frame of an unknown type"))?;
    match u32::from_be_bytes(length) as usize {
        length @ ..=MAX_BYTES => Ok((kind, length)),
        _ => Err(malformed("a frame that is too long")),
    }
}

/// The length that the frame of a hole has.
///
/// # Errors
/// It has none.
pub fn hole(data: &[u8]) -> io::Result<u64> {
    let length = data.try_into().map(u64::from_be_bytes);
    length.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a hole without a length"))
}

/// Writes a frame.
///
/// # Errors
/// The pipe is closed, or the frame is too long.
pub fn write(to: &mut impl Write, kind: Kind, data: &[u8]) -> io::Result<()> {
    let header = header(kind, data.len());
    parse(header)?;
    to.write_all(&header)?;
    to.write_all(data)
}

/// Reads a frame into `data`; `None`: there are no more.
///
/// # Errors
/// What comes is no frame, or ends in the middle of one.
pub fn read(from: &mut impl Read, data: &mut Vec<u8>) -> io::Result<Option<Kind>> {
    let mut header = [0; HEADER_BYTES];
    let mut begun = 0;
    while let Some(rest) = header.get_mut(begun..).filter(|rest| !rest.is_empty()) {
        match from.read(rest) {
            Ok(0) if begun == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => begun += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let (kind, length) = parse(header)?;
    // not cleared before: what is overwritten need not be zeroed first
    data.resize(length, 0);
    from.read_exact(data)?;
    Ok(Some(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_and_others_are_refused() {
        let mut bytes = Vec::new();
        write(&mut bytes, Kind::Data, b"abc").unwrap();
        write(&mut bytes, Kind::End, b"").unwrap();
        let (mut from, mut data) = (&bytes[..], Vec::new());
        assert_eq!((read(&mut from, &mut data).unwrap(), &data[..]), (Some(Kind::Data), &b"abc"[..]));
        assert_eq!((read(&mut from, &mut data).unwrap(), data.len()), (Some(Kind::End), 0));
        assert_eq!(read(&mut from, &mut data).unwrap(), None);
        read(&mut &bytes[..7], &mut data).unwrap_err();
        read(&mut &b"\x09\0\0\0\0"[..], &mut data).unwrap_err();
        read(&mut &b"\x02\0\x10\0\x01"[..], &mut data).unwrap_err();
        write(&mut bytes, Kind::Data, &vec![0; MAX_BYTES + 1]).unwrap_err();
    }
}
