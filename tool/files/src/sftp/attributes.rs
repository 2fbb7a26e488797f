//! Attributes of files, as they go over the wire.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, chmod, chownat, fchmod, fchown, ftruncate,
    futimens, utimensat,
};
use rustix::io::Errno;

use super::wire::Fields;
use crate::place::Place;

const SIZE: u32 = 0x01;
const OWNER: u32 = 0x02;
const MODE: u32 = 0x04;
const TIMES: u32 = 0x08;
const EXTENDED: u32 = 0x8000_0000;

/// Those that are known, or are to be set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) size: Option<u64>,
    /// The numbers of the user and the group.
    pub(crate) owner: Option<(u32, u32)>,
    /// With the type, where the server says it.
    pub(crate) mode: Option<u32>,
    /// Of the last access and the last change, in seconds since 1970.
    pub(crate) times: Option<(u32, u32)>,
}

impl From<&Stat> for Attributes {
    fn from(stat: &Stat) -> Self {
        // what does not fit is as near as can be
        let seconds = |time: i64| u32::try_from(time.max(0)).unwrap_or(u32::MAX);
        Self {
            size: Some(u64::try_from(stat.st_size).unwrap_or_default()),
            owner: Some((stat.st_uid, stat.st_gid)),
            mode: Some(stat.st_mode),
            times: Some((seconds(stat.st_atime), seconds(stat.st_mtime))),
        }
    }
}

impl Attributes {
    /// # Errors
    /// The packet ends before they do.
    pub(crate) fn of(fields: &mut Fields<'_>) -> io::Result<Self> {
        let flags = fields.u32()?;
        let mut attributes = Self::default();
        if flags & SIZE != 0 {
            attributes.size = Some(fields.u64()?);
        }
        if flags & OWNER != 0 {
            attributes.owner = Some((fields.u32()?, fields.u32()?));
        }
        if flags & MODE != 0 {
            attributes.mode = Some(fields.u32()?);
        }
        if flags & TIMES != 0 {
            attributes.times = Some((fields.u32()?, fields.u32()?));
        }
        if flags & EXTENDED != 0 {
            for _ in 0..fields.u32()? {
                // the type and its data
                fields.string()?;
                fields.string()?;
            }
        }
        Ok(attributes)
    }

    pub(crate) fn put(&self, packet: &mut Vec<u8>) {
        let has = |flag: u32, is: bool| if is { flag } else { 0 };
        let flags = has(SIZE, self.size.is_some())
            | has(OWNER, self.owner.is_some())
            | has(MODE, self.mode.is_some())
            | has(TIMES, self.times.is_some());
        packet.extend_from_slice(&flags.to_be_bytes());
        if let Some(size) = self.size {
            packet.extend_from_slice(&size.to_be_bytes());
        }
        let pairs = [self.owner, self.mode.map(|mode| (mode, 0)), self.times];
        for (place, (first, second)) in pairs.into_iter().enumerate().filter_map(|(n, pair)| Some((n, pair?))) {
            packet.extend_from_slice(&first.to_be_bytes());
            if place != 1 {
                packet.extend_from_slice(&second.to_be_bytes());
            }
        }
    }

    /// The permission bits that a new file is to have, less the umask.
    pub(crate) fn mode_or(&self, default: u32) -> Mode {
        Mode::from_raw_mode(self.mode.unwrap_or(default) & 0o7777)
    }

    /// Sets all of them that can be set.
    ///
    /// # Errors
    /// Why the first of the others cannot.
    pub(crate) fn set(&self, of: &Target<'_>) -> Result<(), Errno> {
        // a change of the size changes the time, and one of the owner takes set-user-ID away: so not in any other order
        let size = self.size.map_or(Ok(()), |size| of.set_size(size));
        let owner = self.owner.map_or(Ok(()), |(user, group)| of.set_owner(user, group));
        let mode = self.mode.map_or(Ok(()), |mode| of.set_mode(Mode::from_raw_mode(mode & 0o7777)));
        let times = self.times.map_or(Ok(()), |(access, change)| of.set_times(access, change));
        size.and(owner).and(mode).and(times)
    }
}

/// What attributes are set of.
pub(crate) enum Target<'a> {
    Open(&'a OwnedFd),
    /// What has the name, a symbolic link itself.
    Named(&'a Place),
}

impl Target<'_> {
    fn set_size(&self, size: u64) -> Result<(), Errno> {
        match self {
            Self::Open(file) => ftruncate(file, size),
            Self::Named(place) => {
                match FileType::from_raw_mode(place.stat()?.st_mode) {
                    FileType::RegularFile => {}
                    FileType::Directory => return Err(Errno::ISDIR),
                    // to open it might have an effect
                    _ => return Err(Errno::INVAL),
                }
                ftruncate(place.open(OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?, size)
            }
        }
    }

    fn set_owner(&self, user: u32, group: u32) -> Result<(), Errno> {
        // -1 leaves it as it is: chown(2)
        let user = (user != u32::MAX).then(|| Uid::from_raw(user));
        let group = (group != u32::MAX).then(|| Gid::from_raw(group));
        match self {
            Self::Open(file) => fchown(file, user, group),
            Self::Named(place) => chownat(place.directory(), place.name(), user, group, AtFlags::SYMLINK_NOFOLLOW),
        }
    }

    fn set_mode(&self, mode: Mode) -> Result<(), Errno> {
        match self {
            Self::Open(file) => fchmod(file, mode),
            Self::Named(place) => {
                // chmod(2) follows a link that is put in the way, and this does not
                let file = place.open(OFlags::PATH)?;
                chmod(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()), mode)
            }
        }
    }

    fn set_times(&self, access: u32, change: u32) -> Result<(), Errno> {
        let time = |seconds: u32| Timespec { tv_sec: seconds.into(), tv_nsec: 0 };
        let times = Timestamps { last_access: time(access), last_modification: time(change) };
        match self {
            Self::Open(file) => futimens(file, &times),
            Self::Named(place) => utimensat(place.directory(), place.name(), &times, AtFlags::SYMLINK_NOFOLLOW),
        }
    }
}
