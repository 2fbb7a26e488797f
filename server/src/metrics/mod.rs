//! Counters for Prometheus, listed in `deploy/METRICS.md`.
//!
//! `execution_counter` observes one execution; the module `scrape` serves the metrics. No label has values that callers could
//! make up: identities, commands and ids are for the logs.

mod execution_counter;
mod labels;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use telexec_engine::ExecutionObserver;
use telexec_executor::{ExitCause, Exited, OutputStream, SpawnError, SpawnStage};

use self::execution_counter::ExecutionCounter;
pub(crate) use self::labels::{HandshakeResult, Refusal};
use crate::call::Rpc;

/// In seconds: a start takes about a millisecond, more under load.
const START_BUCKETS: [f64; 13] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];
/// In seconds: from short queries to builds.
const EXECUTION_BUCKETS: [f64; 13] =
    [0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 86400.0];

/// The counters; clones share them. If metrics are not served, nothing is counted.
#[derive(Clone)]
pub(crate) struct Metrics(Option<Arc<Counters>>);

impl Metrics {
    pub(crate) fn new(wanted: bool) -> Self {
        Self(wanted.then(|| Arc::new(Counters::new())))
    }

    /// Counts a policy decision.
    pub(crate) fn decided(&self, rpc: Rpc, allowed: bool) {
        if let Some(counters) = &self.0 {
            counters.decisions.get_or_create(&decision(rpc, allowed)).inc();
        }
    }

    pub(crate) fn refused(&self, refusal: Refusal) {
        if let Some(counters) = &self.0 {
            counters.refused(refusal);
        }
    }

    /// Counts a handshake.
    pub(crate) fn handshake(&self, result: HandshakeResult) {
        if let Some(counters) = &self.0 {
            counters.handshakes.get_or_create(&[("result", result.as_str())]).inc();
        }
    }

    /// Counts a command that was requested at `asked`; `None`: nothing is counted.
    pub(crate) fn observer(&self, asked: Instant) -> Option<Box<dyn ExecutionObserver>> {
        let counters = Arc::clone(self.0.as_ref()?);
        Some(Box::new(ExecutionCounter { counters, asked }))
    }

    /// Counts content that a caller has written to a file.
    pub(crate) fn file_received(&self, bytes: u64) {
        if let Some(counters) = &self.0 {
            counters.file_received.inc_by(bytes);
        }
    }

    /// Counts content of a file that a caller was sent.
    pub(crate) fn file_sent(&self, bytes: u64) {
        if let Some(counters) = &self.0 {
            counters.file_sent.inc_by(bytes);
        }
    }

    /// The number of ended commands by cause, without zeros.
    pub(crate) fn ended(&self) -> HashMap<String, u64> {
        let counted = |counters: &Arc<Counters>, cause| counters.executions.get_or_create(&[("cause", cause)]).get();
        self.counted(ExitCause::ALL.map(ExitCause::as_str), counted)
    }

    /// The number of refusals by reason, without zeros.
    pub(crate) fn refusals(&self) -> HashMap<String, u64> {
        let counted = |counters: &Arc<Counters>, reason| counters.refusals.get_or_create(&[("reason", reason)]).get();
        self.counted(Refusal::ALL.iter().map(|refusal| refusal.as_str()), counted)
    }

    fn counted(
        &self,
        names: impl IntoIterator<Item = &'static str>,
        counted: impl Fn(&Arc<Counters>, &'static str) -> u64,
    ) -> HashMap<String, u64> {
        let Some(counters) = &self.0 else { return HashMap::new() };
        let all = names.into_iter().map(|name| (name.to_owned(), counted(counters, name)));
        all.filter(|(_, count)| *count > 0).collect()
    }

    /// The registry of all metrics, with those of `collector`; `None`: nothing is counted.
    pub(crate) fn registry(&self, collector: impl Collector) -> Option<Registry> {
        self.0.as_ref().map(|counters| counters.registry(collector))
    }
}

type Labels<const N: usize> = [(&'static str, &'static str); N];

/// Counters that are updated by events.
struct Counters {
    executions: Family<Labels<1>, Counter>,
    start_seconds: Histogram,
    execution_seconds: Histogram,
    cpu_seconds: Counter<f64, AtomicU64>,
    output: Streams,
    dropped: Streams,
    start_failures: Family<Labels<1>, Counter>,
    refusals: Family<Labels<1>, Counter>,
    decisions: Family<Labels<2>, Counter>,
    handshakes: Family<Labels<1>, Counter>,
    file_received: Counter,
    file_sent: Counter,
}

impl Counters {
    /// All label values exist from the beginning, so that the first event shows as an increase.
    fn new() -> Self {
        let this = Self {
            executions: Family::default(),
            start_seconds: Histogram::new(START_BUCKETS),
            execution_seconds: Histogram::new(EXECUTION_BUCKETS),
            cpu_seconds: Counter::default(),
            output: Streams::new(),
            dropped: Streams::new(),
            start_failures: Family::default(),
            refusals: Family::default(),
            decisions: Family::default(),
            handshakes: Family::default(),
            file_received: Counter::default(),
            file_sent: Counter::default(),
        };
        for cause in ExitCause::ALL {
            drop(this.executions.get_or_create(&[("cause", cause.as_str())]));
        }
        for stage in SpawnStage::ALL {
            drop(this.start_failures.get_or_create(&[("stage", stage.as_str())]));
        }
        for refusal in Refusal::ALL {
            drop(this.refusals.get_or_create(&[("reason", refusal.as_str())]));
        }
        for (rpc, allowed) in Rpc::ALL.iter().flat_map(|rpc| [(*rpc, true), (*rpc, false)]) {
            drop(this.decisions.get_or_create(&decision(rpc, allowed)));
        }
        for result in HandshakeResult::ALL {
            drop(this.handshakes.get_or_create(&[("result", result.as_str())]));
        }
        this
    }

