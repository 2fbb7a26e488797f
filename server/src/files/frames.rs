//! Frames from the output of a file process, in which they may begin anywhere.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use telexec_files::frame::{HEADER_BYTES, Kind, parse};

/// Takes output in pieces and gives frames.
#[derive(Default)]
pub(super) struct Frames {
    /// Not parsed yet.
    output: Bytes,
    /// The beginning of a frame that is not complete.
    begun: BytesMut,
    /// Bytes of a data frame that are missing.
    data: usize,
}

/// A frame, or a part of one with data.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) data: Bytes,
}

impl Frames {
    /// Only once [`next`](Self::next) has given all that was there.
    pub(super) fn add(&mut self, output: Bytes) {
        self.output = output;
    }

    /// `None`: more output is needed.
    ///
    /// # Errors
    /// The output is something else.
    pub(super) fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if self.data > 0 {
                let length = self.data.min(self.output.len());
                if length == 0 {
                    return Ok(None);
                }
                self.data -= length;
                return Ok(Some(Frame { kind: Kind::Data, data: self.output.split_to(length) }));
            }
            if !self.gather(HEADER_BYTES) {
                return Ok(None);
            }
            let header = self.begun.first_chunk().copied().unwrap_or_default();
            let (kind, length) = parse(header)?;
            if kind == Kind::Data {
                self.begun.clear();
                self.data = length;
                continue;
            }
            if !self.gather(HEADER_BYTES + length) {
                return Ok(None);
            }
            let mut frame = self.begun.split().freeze();
            frame.advance(HEADER_BYTES);
            return Ok(Some(Frame { kind, data: frame }));
        }
    }

    /// Whether so many bytes of a frame are there.
    fn gather(&mut self, wanted: usize) -> bool {
        let length = wanted.saturating_sub(self.begun.len()).min(self.output.len());
        self.begun.extend_from_slice(&self.output.split_to(length));
        self.begun.len() >= wanted
    }
}

#[cfg(test)]
mod tests {
    use telexec_files::frame;

    use super::*;

    #[test]
    fn frames_are_found_however_the_output_is_cut() {
        let sent =
            [(Kind::Question, &b"path"[..]), (Kind::Data, b"abcdef"), (Kind::Data, b""), (Kind::Answer, b"done")];
        let mut output = Vec::new();
        for (kind, data) in sent {
            frame::write(&mut output, kind, data).unwrap();
        }
        for length in 1..=output.len() {
            let (mut frames, mut data, mut others) = (Frames::default(), Vec::new(), Vec::new());
            for piece in output.chunks(length) {
                frames.add(Bytes::copy_from_slice(piece));
                while let Some(frame) = frames.next().unwrap() {
                    match frame.kind {
                        Kind::Data => data.extend_from_slice(&frame.data),
                        _ => others.push((frame.kind, frame.data)),
                    }
                }
            }
            assert_eq!(data, b"abcdef");
            assert_eq!(others, [(Kind::Question, "path".into()), (Kind::Answer, "done".into())]);
        }
        let mut frames = Frames::default();
        frames.add(Bytes::from_static(b"no such command\n"));
        frames.next().unwrap_err();
    }
}
