//! Signatures of messages by nkeys (Ed25519), which say who sent them.
//!
//! What is signed is, in lines: `telexec-nats-1`, the subject, the expiry, the content type, the method and the nonce (empty
//! without one), and then the payload.

use std::fmt;
use std::path::Path;

use async_nats::HeaderMap;
use aws_lc_rs::digest::{SHA256, digest};
use nkeys::KeyPair;

use crate::headers::{self, CONTENT_TYPE, EXPIRES, KEY, METHOD, NONCE, SIGNATURE};
use crate::settings::{BadFile, seed};

const VERSION: &str = "telexec-nats-1";

/// What is signed of a message to this subject.
pub fn signed(subject: &str, headers: &HeaderMap, payload: &[u8]) -> Vec<u8> {
    let header = |name| headers::get(headers, name).unwrap_or_default();
    let lines = [VERSION, subject, header(EXPIRES), header(CONTENT_TYPE), header(METHOD), header(NONCE)];
    let mut signed = lines.join("\n").into_bytes();
    signed.push(b'\n');
    signed.extend_from_slice(payload);
    signed
}

/// What tells requests with one execution ID apart: the SHA-256 of the payload, and who sent it, if that is known.
pub fn request_digest(payload: &[u8], caller: &str) -> String {
    let sum = headers::to_base64(digest(&SHA256, payload).as_ref());
    // a space at the end would be lost
    if caller.is_empty() { sum } else { format!("{sum} {caller}") }
}

/// Signs messages.
pub struct Signer {
    pair: KeyPair,
}

impl Signer {
    /// With the seed in a file.
    ///
    /// # Errors
    /// The file cannot be read, or has none.
    pub fn load(file: &Path) -> Result<Self, BadFile> {
        seed(file).map(|(_, pair)| Self { pair })
    }

    /// The public key.
    pub fn key(&self) -> String {
        self.pair.public_key()
    }

    /// Adds the signature, for the headers that are set.
    ///
    /// # Errors
    /// Never with a seed.
    pub fn sign(&self, subject: &str, headers: &mut HeaderMap, payload: &[u8]) -> Result<(), nkeys::error::Error> {
        headers::set(headers, KEY, &self.key());
        let signature = self.pair.sign(&signed(subject, headers, payload))?;
        headers::set(headers, SIGNATURE, &headers::to_base64(&signature));
        Ok(())
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("key", &self.key()).finish_non_exhaustive()
    }
}