    fn refused(&self, refusal: Refusal) {
        self.refusals.get_or_create(&[("reason", refusal.as_str())]).inc();
    }

    fn not_started(&self, error: &SpawnError) {
        self.start_failures.get_or_create(&[("stage", error.stage.as_str())]).inc();
    }

    fn output(&self, stream: OutputStream, bytes: usize) {
        self.output.add(stream, bytes as u64);
    }

    fn started(&self, after: Duration) {
        self.start_seconds.observe(after.as_secs_f64());
    }

    fn ended(&self, exited: &Exited) {
        self.executions.get_or_create(&[("cause", exited.cause.as_str())]).inc();
        self.execution_seconds.observe(exited.wall_time.as_secs_f64());
        let waited_for = exited.user_time.saturating_add(exited.system_time);
        self.cpu_seconds.inc_by(exited.usage.cpu_time().unwrap_or(waited_for).as_secs_f64());
        self.dropped.add(OutputStream::Stdout, exited.stdout.dropped_bytes);
        self.dropped.add(OutputStream::Stderr, exited.stderr.dropped_bytes);
    }

    /// The registry of these counters and the collector's metrics.
    fn registry(&self, collector: impl Collector) -> Registry {
        let mut registry = Registry::default();
        let ours = registry.sub_registry_with_prefix("telexec");
        ours.register("executions", "Commands that ran and have ended", self.executions.clone());
        ours.register("start_seconds", "Time from a command's request to its process", self.start_seconds.clone());
        ours.register("execution_seconds", "Time from a command's start to its end", self.execution_seconds.clone());
        ours.register("cpu_seconds", "Processor time of commands that have ended", self.cpu_seconds.clone());
        ours.register("output_bytes", "Bytes that commands wrote", self.output.all.clone());
        ours.register("output_dropped_bytes", "Bytes of output that were sent to no caller", self.dropped.all.clone());
        ours.register("start_failures", "Commands whose start failed", self.start_failures.clone());
        ours.register("refusals", "Commands and callers that were refused", self.refusals.clone());
        ours.register("policy_decisions", "Calls that were allowed or denied", self.decisions.clone());
        ours.register("handshakes", "Connection handshakes, by result", self.handshakes.clone());
        ours.register("file_received_bytes", "Bytes that callers wrote to files", self.file_received.clone());
        ours.register("file_sent_bytes", "Bytes of files that callers were sent", self.file_sent.clone());
        registry.register_collector(Box::new(collector));
        registry
    }
}

fn decision(rpc: Rpc, allowed: bool) -> Labels<2> {
    [("decision", if allowed { "allow" } else { "deny" }), ("rpc", rpc.as_str())]
}

/// A counter for each of the two output streams, without a lookup by label.
struct Streams {
    all: Family<Labels<1>, Counter>,
    stdout: Counter,
    stderr: Counter,
}

impl Streams {
    fn new() -> Self {
        let all = Family::<Labels<1>, Counter>::default();
        let of = |stream| all.get_or_create_owned(&[("stream", stream)]);
        let (stdout, stderr) = (of("stdout"), of("stderr"));
        Self { all, stdout, stderr }
    }

    fn add(&self, stream: OutputStream, bytes: u64) {
        match stream {
            OutputStream::Stdout => self.stdout.inc_by(bytes),
            OutputStream::Stderr => self.stderr.inc_by(bytes),
        };
    }
}
