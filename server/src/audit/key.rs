//! Keyed digests of texts that are not recorded in full: a reader of the log cannot confirm a guess, a holder of the key can.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use aws_lc_rs::hmac;
use telexec_executor::Program;

use super::files;
use crate::digest::{hex, sha256};

const KEY_BYTES: usize = 32;

/// The HMAC key, from the file `FILE.key` beside the log `FILE`.
#[derive(Debug)]
pub(super) struct Key {
    id: String,
    key: hmac::Key,
}

impl Key {
    /// The key of the log at `path`, created if missing. Must not run concurrently with itself.
    ///
    /// # Errors
    /// It can be neither read nor created, or is malformed.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let name = files::key_name(path);
        match files::open(&name)?.metadata()?.len() {
            0 => Self::make(&name),
            _ => Self::read(path),
        }
    }

    /// The key of the log at `path`.
    ///
    /// # Errors
    /// It cannot be read, or is malformed.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let name = files::key_name(path);
        let mut bytes = Vec::new();
        let missing = |error: io::Error| {
            let text = format!(
                "cannot read {}, the key of the log: {error}; the agent keeps it beside the log",
                name.display()
            );
            io::Error::new(error.kind(), text)
        };
        File::open(&name).map_err(missing)?.take(KEY_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        match bytes.len() {
            KEY_BYTES => Ok(Self::new(&bytes)),
            _ => Err(io::Error::other(format!("{} does not hold a key of {KEY_BYTES} bytes", name.display()))),
        }
    }

    fn make(name: &Path) -> io::Result<Self> {
        let mut bytes = [0; KEY_BYTES];
        aws_lc_rs::rand::fill(&mut bytes).map_err(|_| io::Error::other("no random numbers are available"))?;
        // atomic: the file is either whole or missing
        let (new, mut file) = files::new(name)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(new, name)?;
        Ok(Self::new(&bytes))
    }

    pub(super) fn new(bytes: &[u8]) -> Self {
        let id = sha256(bytes).chars().take(16).collect();
        Self { id, key: hmac::Key::new(hmac::HMAC_SHA256, bytes) }
    }

    /// An id that reveals nothing about the key.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// HMAC-SHA-256, in hexadecimal, of the text, or of the arguments, each followed by a NUL.
    pub(super) fn digest(&self, program: &Program) -> String {
        let mut context = hmac::Context::with_key(&self.key);
        match program {
            Program::Shell { text, .. } => context.update(text.as_bytes()),
            Program::Argv(argv) => argv.iter().for_each(|argument| {
                context.update(argument.as_bytes());
                context.update(b"\0");
            }),
        }
        hex(context.sign().as_ref())
    }
}

/// The id of the key of the log at `path`, and the digest of a command, as they are in records.
///
/// # Errors
/// The key cannot be read.
pub fn digest(path: &Path, program: &Program) -> io::Result<(String, String)> {
    let key = Key::read(path)?;
    Ok((key.id().to_owned(), key.digest(program)))
}
