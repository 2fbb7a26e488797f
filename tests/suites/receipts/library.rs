//! Receipts are verified by programs that nobody here wrote: securesystemslib and in-toto-attestation.

use std::process::Stdio;

use telexec_tests::within;
use tokio::process::Command as Process;

use super::*;

/// What the guide says to do with securesystemslib; it prints the exit code.
fn example() -> &'static str {
    const GUIDE: &str = include_str!("../../../docs/OPERATING.md");
    let (_, after) = GUIDE.split_once("### Receipts\n").unwrap();
    let (_, block) = after.split_once("```python\n").unwrap();
    block.split_once("```").unwrap().0
}

/// Checks and prints the statement, too.
const STATEMENT: &str = "
from google.protobuf import json_format
from in_toto_attestation.v1 import statement, statement_pb2

assert envelope.payload_type == 'application/vnd.in-toto+json'
statement.Statement.copy_from_pb(json_format.Parse(envelope.payload, statement_pb2.Statement())).validate()
print(json.dumps({'keyid': key.keyid, 'statement': json.loads(envelope.payload)}))
";

async fn verified(receipt: &str, key: &PublicKey) -> Result<serde_json::Value, String> {
    let directory = directory();
    std::fs::write(directory.path().join("uptime.receipt"), receipt).unwrap();
    std::fs::write(directory.path().join("web1.pub"), key.to_pem()).unwrap();
    let python = std::env::var("ATTESTATION_PYTHON").expect("tests/run sets it");
    let mut verifier = Process::new(python);
    verifier.args(["-c", &(example().to_owned() + STATEMENT)]).current_dir(directory.path());
    let output = within(verifier.stdin(Stdio::null()).kill_on_drop(true).output()).await.unwrap();
    match output.status.success() {
        true => {
            let printed = String::from_utf8(output.stdout).unwrap();
            let (code, statement) = printed.split_once('\n').unwrap();
            let read: serde_json::Value = serde_json::from_str(statement).unwrap();
            assert_eq!(code, read["statement"]["predicate"]["end"]["exitCode"].to_string());
            Ok(read)
        }
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
