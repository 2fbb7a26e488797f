//! The names of blobs: a hash and a size.

use std::fmt;

use aws_lc_rs::digest::{Context, SHA256};
use bazel_remote_apis::build::bazel::remote::execution::v2 as reapi;

use crate::args::DigestFunction;

const HASH_BYTES: usize = 32;

/// The name of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Digest {
    hash: [u8; HASH_BYTES],
    pub(crate) size: u64,
}

/// A digest that names no blob.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no digest: expected 64 lower-case hexadecimal digits, and a size")]
pub(crate) struct InvalidDigest(String);

impl Digest {
    /// The blob's hash, in hexadecimal digits.
    pub(crate) fn hash(&self) -> String {
        self.hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Of the name that [`hash`](Self::hash) gives a file.
    pub(crate) fn of_name(hash: &str, size: u64) -> Option<Self> {
        let mut bytes = [0; HASH_BYTES];
        let is_hexadecimal = hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if hash.len() != 2 * HASH_BYTES || !is_hexadecimal {
            return None;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(hash.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self { hash: bytes, size })
    }

    pub(crate) fn to_wire(self) -> reapi::Digest {
        reapi::Digest { hash: self.hash(), size_bytes: i64::try_from(self.size).unwrap_or(i64::MAX) }
    }
}

impl TryFrom<&reapi::Digest> for Digest {
    type Error = InvalidDigest;

    fn try_from(wire: &reapi::Digest) -> Result<Self, Self::Error> {
        let size = u64::try_from(wire.size_bytes).ok();
        let digest = size.and_then(|size| Self::of_name(&wire.hash, size));
        digest.ok_or_else(|| InvalidDigest(format!("{}/{}", wire.hash, wire.size_bytes)))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.hash(), self.size)
    }
}

impl DigestFunction {
    /// Of a whole blob.
    pub(crate) fn digest(self, blob: &[u8]) -> Digest {
        let mut hasher = self.hasher();
        hasher.update(blob);
        hasher.finish()
    }

    /// Of a blob that comes in pieces.
    pub(crate) fn hasher(self) -> Hasher {
        let state = match self {
            Self::Sha256 => State::Sha256(Context::new(&SHA256)),
            Self::Blake3 => State::Blake3(Box::default()),
        };
        Hasher { state, size: 0 }
    }

    pub(crate) fn to_wire(self) -> reapi::digest_function::Value {
        match self {
            Self::Sha256 => reapi::digest_function::Value::Sha256,
            Self::Blake3 => reapi::digest_function::Value::Blake3,
        }
    }

    /// In names of directories.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Blake3 => "blake3",
        }
    }

    /// The blob in a name of the ByteStream API, which leaves out the functions that a hash is long enough to tell.
    pub(crate) fn resource(self, digest: &Digest) -> String {
        match self {
            Self::Sha256 => format!("blobs/{digest}"),
            Self::Blake3 => format!("blobs/blake3/{digest}"),
        }
    }
}

/// A digest in the making.
pub(crate) struct Hasher {
    state: State,
    size: u64,
}

enum State {
    Sha256(Context),
    Blake3(Box<blake3::Hasher>),
}

impl Hasher {
    pub(crate) fn update(&mut self, piece: &[u8]) {
        self.size += piece.len() as u64;
        match &mut self.state {
            State::Sha256(context) => context.update(piece),
            State::Blake3(hasher) => drop(hasher.update(piece)),
        }
    }

    pub(crate) fn finish(self) -> Digest {
        let mut hash = [0; HASH_BYTES];
        match self.state {
            State::Sha256(context) => hash.copy_from_slice(context.finish().as_ref()),
            State::Blake3(hasher) => hash = hasher.finalize().into(),
        }
        Digest { hash, size: self.size }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_have_the_names_that_others_give_them() {
        for (function, hash) in [
            (DigestFunction::Sha256, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            (DigestFunction::Blake3, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
        ] {
            let digest = function.digest(b"");
            assert_eq!(digest.to_string(), format!("{hash}/0"));
            assert_eq!(Digest::try_from(&digest.to_wire()), Ok(digest));
        }
    }

    #[test]
    fn what_is_no_digest_is_refused() {
        let hash = "e".repeat(64);
        for (hash, size_bytes) in [
            ("", 0),
            (&hash[1..], 1),
            (&hash.to_uppercase(), 1),
            (&hash, -1),
            (&format!("/{}", &hash[1..]), 1),
            (&"é".repeat(32), 1),
        ] {
            let wire = reapi::Digest { hash: hash.to_owned(), size_bytes };
            assert!(Digest::try_from(&wire).is_err(), "{wire:?}");
        }
    }
}
