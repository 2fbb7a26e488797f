//! What a call saw of its command before it ended or became a task.

use telexec_executor::{Exited, Output, OutputStream};

use super::artifacts::Store;
use super::capture;
use super::capture::Capture;
use super::outcome::ExecCommandResult;
use crate::preview::{Preview, Unit};

/// What a command wrote while it was waited for.
pub(super) struct Seen {
    limit: usize,
    stdout: Capture,
    stderr: Capture,
    /// Both, in the order that they were read.
    both: Preview,
    /// Bytes of both.
    pub(super) position: u64,
    /// Some was not shown.
    pub(super) has_gap: bool,
}

impl Seen {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            stdout: Capture::new("stdout", limit),
            stderr: Capture::new("stderr", limit),
            both: Preview::new(limit, Unit::Bytes),
            position: 0,
            has_gap: false,
        }
    }

    pub(super) async fn push(&mut self, output: &Output) {
        self.both.push(&output.data);
        self.position = output.position + output.data.len() as u64;
        match output.stream {
            OutputStream::Stdout => self.stdout.push(&output.data).await,
            OutputStream::Stderr => self.stderr.push(&output.data).await,
        }
    }

    pub(super) async fn completed(self, exited: &Exited, store: &Store) -> ExecCommandResult {
        let (stdout, stderr) = capture::finish(self.stdout, self.stderr, self.limit, store).await;
        ExecCommandResult::completed(exited, stdout, stderr)
    }

    /// The text, and whether it was cut; `None`: there was nothing.
    pub(super) fn initial_output(&self) -> Option<(String, bool)> {
        let (text, cut) = self.both.text(self.limit);
        (!self.both.is_empty()).then_some((text, cut || self.has_gap))
    }
}
