//! One file that is being written, by the thread alone.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use serde::Serialize;

use super::cast::{Encoder, Event};
use crate::digest::hex;

/// What was recorded.
#[derive(Debug, Serialize)]
pub(in crate::audit) struct Recorded {
    /// The name of the file in the directory of the recordings.
    pub(in crate::audit) file: String,
    pub(in crate::audit) bytes: u64,
    /// Of the file; `None`: it was not written to the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::audit) sha256: Option<String>,
    /// Why it is incomplete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::audit) error: Option<String>,
}

/// A recording as a file.
pub(super) struct CastFile {
    file: File,
    encoder: Encoder,
    /// Bytes in the file.
    written: u64,
    digest: Context,
    /// Lines that are not in the file.
    pending: Vec<u8>,
}

impl CastFile {
    pub(super) fn new(file: File, encoder: Encoder, header: Vec<u8>) -> Self {
        Self { file, encoder, written: 0, digest: Context::new(&SHA256), pending: header }
    }

    /// One that another agent has written to, without the line that it has not finished.
    ///
    /// # Errors
    /// It cannot be read or cut, or is empty.
    pub(super) fn resume(file: File, encoder: Encoder) -> io::Result<Self> {
        let mut this = Self::new(file, encoder, Vec::new());
        let (mut reader, mut line) = (BufReader::new(&this.file), Vec::new());
        while reader.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            this.digest.update(&line);
            this.written += line.len() as u64;
            line.clear();
        }
        match this.written {
            0 => Err(io::Error::other("it is empty")),
            written => this.file.set_len(written).map(|()| this),
        }
    }

    /// Bytes of the file and of what is to be written.
    pub(super) fn length(&self) -> u64 {
        self.written + self.pending.len() as u64
    }

    pub(super) fn pending(&self) -> u64 {
        self.pending.len() as u64
    }

    /// Adds an event, unless that would make it longer than `most`.
    ///
    /// # Errors
    /// It would.
    pub(super) fn add(&mut self, at: Duration, event: &Event, most: u64) -> io::Result<()> {
        let line = self.encoder.encode(at, event)?;
        if self.length() + line.len() as u64 > most {
            let full = "it takes all that one may, audit.recordings.max_bytes";
            return Err(io::Error::new(io::ErrorKind::StorageFull, full));
        }
        self.pending.extend(line);
        Ok(())
    }

    /// Drops the lines that are not in the file.
    pub(super) fn drop_pending(&mut self) {
        self.pending.clear();
    }

    /// Writes what is pending: all of it or nothing.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        self.file.write_all(&pending).inspect_err(|_| drop(self.file.set_len(self.written)))?;
        self.digest.update(&pending);
        self.written += pending.len() as u64;
        Ok(())
    }

    /// Writes the rest.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn finish(&mut self, at: Duration) -> io::Result<()> {
        let rest = self.encoder.finish(at)?;
        self.pending.extend(rest);
        self.flush()
    }

    /// The bytes of the file, and its digest.
    pub(super) fn digest(&self) -> (u64, String) {
        (self.written, hex(self.digest.clone().finish().as_ref()))
    }
}
