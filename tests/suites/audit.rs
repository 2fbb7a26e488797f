//! The audit log of real agents.

mod content;
mod decisions;
mod ends;
mod faults;
mod load;

use std::path::{Path, PathBuf};

use serde_json::Value;
use telexec_tests::{Agent, AgentBuilder, until};
use tempfile::TempDir;

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

/// Whole lines: the last may be on its way.
fn records(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What `telexecd audit verify` says of these files.
async fn verify(files: &[&Path]) -> (i32, String) {
    let mut command = tokio::process::Command::from(telexec_tests::telexecd());
    command.args(["audit", "verify"]).args(files);
    let output = telexec_tests::within(command.output()).await.unwrap();
    (output.status.code().unwrap_or(-1), String::from_utf8(output.stdout).unwrap())
}

/// Makes sure that the log is whole, and each start has one end, whatever that is.
async fn assert_whole(audit: &Audit) {
    let (code, said) = audit.verify().await;
    assert!(code == 0 && said.starts_with("whole: ") && !said.contains("without an end"), "{said}");
}
