//! Reading and writing files in memory.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{pread, pwrite};

pub(super) const PAGE: u64 = 4096;
/// So much that is needed no more gathers before it is given up.
pub(super) const GATHERED_BYTES: u64 = 256 * 1024;

/// Gives up whole pages between these.
pub(super) fn punch(file: &OwnedFd, from: u64, to: u64) {
    let (from, to) = (from / PAGE * PAGE, to / PAGE * PAGE);
    if from < to {
        let _ = fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, from, to - from);
    }
}

pub(super) fn put(file: &OwnedFd, at: u64, values: &[u64]) -> io::Result<()> {
    let mut bytes = [0; 64];
    for (to, value) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(values) {
        *to = value.to_le_bytes();
    }
    write_all(file, bytes.get(..8 * values.len()).unwrap_or_default(), at)
}

pub(super) fn get<const N: usize>(file: &OwnedFd, at: u64) -> io::Result<[u64; N]> {
    let bytes = read_exact(file, at, 8 * N)?;
    let mut values = [0; N];
    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *value = u64::from_le_bytes(*bytes);
    }
    Ok(values)
}

pub(super) fn write_all(file: impl AsFd, mut data: &[u8], mut at: u64) -> io::Result<()> {
    while !data.is_empty() {
        let written = rustix::io::retry_on_intr(|| pwrite(&file, data, at))?;
        data = data.get(written..).unwrap_or_default();
        at += written as u64;
    }
    Ok(())
}

pub(super) fn read_exact(file: &OwnedFd, at: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut data = Vec::with_capacity(length);
    while data.len() < length {
        let at = at + data.len() as u64;
        match rustix::io::retry_on_intr(|| pread(file, rustix::buffer::spare_capacity(&mut data), at))? {
            0 => return Err(broken()),
            _ => data.truncate(length),
        }
    }
    Ok(data)
}

pub(super) fn broken() -> io::Error {
    io::Error::other("its checkpoint is not whole")
}
