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
    #[error("it is not a receipt: it is not a DSSE envelope")]
    Envelope,
    /// It has no signature.
    #[error("it is not signed")]
    Unsigned,
    /// It names no key, or one that was not given.
    #[error("none of the given keys has signed it: it names {}", if .0.is_empty() { "no key".to_owned() } else { format!("the key {}", .0) })]
    OtherKey(String),
    /// It names one of the keys, which has not signed this.
    #[error(
        "its signature is not valid for what it says: it was changed, or another key has signed it (it names the key {0})"
    )]
    Changed(String),
    /// It is signed, and is something else.
    #[error("it is signed, but is not a receipt of telexec: its type is \"{0}\"")]
    Type(String),
    /// It is signed, and does not make sense.
    #[error("it is signed, but contradicts itself: {0}")]
    Contradiction(&'static str),
    /// It is signed, and cannot be read.
    #[error("it is signed, but its statement cannot be read")]
    Statement(#[source] serde_json::Error),
}

/// A receipt that one of the keys has signed.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified<'a> {
    /// What it says, as far as this version knows it.
    pub statement: Statement,
    /// All that is signed: the statement in JSON.
    pub payload: Vec<u8>,
    /// The key that has signed it.
    pub key: &'a PublicKey,
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

/// The receipt in an envelope that one of these keys has signed. The key that the envelope names only matters to the error.
///
/// # Errors
/// None of them has, or it is not a receipt.
pub fn verify<'a>(envelope: &[u8], keys: &'a [PublicKey]) -> Result<Verified<'a>, ReceiptError> {
    let Envelope { payload_type, payload, signatures } =
        serde_json::from_slice(envelope).map_err(|_| ReceiptError::Envelope)?;
    let payload = from_base64(&payload).ok_or(ReceiptError::Envelope)?;
    let signed = to_be_signed(&payload_type, &payload);
    let signer = |signature: &Signature| {
        let sig = from_base64(&signature.sig)?;
        keys.iter().find(|key| key.verifies(&signed, &sig))
    };
    let Some(key) = signatures.iter().find_map(signer) else { return Err(not_signed(&signatures, keys)) };
    if payload_type != PAYLOAD_TYPE {
        return Err(ReceiptError::Type(cut(&payload_type)));
    }
    let statement = read(&payload)?;
    statement.check().map_err(ReceiptError::Contradiction)?;
    Ok(Verified { statement, payload, key })
}

fn not_signed(signatures: &[Signature], keys: &[PublicKey]) -> ReceiptError {
    let Some(first) = signatures.first() else { return ReceiptError::Unsigned };
    match signatures.iter().find_map(|signature| keys.iter().find(|key| key.id() == signature.keyid)) {
        Some(key) => ReceiptError::Changed(key.id().to_owned()),
        None => ReceiptError::OtherKey(cut(&first.keyid)),
    }
}

