//! Receipts are verified by programs that nobody here wrote: securesystemslib and in-toto-attestation.

use std::process::Stdio;

use telexec_tests::within;
use tokio::process::Command as Process;

use super::*;

/// Verifies the signature of an envelope by a key in PEM, checks the statement in it, and prints that.
const VERIFIER: &str = r#"
import json, sys
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from google.protobuf import json_format
from in_toto_attestation.v1 import statement, statement_pb2
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

envelope = Envelope.from_dict(json.load(open(sys.argv[1])))
public = load_pem_public_key(open(sys.argv[2], "rb").read())
keyid = next(iter(envelope.signatures.values())).keyid
key = SSlibKey.from_crypto(public, keyid=keyid)
assert envelope.payload_type == "application/vnd.in-toto+json"
envelope.verify([key], 1)
parsed = json_format.Parse(envelope.payload, statement_pb2.Statement())
statement.Statement.copy_from_pb(parsed).validate()
print(json.dumps({"keyid": keyid, "statement": json.loads(envelope.payload)}))
"#;

async fn verified(receipt: &str, key: &PublicKey) -> Result<serde_json::Value, String> {
    let directory = directory();
    let (envelope, public) = (directory.path().join("receipt"), directory.path().join("key"));
    std::fs::write(&envelope, receipt).unwrap();
    std::fs::write(&public, key.to_pem()).unwrap();
    let python = std::env::var("ATTESTATION_PYTHON").expect("tests/run sets it");
    let mut verifier = Process::new(python);
    verifier.args(["-c", VERIFIER]).args([envelope, public]).stdin(Stdio::null()).kill_on_drop(true);
    let output = within(verifier.output()).await.unwrap();
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).unwrap()),
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn others_verify_it_too() {
    let key = Key::new();
    let agent = key.agent().start();
    let command = Command::argv(["printf", "%s", "\u{1} \u{fffd} \" \u{2028} 🦀"]).receipt(true);
    let outcome = run(&agent.executor().await, command).await.unwrap();
    let receipt = outcome.exited.receipt.as_deref().unwrap();
    let read = verified(receipt, &key.public).await.unwrap();
    let statement = serde_json::to_value(key.verify(&outcome.exited)).unwrap();
    assert_eq!((read["keyid"].as_str().unwrap(), &read["statement"]), (key.public.id(), &statement));
    assert_eq!(statement["subject"][1]["digest"]["sha256"], sha256(&outcome.stdout));
}

#[tokio::test(flavor = "multi_thread")]
async fn others_refuse_what_was_changed() {
    let (key, other) = (Key::new(), Key::new());
    let agent = key.agent().start();
    let outcome = run(&agent.executor().await, Command::shell("exit 1").receipt(true)).await.unwrap();
    let receipt = outcome.exited.receipt.as_deref().unwrap();
    assert!(verified(receipt, &other.public).await.unwrap_err().contains("VerificationError"));
    let mut envelope: serde_json::Value = serde_json::from_str(receipt).unwrap();
    let mut statement = serde_json::to_value(key.verify(&outcome.exited)).unwrap();
    statement["predicate"]["end"]["exitCode"] = 0.into();
    let payload = base64(&statement);
    envelope["payload"] = payload.into();
    let changed = envelope.to_string();
    assert!(verified(&changed, &key.public).await.unwrap_err().contains("VerificationError"));
    assert!(verify(changed.as_bytes(), std::slice::from_ref(&key.public)).is_err());
}

/// In base64.
fn base64(statement: &serde_json::Value) -> String {
    use base64::Engine;

    base64::engine::general_purpose::STANDARD.encode(statement.to_string())
}
