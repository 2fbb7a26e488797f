//! The holes of files, which read as zeros and take no room on the disk.

use std::fs::File;

use aws_lc_rs::digest::Context;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// A stretch of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stretch {
    /// Data up to here.
    Data(u64),
    /// A hole up to here.
    Hole(u64),
}

/// What a file of this size has from a position on. The position that it reads from is moved there.
///
/// # Errors
/// Of lseek(2).
pub(crate) fn stretch(file: &File, from: u64, size: u64) -> Result<Stretch, Errno> {
    let all = Stretch::Data(u64::MAX);
    let found = match seek(file, SeekFrom::Data(from)) {
        // a hole to the end; or it has become shorter
        Err(Errno::NXIO) if from < size => Stretch::Hole(size),
        // a file system that knows of no holes, or the end, where there may be more by now
        Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => all,
        Err(error) => return Err(error),
        Ok(data) if data > from => Stretch::Hole(data),
        Ok(_) => seek(file, SeekFrom::Hole(from)).map_or(all, Stretch::Data),
    };
    seek(file, SeekFrom::Start(from))?;
    Ok(found)
}

/// Adds so many zeros.
pub(crate) fn digest_zeros(digest: &mut Context, mut length: u64) {
    static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
    while length > 0 {
        let most = usize::try_from(length).unwrap_or(usize::MAX).min(ZEROS.len());
        digest.update(ZEROS.get(..most).unwrap_or_default());
        length -= most as u64;
    }
}
