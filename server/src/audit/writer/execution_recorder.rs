//! Observes one execution, and records its output totals and its end.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use telexec_engine::{ContinuedExecution, ExecutionObserver, MainProcess, ObservedTerminal};
use telexec_executor::{ExecutionId, ExecutorError, Exited, OutputStream, Signal, StreamTotals};
use tokio::sync::mpsc::UnboundedSender;

use super::{Job, State};
use crate::audit::chain::Link;
use crate::audit::command::{clip, clip_line};
use crate::audit::record::{Body, End, Failure, NotStarted, Origin, Record, Written};
use crate::audit::recording::{self, Recorded, Recording, Recordings};
use crate::digest::{OutputDigests, sha256};
use crate::timestamp::ms;

/// Bytes of the line for the directory; the record of the start has the requested one.
const MAX_DIRECTORY: u64 = 512;

/// Records the end of an execution, once. Dropped without one, it records that the start was given up, if the start itself is
/// in the log.
pub(in crate::audit) struct ExecutionRecorder {
    queue: UnboundedSender<Job>,
    state: Arc<State>,
    origin: Arc<Origin>,
    id: ExecutionId,
    containment: &'static str,
    /// The number of its start's record, once written.
    start: Option<u64>,
    /// The same with its hash.
    reference: Option<String>,
    main: OnceLock<MainProcess>,
    /// If recorded.
    digests: Option<OutputDigests>,
    /// Of what it is sent and what it writes, if the policy asks for that.
    recording: Option<Recording>,
    is_recorded: bool,
}

/// What the recorder of the next agent needs.
#[derive(Serialize, Deserialize)]
struct Continuation<O> {
    start: Option<u64>,
    origin: O,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    recording: Option<recording::Continuation>,
}

/// A recording that is not closed by then is taken not to be: less than the agent waits at its end.
const FINISH_TIMEOUT: Duration = Duration::from_secs(4);
/// Its name among those of other observers.
const STATE: &str = "audit";

impl ExecutionRecorder {
    /// For an execution whose start an earlier agent has recorded; `None`: it has not, or its end is one of these. Its output
    /// has no digest: that agent has seen the beginning.
    pub(in crate::audit) fn continued(
        queue: UnboundedSender<Job>,
        state: Arc<State>,
        containment: &'static str,
        execution: &ContinuedExecution,
        ends: &BTreeSet<u64>,
        recordings: &Recordings,
    ) -> Option<Self> {
        let Continuation { start, origin, recording } = serde_json::from_slice(execution.states.get(STATE)?).ok()?;
        if start.is_some_and(|start| ends.contains(&start)) {
            return None;
        }
        let mut this = Self::new(queue, state, Arc::new(origin), execution.id.clone(), containment, false);
        (this.start, this.main) = (start, OnceLock::from(execution.main.clone()));
        this.recording = recording.map(|recording| recordings.resume(recording));
        Some(this)
    }

    pub(in crate::audit) fn new(
        queue: UnboundedSender<Job>,
        state: Arc<State>,
        origin: Arc<Origin>,
        id: ExecutionId,
        containment: &'static str,
        with_digests: bool,
    ) -> Self {
        let (digests, main) = (with_digests.then(OutputDigests::new), OnceLock::new());
        Self {
            queue,
            state,
            origin,
            id,
            containment,
            start: None,
            reference: None,
            main,
            digests,
            recording: None,
            is_recorded: false,
        }
    }

    /// Has this recorded as well.
    pub(in crate::audit) fn with_recording(mut self, recording: Option<Recording>) -> Self {
        self.recording = recording;
        self
    }

    /// The record of its start is written.
    pub(in crate::audit) fn begin(&mut self, start: &Link) {
        (self.start, self.reference) = (Some(start.seq), Some(start.reference()));
    }

    fn record(&mut self, body: Body) {
        if let Some(record) = self.queueable(body) {
            // the writer accepts records until the agent ends
            let _ = self.queue.send(Job::Record(Box::new(record), None));
        }
    }

    /// The record to be queued; `None`: it is lost.
    fn queueable(&mut self, body: Body) -> Option<Record> {
        self.is_recorded = true;
        // the queue of a stuck writer would grow without bound
        if self.start.is_none() && self.state.is_stuck.load(Ordering::Relaxed) {
            self.state.lose();
            return None;
        }
        Some(Record::new(body).of(&self.origin).about(Some(&self.id)))
    }

