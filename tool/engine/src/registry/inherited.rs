//! Executions of an earlier engine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use telexec_executor::{ExecutionId, Exited, Fingerprint};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::record::{Asked, Record, State};
use crate::observer::MainProcess;
use crate::output::printed::Printed;
use crate::output::spool::SpoolFile;
use crate::output::transcript::Transcript;
use crate::state::checkpoint::{Checkpoint, Saved};

/// An ended execution, as one engine leaves it to the next.
#[derive(Debug, PartialEq)]
pub(crate) struct Ended {
    pub(crate) id: ExecutionId,
    pub(crate) sequence: u64,
    pub(crate) asked: Asked,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) main: MainProcess,
    pub(crate) exited: Exited,
    pub(crate) output: Printed,
}

/// An ended execution of an earlier engine, and its output on disk.
pub(crate) struct Inherited {
    pub(crate) ended: Ended,
    pub(crate) file: Option<SpoolFile>,
    /// Its output in memory, if that was handed over, and whether it is retained for its caller.
    pub(crate) saved: Option<(Arc<Checkpoint>, Saved, bool)>,
}

/// An execution that an earlier engine has started.
pub(crate) struct Restored {
    pub(crate) id: ExecutionId,
    pub(crate) asked: Asked,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) transcript: Transcript,
    pub(crate) waits_for_caller: bool,
    pub(crate) is_detached: bool,
}

impl Record {
    /// One that has ended under an earlier engine.
    pub(super) fn inherited(Inherited { ended, file, saved }: Inherited, sequence: u64) -> Self {
        let transcript = match saved {
            Some((checkpoint, saved, retained)) => {
                let retained_for = retained.then_some(&*ended.asked.identity);
                Transcript::restored(checkpoint, saved, file, retained_for, Some(ended.exited.clone()))
            }
            None => Transcript::ended(ended.output, file, ended.exited.clone()),
        };
        let restored = Restored {
            id: ended.id,
            asked: ended.asked,
            labels: ended.labels,
            fingerprint: ended.fingerprint,
            transcript,
            waits_for_caller: false,
            is_detached: true,
        };
        let this = Self::restored(restored, sequence);
        this.settled.cancel();
        Self { state: Mutex::new(State::Exited(ended.main, ended.exited)), ..this }
    }

    /// One that was started under an earlier engine.
    pub(super) fn restored(
        Restored { id, asked, labels, fingerprint, transcript, waits_for_caller, is_detached }: Restored,
        sequence: u64,
    ) -> Self {
        Self {
            id,
            sequence,
            asked,
            labels,
            fingerprint,
            transcript: Arc::new(transcript),
            kill: CancellationToken::new(),
            cancel: CancellationToken::new(),
            shutdown: CancellationToken::new(),
            bindings: Mutex::default(),
            bound: Notify::new(),
            waits_for_caller,
            is_detached,
            internal_of: None,
            settled: CancellationToken::new(),
            state: Mutex::new(State::Starting),
        }
    }
}