/// For a message.
fn cut(text: &str) -> String {
    text.escape_debug().take(64).collect()
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
        return Err(ReceiptError::Type(cut(&types.statement)));
    }
    if types.predicate_type != PREDICATE_TYPE {
        return Err(ReceiptError::Type(cut(&types.predicate_type)));
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
    use crate::{Agent, Caller, End, Receipt, Request, Start, Stream, Subject};

    fn statement() -> Statement {
        let stream = || Stream { bytes: 0, dropped_bytes: 0, incomplete: false };
        let receipt = Receipt {
            execution_id: "e1".into(),
            agent: Agent { host: "web1".into(), version: "1".into() },
            caller: Caller {
                identity: "anna".into(),
                transport: "mtls".into(),
                certificate_sha256: None,
                presented_by: None,
            },
            policy: None,
            request: Request::default(),
            start: Start { pid: 1, time: String::new(), user: String::new(), working_directory: None },
            end: End {
                time: String::new(),
                cause: "exited".into(),
                exit_code: 1,
                signal: None,
                core_dumped: false,
                wall_milliseconds: 1,
                surviving_processes: 0,
                stdout: stream(),
                stderr: stream(),
            },
            agent_restarted: false,
        };
        Statement::new(vec![Subject::sha256("command", crate::sha256(&b""[..]).unwrap())], receipt)
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
        let verified = verify(receipt.as_bytes(), &keys).unwrap();
        assert_eq!((&verified.statement, verified.key), (&statement(), key.public()));
        assert_eq!(verified.payload, serde_json::to_vec(&statement()).unwrap());
        let error = verify(receipt.as_bytes(), &keys[..1]).unwrap_err();
        assert!(error.to_string().contains(key.public().id()), "{error}");
        let refused = |receipt: &str, keys| verify(receipt.as_bytes(), keys).unwrap_err();
        assert!(matches!(refused(&receipt, &[]), ReceiptError::OtherKey(id) if id == key.public().id()));
        let changed = receipt.replacen("eyJ", "eyI", 1);
        assert!(matches!(refused(&changed, &keys), ReceiptError::Changed(id) if id == key.public().id()));
        let unnamed = receipt.replace(key.public().id(), "");
        assert!(refused(&unnamed, &keys[..1]).to_string().ends_with("it names no key"));
        assert!(verify(unnamed.as_bytes(), &keys).is_ok());
        let (unsigned, _) = receipt.split_once("[").unwrap();
        assert!(matches!(refused(&format!("{unsigned}[]}}"), &keys), ReceiptError::Unsigned));
    }

    #[test]
    fn signed_statements_of_others_are_no_receipts() {
        let (key, _) = SigningKey::generate().unwrap();
        let text = serde_json::to_string(&statement()).unwrap();
        let keys = [key.public().clone()];
        let of = |payload_type: &str, payload: &str| {
            let verified = verify(envelope(&key, payload_type, payload).as_bytes(), &keys);
            verified.map(|verified| verified.statement)
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
        // what is not said is not taken to be good
        for field in
            [r#""exitCode":1,"#, r#""cause":"exited","#, r#""surviving_processes":0,"#.replace("_p", "P").as_str()]
        {
            assert!(text.contains(field), "{field} in {text}");
            assert!(matches!(of(PAYLOAD_TYPE, &text.replace(field, "")), Err(ReceiptError::Statement(_))), "{field}");
        }
        let with = |from: &str, to: &str| {
            assert!(text.contains(from), "{from} in {text}");
            of(PAYLOAD_TYPE, &text.replacen(from, to, 1))
        };
        let contradicts = |from, to| matches!(with(from, to), Err(ReceiptError::Contradiction(_)));
        let request = r#""request":{"#;
        assert!(contradicts(request, r#""request":{"command":"a","#));
        assert!(contradicts(request, r#""request":{"argv":["a"],"#));
        assert!(contradicts(request, r#""request":{"command":"","argv":[],"#));
        assert!(contradicts(r#"{"name":"#, r#"{"name":"stdout","digest":{}},{"name":"stdout","digest":{}},{"name":"#));
        assert!(with(request, r#""request":{"command":"","#).is_ok());
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
                prop_assert_eq!(read.statement, statement());
            }
        }

        #[test]
        fn what_is_signed_is_read_or_refused(at in 0_usize..10_000, bytes in prop::collection::vec(any::<u8>(), 0..4)) {
            let (key, _) = SigningKey::generate().unwrap();
            let mut text = serde_json::to_vec(&statement()).unwrap();
            let at = at % text.len();
            text.splice(at..=at, bytes);
            let sig = STANDARD.encode(key.sign(&to_be_signed(PAYLOAD_TYPE, &text)));
            let envelope = serde_json::json!({
                "payloadType": PAYLOAD_TYPE, "payload": URL_SAFE.encode(&text), "signatures": [{ "sig": sig }],
            });
            match verify(envelope.to_string().as_bytes(), &[key.public().clone()]) {
                Ok(verified) => prop_assert_eq!(verified.payload, text),
                Err(error) => prop_assert!(matches!(error, ReceiptError::Statement(_) | ReceiptError::Type(_))),
            }
        }
    }
}
