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
    /// Of the file; `None`: what is in it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::audit) sha256: Option<String>,
    /// Why it is incomplete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::audit) error: Option<String>,
    /// An agent was restarted meanwhile: the last input and output before that may be missing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(in crate::audit) continued: bool,
}

/// How the marker begins after which nothing is recorded.
const ENDS: &str = "the recording ends here: ";

/// Why a recording was ended, if this line is that marker.
fn reason_of_end(line: &[u8]) -> Option<String> {
    let (_, code, text) = serde_json::from_slice::<(f64, String, String)>(line).ok()?;
    Some(text.strip_prefix(ENDS).filter(|_| code == "m")?.to_owned())
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
    /// It has a piece of a line at its end.
    is_torn: bool,
}

impl CastFile {
    pub(super) fn new(file: File, encoder: Encoder, header: Vec<u8>) -> Self {
        Self { file, encoder, written: 0, digest: Context::new(&SHA256), pending: header, is_torn: false }
    }

    /// One that another agent has written to, without the line that it has not finished; and why it was ended, if it was. `works`
    /// is called while it is read.
    ///
    /// # Errors
    /// It cannot be read or cut, or is empty.
    pub(super) fn resume(file: File, encoder: Encoder, works: impl Fn()) -> io::Result<(Self, Option<String>)> {
        let mut this = Self::new(file, encoder, Vec::new());
        let (mut reader, mut line, mut last) = (BufReader::new(&this.file), Vec::new(), Vec::new());
        while reader.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            this.digest.update(&line);
            this.written += line.len() as u64;
            std::mem::swap(&mut line, &mut last);
            line.clear();
            works();
        }
        if this.written == 0 {
            return Err(io::Error::other("it is empty"));
        }
        this.file.set_len(this.written)?;
        Ok((this, reason_of_end(&last)))
    }

    /// Bytes of the file and of what is to be written.
    pub(super) fn length(&self) -> u64 {
        self.written + self.pending.len() as u64
    }

    /// Adds an event, as much of it as leaves the file no longer than `most`.
    ///
    /// # Errors
    /// That is not all of it.
    pub(super) fn add(&mut self, at: Duration, event: &Event, most: u64) -> io::Result<()> {
        let room = usize::try_from(most.saturating_sub(self.length())).unwrap_or(usize::MAX);
        let mut encoder = self.encoder.clone();
        let line = encoder.encode(at, event)?;
        if line.len() <= room {
            self.encoder = encoder;
            self.pending.extend(line);
            return Ok(());
        }
        self.pending.extend(self.encoder.encode(at, &event.cut_to_line(room))?);
        Err(io::Error::new(io::ErrorKind::StorageFull, "it has reached its limit, audit.recordings.max_bytes"))
    }

    /// Adds the marker that it ends before its execution, which may exceed any limit.
    ///
    /// # Errors
    /// As [`Encoder::encode`].
    pub(super) fn end(&mut self, at: Duration, reason: &str) -> io::Result<()> {
        self.add(at, &Event::Marker(format!("{ENDS}{reason}")), u64::MAX)
    }

    /// Writes what is pending: all of it or nothing.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        if self.is_torn || pending.is_empty() {
            return Ok(());
        }
        self.file.write_all(&pending).inspect_err(|_| self.is_torn = self.file.set_len(self.written).is_err())?;
        self.digest.update(&pending);
        self.written += pending.len() as u64;
        Ok(())
    }

    /// Drops what is pending.
    pub(super) fn drop_pending(&mut self) {
        self.pending.clear();
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

    pub(super) fn into_file(self) -> File {
        self.file
    }

    /// The bytes of the file, and its digest; `None`: what is in it is not known.
    pub(super) fn digest(&self) -> (u64, Option<String>) {
        let digest = || hex(self.digest.clone().finish().as_ref());
        (self.written, (!self.is_torn).then(digest))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::path::Path;

    use telexec_executor::OutputStream;

    use super::*;

    fn open(path: &Path) -> File {
        OpenOptions::new().read(true).append(true).create(true).open(path).unwrap()
    }

    fn out(text: &str) -> Event {
        Event::Output(OutputStream::Stdout, text.into())
    }

    #[test]
    fn a_line_that_was_not_finished_is_cut_off() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.cast");
        std::fs::write(&path, "header\n[0.0, \"o\", \"a\"]\n[0.1, \"o\", \"b").unwrap();
        let resume = || CastFile::resume(open(&path), Encoder::new(true, false), || ());
        let (mut file, end) = resume().unwrap();
        assert_eq!(end, None);
        file.add(Duration::from_secs(1), &out("c"), u64::MAX).unwrap();
        file.finish(Duration::from_secs(1)).unwrap();
        let written = "header\n[0.0, \"o\", \"a\"]\n[1.000000, \"o\", \"c\"]\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), written);
        let sha256 = crate::digest::sha256(written.as_bytes());
        assert_eq!(file.digest(), (written.len() as u64, Some(sha256)));
        file.end(Duration::from_secs(2), "full").unwrap();
        file.flush().unwrap();
        let digest = file.digest();
        let (file, end) = resume().unwrap();
        assert_eq!((file.digest(), end.as_deref()), (digest, Some("full")));
        std::fs::write(&path, "head").unwrap();
        assert!(resume().is_err());
    }

    #[test]
    fn as_much_is_written_as_there_is_room_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.cast");
        let mut file = CastFile::new(open(&path), Encoder::new(true, false), b"header\n".to_vec());
        file.add(Duration::ZERO, &out("whole"), 1000).unwrap();
        file.add(Duration::ZERO, &out(&"\u{1}".repeat(1000)), 1000).unwrap_err();
        file.flush().unwrap();
        let (length, _) = file.digest();
        assert!((900..=1000).contains(&length), "{length}");
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("\"]\n"));
    }
}
