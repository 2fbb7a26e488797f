//! Follows one execution, and signs what is known of it at its end.

use std::sync::{Arc, OnceLock};

use telexec_engine::{ContinuedExecution, ExecutionObserver, MainProcess};
use telexec_executor::{Exited, OutputStream, Signal, StreamTotals};
use telexec_receipt::{End, STDERR, STDOUT, Start, Statement, Stream, Subject, sign};

use super::Signer;
use crate::audit::clip_line;
use crate::digest::OutputDigests;
use crate::timestamp::rfc3339;

/// As they are in JSON: longer ones are cut.
const MAX_DIRECTORY: u64 = 6 * 1024;
const MAX_USER: u64 = 512;
/// Its name among those of other observers.
const STATE: &str = "receipt";

/// Gives one execution its receipt.
pub(super) struct ReceiptObserver {
    signer: Arc<Signer>,
    /// What was known before the start.
    statement: Statement,
    main: OnceLock<MainProcess>,
    /// `None`: this agent has not seen the beginning of the output.
    digests: Option<OutputDigests>,
}

impl ReceiptObserver {
    pub(super) fn new(signer: Arc<Signer>, statement: Statement) -> Self {
        Self { signer, statement, main: OnceLock::new(), digests: Some(OutputDigests::new()) }
    }

    /// `None`: it is to have none.
    pub(super) fn continued(signer: Arc<Signer>, execution: &ContinuedExecution) -> Option<Self> {
        let mut statement: Statement = serde_json::from_slice(execution.states.get(STATE)?).ok()?;
        statement.predicate.agent_restarted = true;
        Some(Self { signer, statement, main: OnceLock::from(execution.main.clone()), digests: None })
    }

    fn complete(&self, exited: &Exited) -> Statement {
        let mut statement = self.statement.clone();
        for (name, stream) in [(STDOUT, OutputStream::Stdout), (STDERR, OutputStream::Stderr)] {
            let digest = self.digests.as_ref().map(|digests| Subject::sha256(name, digests.sha256(stream)));
            statement.subject.extend(digest);
        }
        statement.predicate.start = self.main.get().map(start).unwrap_or_default();
        statement.predicate.end = end(exited);
        statement
    }
}

impl ExecutionObserver for ReceiptObserver {
    fn state(&self) -> Option<(&'static str, Vec<u8>)> {
        Some((STATE, serde_json::to_vec(&self.statement).ok()?))
    }

    fn started(&self, main: &MainProcess) {
        let _ = self.main.set(main.clone());
    }

    fn output(&self, stream: OutputStream, data: &[u8]) {
        self.digests.iter().for_each(|digests| digests.update(stream, data));
    }

    fn gives_receipt(&self) -> bool {
        true
    }

    fn receipt(&self, exited: &Exited) -> Option<Arc<String>> {
        Some(sign(&self.complete(exited), &self.signer.key).ok()?.into())
    }
}

fn start(main: &MainProcess) -> Start {
    Start {
        pid: main.pid,
        time: rfc3339(main.start_time.into()),
        user: clip_line(MAX_USER, &main.user),
        working_directory: clip_line(MAX_DIRECTORY, &main.working_directory),
    }
}

fn end(exited: &Exited) -> End {
    let stream = |totals: &StreamTotals| Stream {
        bytes: totals.bytes,
        dropped_bytes: totals.dropped_bytes,
        incomplete: totals.incomplete,
    };
    End {
        time: rfc3339(exited.end_time.into()),
        cause: exited.cause.as_str().to_owned(),
        exit_code: exited.exit_code(),
        signal: exited.signal.as_ref().map(Signal::to_string),
        core_dumped: exited.core_dumped,
        wall_seconds: exited.wall_time.as_secs_f64(),
        surviving_processes: exited.surviving_processes,
        stdout: stream(&exited.stdout),
        stderr: stream(&exited.stderr),
    }
}
