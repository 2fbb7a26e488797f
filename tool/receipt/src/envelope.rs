//! The envelope of a receipt: DSSE, the Dead Simple Signing Envelope, version 1.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use serde::{Deserialize, Serialize};

use crate::key::{PublicKey, SigningKey};
use crate::statement::{PREDICATE_TYPE, STATEMENT_TYPE, Statement};

/// Of an in-toto statement.
const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload_type: String,
    /// In base64.
    payload: String,
    signatures: Vec<Signature>,
}

#[derive(Serialize, Deserialize)]
struct Signature {
    /// A hint only.
    #[serde(default)]
    keyid: String,
    /// In base64.
    sig: String,
}

/// Why a receipt is not to be trusted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiptError {
    /// It is not an envelope.
    #[error("is not a receipt: it is not a DSSE envelope")]
    Envelope(#[source] serde_json::Error),
    /// Its base64 is broken.
    #[error("is not a receipt: its payload is not base64")]
    Base64,
    /// None of the keys has signed it.
    #[error("none of the given keys has signed it; it names the key {}", if .0.is_empty() { "none" } else { .0 })]
    Signature(String),
    /// It is signed, but says something else.
    #[error("it is signed, but is not a receipt of telexec: it is {0:?}")]
    Type(String),
    /// It is signed, but cannot be read.
    #[error("it is signed, but its statement cannot be read")]
    Statement(#[source] serde_json::Error),
}

/// Signs a statement. Returns the envelope: one line of JSON, without a newline.
///
/// # Errors
/// It cannot be encoded.
pub fn sign(statement: &Statement, key: &SigningKey) -> Result<String, serde_json::Error> {
    let payload = serde_json::to_vec(statement)?;
    let sig = STANDARD.encode(key.sign(&to_be_signed(PAYLOAD_TYPE, &payload)));
    let signatures = vec![Signature { keyid: key.public().id().to_owned(), sig }];
    let envelope = Envelope { payload_type: PAYLOAD_TYPE.to_owned(), payload: STANDARD.encode(payload), signatures };
    serde_json::to_string(&envelope)
}

/// The statement of an envelope that one of these keys has signed.
///
/// # Errors
/// None of them has, or it is not a receipt.
pub fn verify(envelope: &[u8], keys: &[PublicKey]) -> Result<Statement, ReceiptError> {
    let Envelope { payload_type, payload, signatures } =
        serde_json::from_slice(envelope).map_err(ReceiptError::Envelope)?;
    let payload = from_base64(&payload).ok_or(ReceiptError::Base64)?;
    let signed = to_be_signed(&payload_type, &payload);
    let is_signed = |signature: &Signature| {
        let sig = from_base64(&signature.sig);
        sig.is_some_and(|sig| keys.iter().any(|key| key.verifies(&signed, &sig)))
    };
    if !signatures.iter().any(is_signed) {
        let named = signatures.into_iter().next().map(|signature| signature.keyid);
        return Err(ReceiptError::Signature(named.unwrap_or_default().escape_debug().take(64).collect()));
    }
    if payload_type != PAYLOAD_TYPE {
        return Err(ReceiptError::Type(payload_type));
    }
    read(&payload)
}

/// What a signed payload says.
fn read(payload: &[u8]) -> Result<Statement, ReceiptError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Types {
        #[serde(rename = "_type")]
        statement: String,
        predicate_type: String,
    }
    let types: Types = serde_json::from_slice(payload).map_err(ReceiptError::Statement)?;
    if types.statement != STATEMENT_TYPE {
        return Err(ReceiptError::Type(types.statement));
    }
    if types.predicate_type != PREDICATE_TYPE {
        return Err(ReceiptError::Type(types.predicate_type));
    }
    serde_json::from_slice(payload).map_err(ReceiptError::Statement)
}

/// Either of the two alphabets, as the specification says.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).or_else(|_| URL_SAFE.decode(text)).ok()
}

/// The specification's PAE: what a signature is over.
fn to_be_signed(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut text = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    text.extend_from_slice(payload);
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Receipt, Subject};

    fn statement() -> Statement {
        let receipt = Receipt { execution_id: "e1".into(), ..Receipt::default() };
        Statement::new(vec![Subject::sha256("command", "00")], receipt)
    }

    fn envelope(key: &SigningKey, payload_type: &str, payload: &str) -> String {
        let sig = STANDARD.encode(key.sign(&to_be_signed(payload_type, payload.as_bytes())));
        let payload = STANDARD.encode(payload);
        format!(r#"{{"payloadType":"{payload_type}","payload":"{payload}","signatures":[{{"sig":"{sig}"}}]}}"#)
    }

    #[test]
    fn what_is_signed_is_as_the_specification_says() {
        assert_eq!(
            to_be_signed("http://example.com/HelloWorld", b"hello world"),
            b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
        );
    }

    #[test]
    fn a_receipt_is_verified_by_its_key_alone() {
        let ((key, _), (other, _)) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
        let receipt = sign(&statement(), &key).unwrap();
        let keys = [other.public().clone(), key.public().clone()];
        assert_eq!(verify(receipt.as_bytes(), &keys).unwrap(), statement());
        let error = verify(receipt.as_bytes(), &keys[..1]).unwrap_err();
        assert!(error.to_string().contains(key.public().id()), "{error}");
        assert!(matches!(verify(receipt.as_bytes(), &[]), Err(ReceiptError::Signature(_))));
    }

    #[test]
    fn signed_statements_of_others_are_no_receipts() {
        let (key, _) = SigningKey::generate().unwrap();
        let text = serde_json::to_string(&statement()).unwrap();
        let of = |payload_type: &str, payload: &str| {
            verify(envelope(&key, payload_type, payload).as_bytes(), &[key.public().clone()])
        };
        assert_eq!(of(PAYLOAD_TYPE, &text).unwrap(), statement());
        for (payload_type, payload) in [
            ("text/plain", text.clone()),
            (PAYLOAD_TYPE, text.replace("in-toto.io/Statement/v1", "in-toto.io/Statement/v2")),
            (PAYLOAD_TYPE, text.replace(PREDICATE_TYPE, "https://slsa.dev/provenance/v1")),
        ] {
            assert!(matches!(of(payload_type, &payload), Err(ReceiptError::Type(_))), "{payload}");
        }
        assert!(matches!(of(PAYLOAD_TYPE, "{}"), Err(ReceiptError::Statement(_))));
        // later versions may say more
        assert_eq!(of(PAYLOAD_TYPE, &text.replacen('{', r#"{"more":1,"#, 1)).unwrap(), statement());
    }

    proptest! {
        #[test]
        fn a_receipt_with_another_byte_is_refused(at in 0_usize..10_000, byte: u8) {
            let (key, _) = SigningKey::generate().unwrap();
            let receipt = sign(&statement(), &key).unwrap();
            let mut changed = receipt.clone().into_bytes();
            let at = at % changed.len();
            changed[at] = byte;
            if let Ok(read) = verify(&changed, &[key.public().clone()]) {
                // what is not signed: space, and the name of the key
                prop_assert_eq!(read, statement());
            }
        }

        #[test]
        fn nothing_panics(bytes: Vec<u8>) {
            let (key, _) = SigningKey::generate().unwrap();
            prop_assert!(verify(&bytes, &[key.public().clone()]).is_err());
        }
    }
}
