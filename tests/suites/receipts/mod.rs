//! Receipts: what the agent signs of an execution at its end.

mod ends;
mod library;
mod requests;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use telexec_executor::{Command, CommandBuilder, Executor, Exited};
use telexec_receipt::{PublicKey, SigningKey, Statement, verify};
use telexec_tests::{Agent, AgentBuilder, Outcome, directory, run};
use tempfile::TempDir;

/// A key for agents.
pub(crate) struct Key {
    directory: TempDir,
    pub(crate) public: PublicKey,
}

impl Key {
    pub(crate) fn new() -> Self {
        let (key, text) = SigningKey::generate().unwrap();
        let this = Self { directory: directory(), public: key.public().clone() };
        write_key(&this.path(), &text);
        this
    }

    pub(crate) fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("receipt.key")
    }

    /// An agent that signs with it.
    pub(crate) fn agent(&self) -> AgentBuilder {
        self.agent_with("")
    }

    /// The same, with more in its configuration.
    fn agent_with(&self, config: &str) -> AgentBuilder {
        Agent::builder().config(format!("receipt_key = {:?}\n{config}", self.path()))
    }

    /// What the receipt of an execution says.
    fn verify(&self, exited: &Exited) -> Statement {
        let receipt = exited.receipt.as_deref().expect("it has a receipt");
        assert!(receipt.len() <= 64 * 1024, "{}", receipt.len());
        verify(receipt.as_bytes(), std::slice::from_ref(&self.public)).unwrap().statement
    }

    async fn statement(&self, executor: &impl Executor, command: CommandBuilder) -> (Outcome, Statement) {
        let outcome = run(executor, command.receipt(true)).await.unwrap();
        let statement = self.verify(&outcome.exited);
        (outcome, statement)
    }
}

/// For root alone.
fn write_key(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
}

fn sha256(bytes: impl AsRef<[u8]>) -> String {
    digest(&SHA256, bytes.as_ref()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
