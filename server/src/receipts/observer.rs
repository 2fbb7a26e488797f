//! Follows one execution, and signs what is known of it at its end.

use std::sync::{Arc, OnceLock};

use telexec_engine::{ContinuedExecution, ExecutionObserver, MainProcess};
use telexec_executor::{Exited, OutputStream, Signal, StreamTotals};
use telexec_receipt::{End, Receipt, STDERR, STDOUT, Start, Statement, Stream, Subject, sign};
use tracing::warn;

use super::Signer;
use super::description::Asked;
use crate::audit::{clip_line, json_length};
use crate::digest::OutputDigests;
use crate::timestamp::{ms, rfc3339};

/// The longest receipt, as the proto promises.
const MAX_BYTES: usize = 64 * 1024;
/// As they are in JSON.
const MAX_DIRECTORY: u64 = 6 * 1024;
const MAX_USER: u64 = 512;
/// Its name among those of other observers.
pub(super) const STATE: &str = "receipt";

/// Gives one execution its receipt.
pub(super) struct ReceiptObserver {
    signer: Arc<Signer>,
    asked: Asked,
    main: OnceLock<MainProcess>,
    /// `None`: this agent has not seen the beginning of the output.
    digests: Option<OutputDigests>,
}

impl ReceiptObserver {
    pub(super) fn new(signer: Arc<Signer>, asked: Asked) -> Self {
        Self { signer, asked, main: OnceLock::new(), digests: Some(OutputDigests::new()) }
    }

    pub(super) fn continued(signer: Arc<Signer>, asked: Asked, execution: &ContinuedExecution) -> Self {
        Self { signer, asked, main: OnceLock::from(execution.main.clone()), digests: None }
    }

    fn sign(&self, exited: &Exited) -> Result<String, String> {
        let mut statement = self.statement(exited).ok_or("it has no start")?;
        let sign = |statement: &Statement| sign(statement, &self.signer.key).map_err(|error| error.to_string());
        let receipt = sign(&statement)?;
        if receipt.len() <= MAX_BYTES {
            return Ok(receipt);
        }
        // the digest says the same
        let request = &mut statement.predicate.request;
        (request.command, request.argv) = (None, None);
        let receipt = sign(&statement)?;
        if receipt.len() <= MAX_BYTES { Ok(receipt) } else { Err(format!("it would be of {} bytes", receipt.len())) }
    }

    fn statement(&self, exited: &Exited) -> Option<Statement> {
        let Asked { mut subject, execution_id, agent, caller, policy, request } = self.asked.clone();
        let has_stderr = !(request.terminal || request.merge_output);
        let streams = [(STDOUT, OutputStream::Stdout), (STDERR, OutputStream::Stderr)];
        for (name, stream) in streams.into_iter().take(if has_stderr { 2 } else { 1 }) {
            let digest = self.digests.as_ref().map(|digests| Subject::sha256(name, digests.sha256(stream)));
            subject.extend(digest);
        }
        let agent_restarted = self.digests.is_none();
        let (start, end) = (start(self.main.get()?), end(exited));
        let receipt = Receipt { execution_id, agent, caller, policy, request, start, end, agent_restarted };
        Some(Statement::new(subject, receipt))
    }
}

impl ExecutionObserver for ReceiptObserver {
    fn state(&self) -> Option<(&'static str, Vec<u8>)> {
        let state = serde_json::to_vec(&self.asked);
        let failed = |error: &serde_json::Error| warn!(%error, "the next agent could give no receipt");
        Some((STATE, state.inspect_err(failed).ok()?))
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
        let failed = |error: &String| warn!(error, "the receipt cannot be signed");
        self.sign(exited).inspect_err(failed).ok().map(Arc::new)
    }
}

fn start(main: &MainProcess) -> Start {
    let directory = Some(&main.working_directory).filter(|path| json_length(path) <= MAX_DIRECTORY);
    Start {
        pid: main.pid,
        time: rfc3339(main.start_time.into()),
        user: clip_line(MAX_USER, &main.user),
        working_directory: directory.cloned(),
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
        wall_milliseconds: ms(exited.wall_time),
        surviving_processes: exited.surviving_processes,
        stdout: stream(&exited.stdout),
        stderr: stream(&exited.stderr),
    }
}
