//! Who asks: API keys, the tokens of sandboxes, signatures of URLs, and the user that a call names.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use http::HeaderMap;
use http::header::AUTHORIZATION;

use crate::failure::{Code, Failure};

const MAX_USER_BYTES: usize = 256;

/// The API keys that are accepted, as hashes: they are of one length, so a comparison takes as long for any.
pub(crate) struct Keys(Option<Vec<Vec<u8>>>);

#[derive(Debug, thiserror::Error)]
pub(crate) enum KeysError {
    #[error("{path}: cannot be read")]
    Unreadable { path: String, source: std::io::Error },
    #[error("{path}: has no key: write one to each line")]
    Empty { path: String },
}

impl Keys {
    /// Without a file anyone may ask.
    pub(crate) fn read(path: Option<&Path>) -> Result<Self, KeysError> {
        let Some(path) = path else { return Ok(Self(None)) };
        let name = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|source| KeysError::Unreadable { path: name.clone(), source })?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let keys: Vec<_> = lines.map(|line| sha256(line.as_bytes())).collect();
        if keys.is_empty() { Err(KeysError::Empty { path: name }) } else { Ok(Self(Some(keys))) }
    }

    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Failure> {
        let Some(keys) = &self.0 else { return Ok(()) };
        let refused = |why| Failure::new(Code::Unauthenticated, why);
        let given = headers.get("x-api-key").ok_or_else(|| refused("the header X-API-KEY is missing"))?;
        let given = sha256(given.as_bytes());
        let known = keys.iter().fold(false, |known, key| known | verify_slices_are_equal(key, &given).is_ok());
        if known { Ok(()) } else { Err(refused("the API key is not one of this gateway's")) }
    }
}

fn sha256(bytes: &[u8]) -> Vec<u8> {
    digest(&SHA256, bytes).as_ref().to_vec()
}

/// Whether both are the same, in a time that does not tell where they differ.
pub(crate) fn is_same(given: &[u8], expected: &str) -> bool {
    verify_slices_are_equal(&sha256(given), &sha256(expected.as_bytes())).is_ok()
}

/// A new secret.
pub(crate) fn secret() -> Result<String, Failure> {
    let mut bytes = [0; 32];
    let failed = |_| Failure::new(Code::Internal, "the system has no random numbers");
    aws_lc_rs::rand::fill(&mut bytes).map_err(failed)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The user that a call names.
pub(crate) fn user(headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let Some(value) = headers.get(AUTHORIZATION) else { return Ok(None) };
    let malformed = || Failure::new(Code::Unauthenticated, "authorization: expected \"Basic\" and a user's name");
    let encoded = value.to_str().ok().and_then(|text| text.strip_prefix("Basic ")).ok_or_else(malformed)?;
    let decoded = STANDARD.decode(encoded.trim()).map_err(|_| malformed())?;
    let text = String::from_utf8(decoded).map_err(|_| malformed())?;
    named(text.split_once(':').map_or(text.as_str(), |(name, _)| name))
}

/// The same, where the name is in the query.
pub(crate) fn named(name: &str) -> Result<Option<String>, Failure> {
    match name {
        "" => Ok(None),
        name if name.len() > MAX_USER_BYTES || name.contains('\0') => {
            Err(Failure::invalid("the user's name is malformed"))
        }
        name => Ok(Some(name.to_owned())),
    }
}

/// What a signed URL has.
pub(crate) struct Signature<'a> {
    pub(crate) path: &'a str,
    /// "read" or "write".
    pub(crate) operation: &'a str,
    pub(crate) user: &'a str,
    pub(crate) signature: &'a str,
    pub(crate) expiration: Option<&'a str>,
}

impl Signature<'_> {
    /// Whether it was made with this token.
    pub(crate) fn is_of(&self, token: &str) -> bool {
        let Self { path, operation, user, .. } = self;
        let mut signed = format!("{path}:{operation}:{user}:{token}");
        if let Some(expiration) = self.expiration {
            signed = format!("{signed}:{expiration}");
        }
        let expected = format!("v1_{}", STANDARD_NO_PAD.encode(sha256(signed.as_bytes())));
        is_same(self.signature.as_bytes(), &expected)
    }

    pub(crate) fn is_expired(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        // SDKs add what they are given to the time: "1764000000.5" is possible
        let is_good = |expiration: &str| expiration.parse::<f64>().is_ok_and(|expiration| expiration >= now.floor());
        self.expiration.is_some_and(|expiration| !is_good(expiration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_the_name_before_the_colon() {
        let asked = |text: &str| user(&HeaderMap::from_iter([(AUTHORIZATION, text.parse().unwrap())]));
        assert_eq!(asked(&format!("Basic {}", STANDARD.encode("anna:"))), Ok(Some("anna".to_owned())));
        assert_eq!(asked(&format!("Basic {}", STANDARD.encode(":"))), Ok(None));
        assert_eq!(user(&HeaderMap::new()), Ok(None));
        for wrong in ["Bearer x", "Basic !", "Basic", &format!("Basic {}", STANDARD.encode([0xff]))] {
            assert!(asked(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_signature_is_of_one_token_path_and_user() {
        let of = |path, user, expiration| Signature {
            path,
            operation: "read",
            user,
            // sha256 of "a/b:read::token"
            signature: "v1_",
            expiration,
        };
        assert!(!of("a/b", "", None).is_of("token"));
        let expected = format!("v1_{}", STANDARD_NO_PAD.encode(sha256(b"a/b:read::token:1")));
        let signed = Signature { signature: &expected, ..of("a/b", "", Some("1")) };
        assert!(signed.is_of("token") && signed.is_expired());
        assert!(!signed.is_of("other"));
        assert!(!Signature { path: "a", ..of("a", "", Some("1")) }.is_of("token"));
    }
}
