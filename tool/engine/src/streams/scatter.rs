//! One read into several chunks.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use libc::iovec;

/// Reads into this many chunks of this size, by one readv(2): it takes the lock of a pipe once, so that nothing that was read waits for
/// that lock. Returns those into which something was read; none: the end.
///
/// # Errors
/// Those of readv(2).
pub(super) fn read_chunks(from: impl AsFd, count: usize, size: usize) -> io::Result<Vec<Vec<u8>>> {
    let mut chunks: Vec<Vec<u8>> = (0..count).map(|_| Vec::with_capacity(size)).collect();
    let places: Vec<iovec> =
        chunks.iter_mut().map(|chunk| iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: size }).collect();
    let places_length = i32::try_from(places.len()).map_err(io::Error::other)?;
    // SAFETY: each place is memory of a chunk with this capacity; all chunks outlive the call, and nothing else uses them meanwhile.
    let read = unsafe { libc::readv(from.as_fd().as_raw_fd(), places.as_ptr(), places_length) };
    let mut left = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
    for chunk in &mut chunks {
        let length = left.min(size);
        // SAFETY: the kernel has filled the chunks in order, and this one up to here: the capacity is at least `size`.
        unsafe { chunk.set_len(length) };
        left -= length;
    }
    chunks.retain(|chunk| !chunk.is_empty());
    Ok(chunks)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn chunks_are_filled_in_order() {
        let (from, mut to) = io::pipe().unwrap();
        for (written, lengths) in [(1, &[1][..]), (10, &[10]), (11, &[10, 1]), (30, &[10, 10, 10]), (35, &[10, 10, 10])]
        {
            let data: Vec<u8> = (0..written).collect();
            to.write_all(&data).unwrap();
            let mut chunks = read_chunks(&from, 3, 10).unwrap();
            assert!(chunks.iter().map(Vec::len).eq(lengths.iter().copied()), "{written}");
            if written > 30 {
                chunks.append(&mut read_chunks(&from, 3, 10).unwrap());
            }
            assert_eq!(chunks.concat(), data);
        }
        drop(to);
        assert!(read_chunks(&from, 3, 10).unwrap().is_empty());
    }
}
