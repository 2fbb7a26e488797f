//! The audit log of real agents.

mod collector;
mod content;
mod crashes;
mod decisions;
mod ends;
mod faults;
mod load;
mod otlp;
mod recordings;
mod rejected;
mod search;
mod syslog;
mod volume;
mod witness;

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use telexec_tests::{Agent, AgentBuilder, until};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;

/// An audit log, and what is in it.
struct Audit(TempDir);

impl Audit {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("log/audit.log")
    }

    /// An agent that writes it; `more` goes into the same table of its configuration.
    fn agent(&self, more: &str) -> AgentBuilder {
        Agent::builder().config(self.config(more))
    }

    fn config(&self, more: &str) -> String {
        format!("[audit]\nfile = {:?}\n{more}", self.file())
    }

    fn records(&self) -> Vec<Value> {
        records(&self.file())
    }

    /// Also those in files that were put aside.
    fn all_records(&self) -> Vec<Value> {
        let files = std::fs::read_dir(self.file().parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
        let is_log =
            |path: &PathBuf| path.extension().is_some_and(|end| end == "log" || end.as_encoded_bytes()[0] == b'0');
        let mut all: Vec<_> = files.filter(is_log).flat_map(|path| records(&path)).collect();
        all.sort_by_key(|record| record["seq"].as_u64());
        all
    }

    /// Those of this kind.
    fn events(&self, event: &str) -> Vec<Value> {
        self.records().into_iter().filter(|record| record["event"] == event).collect()
    }

    /// Waits until there are so many of this kind.
    async fn wait(&self, event: &str, count: usize) -> Vec<Value> {
        until(&format!("there are {count} records {event}"), async || self.events(event).len() >= count).await;
        self.events(event)
    }

    async fn verify(&self) -> (i32, String) {
        verify(&[&self.file()]).await
    }
}

/// Makes sure that each field is in the table of OPERATING.md.
fn assert_documented(records: &[Value]) {
    let guide = include_str!("../../../docs/OPERATING.md");
    let table = guide.split_once("### The fields of records").unwrap().1.split_once("###").unwrap().0;
    for (field, value) in records.iter().flat_map(|record| record.as_object().unwrap()) {
        let within = value.as_object().into_iter().flatten().map(|(name, _)| name).filter(|_| field != "limits");
        for name in [field].into_iter().chain(within) {
            assert!(table.contains(&format!("`{name}`")), "{name} is not documented");
        }
    }
}

/// Whole lines: the last may be on its way.
fn records(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What `telexecd audit verify` says of these files.
async fn verify(files: &[&Path]) -> (i32, String) {
    verify_with(&[], files).await
}

async fn verify_with(flags: &[&str], files: &[&Path]) -> (i32, String) {
    let mut command = tokio::process::Command::from(telexec_tests::telexecd());
    command.args(["audit", "verify"]).args(flags).args(files);
    let output = telexec_tests::within(command.output()).await.unwrap();
    (output.status.code().unwrap_or(-1), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

/// What `telexecd audit digest` says of a command: the key and the digest.
async fn digest_of(file: &Path, argv: &[&str], text: &str) -> (String, String) {
    let mut command = tokio::process::Command::from(telexec_tests::telexecd());
    command.args(["audit", "digest"]).arg(file).args(argv).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).await.unwrap();
    let output = telexec_tests::within(child.wait_with_output()).await.unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    let (key, digest) = said.trim_end().split_once('\n').unwrap();
    let key = key.strip_prefix("hmac_key: ").unwrap();
    (key.to_owned(), digest.strip_prefix("command_hmac_sha256: ").unwrap().to_owned())
}

/// Makes sure that the log is whole, and each start has one end, whatever that is.
async fn assert_whole(audit: &Audit) {
    let (code, said) = audit.verify().await;
    assert!(code == 0 && said.starts_with("valid: ") && !said.contains("without an end"), "{said}");
    assert_documented(&audit.all_records());
}
