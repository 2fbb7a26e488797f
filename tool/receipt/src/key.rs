//! Ed25519 keys (RFC 8032), in PEM: private ones as PKCS#8, public ones as SubjectPublicKeyInfo (RFC 8410), which is what
//! `openssl genpkey -algorithm ed25519` and `openssl pkey -pubout` write.

use std::fmt::{self, Write};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use pem::{EncodeConfig, LineEnding, Pem};

const PRIVATE: &str = "PRIVATE KEY";
const PUBLIC: &str = "PUBLIC KEY";
const BEGIN: &[u8] = b"-----BEGIN ";
/// What precedes the 32 bytes of a public key in its DER encoding.
const PUBLIC_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// It is another kind of key.
    #[error("it is not an Ed25519 key in PKCS#8: make one with telexec receipt keygen")]
    Private,
    /// It is not PEM, or there is nothing in it.
    #[error("it has no public key in PEM: telexec receipt key prints that of an agent")]
    Missing,
    /// Something in it is no such key.
    #[error(
        "it has something other than Ed25519 public keys in PEM ({0}): telexec receipt key prints that of an agent"
    )]
    NotPublic(String),
    /// The system has no random numbers.
    #[error("a key cannot be generated: the system has no random numbers")]
    Generate,
}

/// A private key, which signs receipts.
pub struct SigningKey {
    pair: Ed25519KeyPair,
    public: PublicKey,
}

impl SigningKey {
    /// A new key, with its PEM.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn generate() -> Result<(Self, String), KeyError> {
        let pair = Ed25519KeyPair::generate().map_err(|_| KeyError::Generate)?;
        let pkcs8 = pair.to_pkcs8v1().map_err(|_| KeyError::Generate)?;
        Ok((Self::from_pair(pair)?, encode(PRIVATE, pkcs8.as_ref())))
    }

    /// The key in DER (PKCS#8).
    ///
    /// # Errors
    /// It is another kind of key.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, KeyError> {
        Self::from_pair(Ed25519KeyPair::from_pkcs8(der).map_err(|_| KeyError::Private)?)
    }

    fn from_pair(pair: Ed25519KeyPair) -> Result<Self, KeyError> {
        let der: PublicKeyX509Der<'_> = pair.public_key().as_der().map_err(|_| KeyError::Private)?;
        let public = PublicKey::from_der(der.as_ref()).ok_or(KeyError::Private)?;
        Ok(Self { pair, public })
    }

    /// The key that verifies what this one signs.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.pair.sign(message).as_ref().to_vec()
    }
}

/// The private part is not shown.
impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("public", &self.public).finish_non_exhaustive()
    }
}

/// A public key, which verifies receipts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    der: Vec<u8>,
    id: String,
}

impl PublicKey {
    /// The keys in a PEM file, at least one.
    ///
    /// # Errors
    /// There is none, or something else.
    pub fn from_pem(text: &[u8]) -> Result<Vec<Self>, KeyError> {
        let blocks = pem::parse_many(text).ok().filter(|blocks| !blocks.is_empty()).ok_or(KeyError::Missing)?;
        // what is cut off is no block
        if text.windows(BEGIN.len()).filter(|window| *window == BEGIN).count() != blocks.len() {
            return Err(KeyError::NotPublic("an incomplete block".into()));
        }
        let key = |block: &Pem| match block.tag() {
            PUBLIC => Self::from_der(block.contents()).ok_or_else(|| KeyError::NotPublic("another kind of key".into())),
            tag => Err(KeyError::NotPublic(tag.escape_debug().take(64).collect())),
        };
        blocks.iter().map(key).collect()
    }

    fn from_der(der: &[u8]) -> Option<Self> {
        der.strip_prefix(&PUBLIC_PREFIX).filter(|raw| raw.len() == 32)?;
        Some(Self { der: der.to_owned(), id: hex(digest(&SHA256, der).as_ref()) })
    }

    /// In PEM.
    pub fn to_pem(&self) -> String {
        encode(PUBLIC, &self.der)
    }

    /// The SHA-256 of its DER encoding, in hexadecimal: what `openssl pkey -pubin -outform der | sha256sum` prints.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let raw = self.der.get(PUBLIC_PREFIX.len()..).unwrap_or_default();
        UnparsedPublicKey::new(&ED25519, raw).verify(message, signature).is_ok()
    }
}

fn encode(label: &str, der: &[u8]) -> String {
    pem::encode_config(&Pem::new(label, der), EncodeConfig::new().set_line_ending(LineEnding::LF))
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // writing to a String cannot fail
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By `openssl genpkey -algorithm ed25519`, and `openssl pkey -pubout` of it.
    const OPENSSL: &str = "-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VwBCIEIFp+tektLJv01ACXDJsnbRf8S3onC0QN5R8KKHawBgqp\n\
        -----END PRIVATE KEY-----\n";
    const OPENSSL_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\n\
        MCowBQYDK2VwAyEAQ4E3dnnb/s/TNyuEWJO6JLk2Ej8pystYF6X6x0vIRm8=\n\
        -----END PUBLIC KEY-----\n";

    fn private(text: &str) -> Result<SigningKey, KeyError> {
        SigningKey::from_pkcs8(pem::parse(text).unwrap().contents())
    }

    #[test]
    fn keys_of_openssl_are_read() {
        let key = private(OPENSSL).unwrap();
        assert_eq!(key.public().to_pem(), OPENSSL_PUBLIC);
        let both = PublicKey::from_pem(OPENSSL_PUBLIC.repeat(2).as_bytes()).unwrap();
        assert!(both.len() == 2 && both.iter().all(|read| read == key.public()));
        assert_eq!(key.public().id(), "0845755c600a67801707b5a1aeba6da9a888c7457749a9d75092c99139d3a063");
    }

    #[test]
    fn a_new_key_is_read_again() {
        let (key, text) = SigningKey::generate().unwrap();
        assert_eq!(private(&text).unwrap().public(), key.public());
        assert!(!format!("{key:?}").contains("pair"));
    }

    #[test]
    fn other_keys_are_refused() {
        let shorter = OPENSSL_PUBLIC.replace("MCow", "MCkw");
        for text in [
            "",
            "-----BEGIN",
            OPENSSL,
            &shorter,
            &format!("{OPENSSL_PUBLIC}{OPENSSL}"),
            &format!("{OPENSSL_PUBLIC}-----BEGIN PUBLIC KEY-----\nMCo"),
        ] {
            assert!(PublicKey::from_pem(text.as_bytes()).is_err(), "{text}");
        }
        for text in [OPENSSL_PUBLIC, &OPENSSL.replace("BQYDK2VwBCIE", "BQYDK2VuBCIE")] {
            assert!(private(text).is_err(), "{text}");
        }
    }
}
