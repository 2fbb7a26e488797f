//! SHA-256 and hexadecimal.

use std::fmt::Write;
use std::io::{self, Read};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aws_lc_rs::digest::{Context, SHA256, digest};
use telexec_executor::OutputStream;

/// The SHA-256 of these bytes, in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

/// The SHA-256 of the rest of a file, in hexadecimal.
///
/// # Errors
/// It cannot be read.
pub(crate) fn sha256_of(file: &mut impl Read) -> io::Result<String> {
    telexec_receipt::sha256(file)
}

/// The SHA-256 of these one after the other, in hexadecimal.
pub(crate) fn sha256_of_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut context = Context::new(&SHA256);
    parts.into_iter().for_each(|part| context.update(part));
    hex(context.finish().as_ref())
}

/// The SHA-256 of each output stream of a command.
pub(crate) struct OutputDigests {
    // one task feeds both, so the locks are uncontended
    stdout: Mutex<Context>,
    stderr: Mutex<Context>,
}

impl OutputDigests {
    /// Of no output.
    pub(crate) fn new() -> Self {
        Self { stdout: Mutex::new(Context::new(&SHA256)), stderr: Mutex::new(Context::new(&SHA256)) }
    }

    /// Adds the next output.
    pub(crate) fn update(&self, stream: OutputStream, data: &[u8]) {
        self.of(stream).update(data);
    }

    /// Of what the command has written so far, in hexadecimal.
    pub(crate) fn sha256(&self, stream: OutputStream) -> String {
        hex(self.of(stream).clone().finish().as_ref())
    }

    fn of(&self, stream: OutputStream) -> MutexGuard<'_, Context> {
        let context = match stream {
            OutputStream::Stdout => &self.stdout,
            OutputStream::Stderr => &self.stderr,
        };
        context.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // writing to a String cannot fail
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of this text in hexadecimal; `None`: it is none.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}
