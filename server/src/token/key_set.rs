//! The public keys of an issuer: a JWK Set (RFC 7517).

use std::io::Read;
use std::path::{Path, PathBuf};

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Header};
use serde::Deserialize;
use tracing::info;

use crate::reload;

/// More than any issuer publishes.
pub(super) const MAX_BYTES: usize = 1024 * 1024;

/// Each may be tried for a token that names none.
const MAX_KEYS: usize = 64;

/// Keys that signatures are verified with.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct KeySet(Vec<Key>);

struct Key {
    jwk: Jwk,
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.jwk == other.jwk
    }
}

impl Eq for Key {}

/// A JWK Set that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeySetError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{0} is not a JWK Set (RFC 7517)")]
    Malformed(String, #[source] serde_json::Error),
    #[error("{0} has no public key for signatures: RSA, P-256, P-384 or Ed25519")]
    Empty(String),
    #[error("{0} has more than {MAX_KEYS} keys for signatures")]
    TooMany(String),
    #[error("{0} has more than {MAX_BYTES} bytes")]
    TooLong(String),
}

/// Keys of other kinds are for others, and skipped.
#[derive(Deserialize)]
struct Set {
    keys: Vec<serde_json::Value>,
}

impl KeySet {
    /// From JSON; `from` is its name in errors.
    ///
    /// # Errors
    /// It is malformed, or has no key that can be used.
    pub(crate) fn parse(json: &[u8], from: &str) -> Result<Self, KeySetError> {
        let set: Set = serde_json::from_slice(json).map_err(|error| KeySetError::Malformed(from.to_owned(), error))?;
        // no keys at all are how an issuer withdraws the last one
        let is_empty = set.keys.is_empty();
        let keys: Vec<_> = set.keys.into_iter().filter_map(|key| Key::new(serde_json::from_value(key).ok()?)).collect();
        if keys.is_empty() && !is_empty {
            return Err(KeySetError::Empty(from.to_owned()));
        }
        if keys.len() > MAX_KEYS {
            return Err(KeySetError::TooMany(from.to_owned()));
        }
        Ok(Self(keys))
    }

    /// Whether this key is one of them.
    pub(super) fn contains(&self, jwk: &Jwk) -> bool {
        self.0.iter().any(|key| key.jwk == *jwk)
    }

    /// The keys that may have signed a token with this header.
    pub(super) fn candidates(&self, header: &Header) -> Vec<(&Jwk, &DecodingKey)> {
        let may_be = |key: &&Key| {
            let is_named = match (&header.kid, &key.jwk.common.key_id) {
                (Some(asked), Some(id)) => asked == id,
                // a token that names a key is not for one without a name, unless there is no other
                (Some(_), None) => self.0.len() == 1,
                (None, _) => true,
            };
            is_named && key.algorithms.contains(&header.alg)
        };
        self.0.iter().filter(may_be).map(|key| (&key.jwk, &key.key)).collect()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

impl Key {
    /// `None`: it is not a public key for signatures, or of a kind that is not supported.
    fn new(jwk: Jwk) -> Option<Self> {
        let common = &jwk.common;
        let signs = common.public_key_use.as_ref().is_none_or(|purpose| *purpose == PublicKeyUse::Signature);
        let operations = common.key_operations.as_ref();
        let verifies = operations.is_none_or(|operations| operations.contains(&KeyOperations::Verify));
        if !signs || !verifies {
            return None;
        }
        let possible = algorithms(&jwk.algorithm);
        let algorithms = match common.key_algorithm {
            Some(only) => possible.iter().copied().filter(|algorithm| only == (*algorithm).into()).collect(),
            None => possible.to_vec(),
        };
        let key = DecodingKey::from_jwk(&jwk).ok().filter(|_| !algorithms.is_empty())?;
        Some(Self { jwk, algorithms, key })
    }
}

/// What a key of this kind may be used with: no secret that both sides share.
fn algorithms(parameters: &AlgorithmParameters) -> &'static [Algorithm] {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    match parameters {
        AlgorithmParameters::RSA(_) => &[RS256, RS384, RS512, PS256, PS384, PS512],
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => &[ES256],
            EllipticCurve::P384 => &[ES384],
            _ => &[],
        },
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => &[EdDSA],
        _ => &[],
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("jwk", &self.jwk).finish_non_exhaustive()
    }
}

/// A file with a JWK Set.
#[derive(Debug)]
pub(crate) struct KeysFile(pub(super) PathBuf);

impl reload::Source for KeysFile {
    type Loaded = KeySet;
    type Error = KeySetError;
    const WHAT: &str = "token keys";

    fn files(&self) -> Vec<&Path> {
        vec![&self.0]
    }

    fn load(&self) -> Result<KeySet, KeySetError> {
        let read = |source| KeySetError::Read { path: self.0.clone(), source };
        let file = std::fs::File::open(&self.0).map_err(read)?;
        let mut json = Vec::new();
        file.take(MAX_BYTES as u64 + 1).read_to_end(&mut json).map_err(read)?;
        let path = self.0.display().to_string();
        if json.len() > MAX_BYTES {
            return Err(KeySetError::TooLong(path));
        }
        KeySet::parse(&json, &path)
    }

    fn log_loaded(keys: &KeySet) {
        info!(keys = keys.len(), "token keys loaded");
    }
}