    fn record_no_start(&mut self, failure: Failure) {
        if self.main.get().is_none() {
            self.recording.take().into_iter().for_each(Recording::discard);
        }
        match self.start {
            Some(start) => self.record(Body::NotStarted(NotStarted { start, failure })),
            None => self.is_recorded = true,
        }
    }

    fn written(&self, stream: OutputStream, totals: &StreamTotals) -> Written {
        Written {
            bytes: totals.bytes,
            dropped_bytes: totals.dropped_bytes,
            incomplete: totals.incomplete,
            sha256: self.digests.as_ref().map(|digests| digests.sha256(stream)),
        }
    }
}

/// The record of an end that waits for what was recorded; no longer than [`FINISH_TIMEOUT`].
struct PendingEnd {
    queue: UnboundedSender<Job>,
    record: Mutex<Option<Record>>,
}

impl PendingEnd {
    fn record(&self, recorded: Recorded) {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(record) = record {
            let _ = self.queue.send(Job::Record(Box::new(record.with_recording(recorded)), None));
        }
    }
}

impl ExecutionObserver for ExecutionRecorder {
    fn reference(&self) -> Option<String> {
        self.reference.clone()
    }

    fn state(&self) -> Option<(&'static str, Vec<u8>)> {
        let recording = self.recording.as_ref().map(Recording::continuation);
        let continuation = Continuation { start: self.start, origin: &*self.origin, recording };
        Some((STATE, serde_json::to_vec(&continuation).ok()?))
    }

    fn started(&self, main: &MainProcess) {
        let _ = self.main.set(main.clone());
        self.recording.iter().for_each(Recording::begin);
    }

    fn terminal(&self, terminal: ObservedTerminal) {
        self.recording.iter().for_each(|recording| recording.set_terminal(terminal.clone()));
    }

    fn input(&self, data: &[u8], is_hidden: bool) {
        self.recording.iter().for_each(|recording| recording.input(data, is_hidden));
    }

    fn safe(&self) -> Option<BoxFuture<'_, bool>> {
        self.recording.as_ref().and_then(Recording::safe)
    }

    fn kill(&self) -> Option<BoxFuture<'_, ()>> {
        self.recording.as_ref().and_then(Recording::kill)
    }

    fn output(&self, stream: OutputStream, data: &[u8]) {
        self.recording.iter().for_each(|recording| recording.output(stream, data));
        self.digests.iter().for_each(|digests| digests.update(stream, data));
    }

    fn ended(mut self: Box<Self>, exited: &Exited) {
        let main = self.main.get();
        let end = End {
            start: self.start,
            pid: main.map_or(0, |main| main.pid),
            user: main.map(|main| clip(&main.user)).unwrap_or_default(),
            directory: main.map(|main| clip_line(MAX_DIRECTORY, &main.working_directory)).unwrap_or_default(),
            cause: exited.cause.as_str(),
            exit_code: exited.exit_code(),
            signal: exited.signal.as_ref().map(Signal::to_string),
            core_dumped: exited.core_dumped,
            wall_ms: ms(exited.wall_time),
            cpu_ms: ms(exited.user_time.saturating_add(exited.system_time)),
            max_rss_bytes: exited.max_rss_bytes,
            all_cpu_ms: exited.usage.cpu_time().map(ms),
            peak_memory_bytes: exited.usage.peak_memory_bytes,
            stdout: self.written(OutputStream::Stdout, &exited.stdout),
            stderr: self.written(OutputStream::Stderr, &exited.stderr),
            containment: self.containment,
            survivors: exited.surviving_processes,
            recording: None,
            receipt_sha256: exited.receipt.as_deref().map(|receipt| sha256(receipt.as_bytes())),
        };
        let Some(recording) = self.recording.take() else { return self.record(Body::End(Box::new(end))) };
        let Some(record) = self.queueable(Body::End(Box::new(end))) else { return recording.finish(drop) };
        let end = PendingEnd { queue: self.queue.clone(), record: Mutex::new(Some(record)) };
        let (end, late) = (Arc::new(end), recording.unwritten());
        let unwaited = Arc::clone(&end);
        recording.finish(move |recorded| end.record(recorded));
        tokio::spawn(async move {
            tokio::time::sleep(FINISH_TIMEOUT).await;
            unwaited.record(late);
        });
    }

    fn not_started(mut self: Box<Self>, error: &ExecutorError) {
        self.record_no_start(error.into());
    }

    fn repeated(mut self: Box<Self>) {
        self.record_no_start(Failure::repeated());
    }
}

impl Drop for ExecutionRecorder {
    fn drop(&mut self) {
        if !self.is_recorded {
            self.record_no_start(Failure::given_up());
        }
    }
}
