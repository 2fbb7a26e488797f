//! One-time tokens.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use x509_parser::prelude::{FromDer, X509Certificate};

/// What a token begins with: programs that look for secrets in files can find it.
const PREFIX: &str = "telexec-enroll-1";

/// Lets one machine get one certificate: `telexec-enroll-1/NAME/CA_KEY/SECRET`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    name: String,
    ca_key_sha256: [u8; 32],
    secret: [u8; 32],
}

/// A text that is not a token. It is not in the message, since it may be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a token of `telexec certs token`, or not the whole of it")]
pub struct InvalidToken;

impl Token {
    /// A new one for a certificate with this name, of the CA with this public key (SubjectPublicKeyInfo, DER). `None`: there
    /// is no randomness.
    pub fn generate(name: &str, ca_key: &[u8]) -> Option<Self> {
        let mut secret = [0; 32];
        aws_lc_rs::rand::fill(&mut secret).ok()?;
        Some(Self { name: name.to_owned(), ca_key_sha256: sha256(ca_key), secret })
    }

    /// The base name of the machine's files. What the certificate says is known to the CA.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether this is a certificate (DER) of the CA that made the token. The key is compared, since the CA keeps it when its
    /// certificate is renewed.
    pub(crate) fn is_of(&self, ca: &[u8]) -> bool {
        let parsed = X509Certificate::from_der(ca);
        parsed.is_ok_and(|(_, ca)| sha256(ca.public_key().raw) == self.ca_key_sha256)
    }

    /// What only the CA and the machine know.
    pub fn secret(&self) -> &[u8; 32] {
        &self.secret
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [ca_key, secret] = [self.ca_key_sha256, self.secret].map(|bytes| URL_SAFE_NO_PAD.encode(bytes));
        write!(f, "{PREFIX}/{}/{ca_key}/{secret}", self.name)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("name", &self.name).finish_non_exhaustive()
    }
}

impl FromStr for Token {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let parts: Vec<_> = text.trim().split('/').collect();
        let [PREFIX, name, ca_key, secret] = parts[..] else { return Err(InvalidToken) };
        let bytes = |text| URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok();
        match (bytes(ca_key), bytes(secret)) {
            (Some(ca_key_sha256), Some(secret)) if is_name(name) => {
                Ok(Self { name: name.to_owned(), ca_key_sha256, secret })
            }
            _ => Err(InvalidToken),
        }
    }
}

/// Whether a certificate can have this name, which is also the base name of its files.
pub fn is_name(name: &str) -> bool {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-@:".contains(&byte));
    plain && !name.is_empty() && !name.starts_with(['.', '-'])
}

fn sha256(data: &[u8]) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest::digest(&digest::SHA256, data).as_ref());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_is_written() {
        let token = Token::generate("web1.example.org", b"ca").unwrap();
        let text = token.to_string();
        assert_eq!(format!("{text}\n").parse(), Ok(token.clone()));
        assert_ne!(Token::generate("web1.example.org", b"ca"), Some(token));
        for wrong in
            ["", "web1", &text[1..], &text[..text.len() - 1], &format!("{text}/x"), &text.replace("web1", "..")]
        {
            assert_eq!(wrong.parse::<Token>(), Err(InvalidToken), "{wrong}");
        }
    }

    #[test]
    fn a_token_is_of_a_ca_whatever_certificate_its_key_has() {
        let [key, other] = [(); 2].map(|()| rcgen::KeyPair::generate().unwrap());
        let token = Token::generate("web1", &rcgen::PublicKeyData::subject_public_key_info(&key)).unwrap();
        for name in ["ca", "the same, renewed"] {
            let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
            assert!(token.is_of(params.self_signed(&key).unwrap().der()));
            assert!(!token.is_of(params.self_signed(&other).unwrap().der()));
        }
        assert!(!token.is_of(b"nothing"));
    }

    #[test]
    fn a_secret_is_not_shown_by_accident() {
        let token = Token::generate("web1", b"ca").unwrap();
        let secret = URL_SAFE_NO_PAD.encode(token.secret());
        assert!(!format!("{token:?}").contains(&secret) && token.to_string().contains(&secret));
    }
}
