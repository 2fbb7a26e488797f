//! The numbers of the protocol, and the fields of a packet.

use std::io;

use rustix::io::Errno;

use crate::session::malformed;

/// The version that is spoken.
pub(crate) const VERSION: u32 = 3;
/// The longest data of a read or a write.
pub(crate) const MAX_DATA: u32 = 255 * 1024;
/// The longest packet that is announced: as OpenSSH's.
pub(crate) const MAX_PACKET: u32 = 256 * 1024;

/// Packets from the client.
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
    pub(crate) const RMDIR: u8 = 15;
    pub(crate) const REALPATH: u8 = 16;
    pub(crate) const STAT: u8 = 17;
    pub(crate) const RENAME: u8 = 18;
    pub(crate) const READLINK: u8 = 19;
    pub(crate) const SYMLINK: u8 = 20;
    pub(crate) const EXTENDED: u8 = 200;
}

/// Packets to the client.
pub(crate) mod answer {
    pub(crate) const VERSION: u8 = 2;
    pub(crate) const STATUS: u8 = 101;
    pub(crate) const HANDLE: u8 = 102;
    pub(crate) const DATA: u8 = 103;
    pub(crate) const NAME: u8 = 104;
    pub(crate) const ATTRIBUTES: u8 = 105;
    pub(crate) const EXTENDED: u8 = 201;
}

/// How a file is to be opened.
pub(crate) mod open {
    pub(crate) const READ: u32 = 0x01;
    pub(crate) const WRITE: u32 = 0x02;
    pub(crate) const APPEND: u32 = 0x04;
    pub(crate) const CREATE: u32 = 0x08;
    pub(crate) const TRUNCATE: u32 = 0x10;
    pub(crate) const EXCLUSIVE: u32 = 0x20;
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Status {
    Ok = 0,
    Eof = 1,
    NoSuchFile = 2,
    PermissionDenied = 3,
    Failure = 4,
    BadMessage = 5,
    Unsupported = 8,
}

impl From<Errno> for Status {
    /// As OpenSSH has them.
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::BADF | Errno::LOOP => Self::NoSuchFile,
            Errno::PERM | Errno::ACCESS => Self::PermissionDenied,
            Errno::NAMETOOLONG | Errno::INVAL => Self::BadMessage,
            Errno::NOSYS => Self::Unsupported,
            _ => Self::Failure,
        }
    }
}

/// The fields of a packet that are not read yet.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'packet>(&'packet [u8]);

impl<'packet> Fields<'packet> {
    pub(crate) fn of(packet: &'packet [u8]) -> Self {
        Self(packet)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// # Errors
    /// As of all here: the packet ends before the field.
    pub(crate) fn u8(&mut self) -> io::Result<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> io::Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> io::Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn string(&mut self) -> io::Result<&'packet [u8]> {
        let length = self.u32()? as usize;
        let (string, rest) = self.0.split_at_checked(length).ok_or_else(cut_short)?;
        self.0 = rest;
        Ok(string)
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk().ok_or_else(cut_short)?;
        self.0 = rest;
        Ok(*array)
    }
}

fn cut_short() -> io::Error {
    malformed("an SFTP packet that lacks fields")
}
