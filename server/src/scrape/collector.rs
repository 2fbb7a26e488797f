//! Metrics that are read at the time of a scrape, not counted: the current state of the agent.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use procfs::WithCurrentSystemInfo;
use procfs::process::Process;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use telexec_engine::LocalExecutor;

use crate::admission::Stack;
use crate::audit::{self, Audit, CollectorReport, Protocol, RecordingsReport, ShippingReport};
use crate::config::Config;
use crate::forward::ForwardLimiter;
use crate::listen::connection_limiter::ConnectionLimiter;
use crate::logging;
use crate::policy::PolicyFile;
use crate::reload::{ReloadStates, Watched};
use crate::tls::Tls;

/// Reads the current state.
pub(crate) struct AgentCollector {
    engine: LocalExecutor,
    audit: Audit,
    connections: ConnectionLimiter,
    forwards: ForwardLimiter,
    collector: Option<audit::Collector>,
    tls: Option<Tls>,
    reloads: ReloadStates,
    policy: Option<Watched<PolicyFile>>,
    max_executions: u32,
    max_connections: u32,
}

impl AgentCollector {
    pub(crate) fn new(
        config: &Config,
        stack: &Stack,
        connections: &ConnectionLimiter,
        forwards: &ForwardLimiter,
        collector: Option<audit::Collector>,
        tls: Option<Tls>,
        reloads: ReloadStates,
    ) -> Self {
        let (engine, audit, policy) = (stack.engine.clone(), stack.audit.clone(), stack.policy.clone());
        let (connections, forwards) = (connections.clone(), forwards.clone());
        let Config { max_executions, max_connections, .. } = *config;
        Self { engine, audit, connections, forwards, collector, tls, reloads, policy, max_executions, max_connections }
    }

    /// The agent's own metrics.
    fn encode_agent(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        encoder.info("telexec_build", "Version of the agent", ("version", env!("CARGO_PKG_VERSION")))?;
        let containment = self.engine.containment().as_str();
        encoder.info(
            "telexec_containment",
            "How the processes of a command are kept together",
            ("containment", containment),
        )?;
        encoder.gauge("telexec_executions_running", "Running commands", self.engine.running() as f64)?;
        encoder.gauge(
            "telexec_executions_limit",
            "Maximum of running commands (max_executions)",
            self.max_executions.into(),
        )?;
        encoder.gauge("telexec_connections", "Open authenticated connections", self.connections.open() as f64)?;
        encoder.gauge(
            "telexec_connections_limit",
            "Maximum of open connections (max_connections)",
            self.max_connections.into(),
        )?;
        self.encode_forwards(encoder)?;
        if let Some(end) = self.tls.as_ref().and_then(Tls::end) {
            encoder.gauge(
                "telexec_certificate_expiry_timestamp_seconds",
                "The last second of the agent's certificate",
                since_epoch(end),
            )?;
        }
        if let Some(policy) = &self.policy {
            let digest = &policy.current().digest;
            encoder.info("telexec_policy", "The policy in use, by the SHA-256 of its text", ("sha256", digest))?;
        }
        encoder.gauges(
            "telexec_reload_failing",
            "1: changed files could not be read again, and what was read before is in use",
            "what",
            self.reloads.all().into_iter().map(|(what, fails)| (what, f64::from(u8::from(fails)))),
        )?;
        if let Some(responds) = self.engine.keeper_responds() {
            let fails = !*responds.borrow();
            encoder.gauge(
                "telexec_keeper_failing",
                "1: the keeper does not respond, and nothing can be started",
                f64::from(u8::from(fails)),
            )?;
        }
        encoder.counter("telexec_log_dropped_lines", "Lines of the log that were lost", logging::dropped() as f64)?;
        if let Some((missing, fails)) = self.audit.faults() {
            encoder.counter("telexec_audit_dropped", "Records that are missing in the audit log", missing as f64)?;
            encoder.gauge(
                "telexec_audit_failing",
                "1: the audit log cannot be written now",
                f64::from(u8::from(fails)),
            )?;
        }
        if let Some(RecordingsReport { bytes, incomplete }) = self.audit.recordings() {
            encoder.gauge(
                "telexec_audit_recordings_bytes",
                "Bytes of all recordings, each counted as 16 KiB at least",
                bytes as f64,
            )?;
            encoder.counter(
                "telexec_audit_recordings_incomplete",
                "Recordings that could not be written to their end",
                incomplete as f64,
            )?;
        }
        for ShippingReport { protocol, failing, pending, lost } in self.audit.shipping() {
            let [failing_name, pending_name, lost_name] = match protocol {
                Protocol::Syslog => [
                    "telexec_audit_syslog_failing",
                    "telexec_audit_syslog_pending_records",
                    "telexec_audit_syslog_lost_records",
                ],
                Protocol::Otlp => [
                    "telexec_audit_otlp_failing",
                    "telexec_audit_otlp_pending_records",
                    "telexec_audit_otlp_lost_records",
                ],
            };
            let help = format!("1: records of the audit log cannot be sent to {protocol} now");
            encoder.gauge(failing_name, &help, f64::from(u8::from(failing)))?;
            let help = format!("Records that are not known to have been delivered to {protocol}");
            encoder.gauge(pending_name, &help, pending as f64)?;
            let help =
                format!("Records that will never reach {protocol}: they were removed before, or it rejected them");
            encoder.counter(lost_name, &help, lost as f64)?;
        }
        self.collector.as_ref().map_or(Ok(()), |collector| encode_collected(encoder, collector.report()))
    }
}

/// The audit logs of other agents.
fn encode_collected(encoder: &mut MetricEncoder<'_>, report: CollectorReport) -> fmt::Result {
    let CollectorReport { stored, repeated, rejected, breaks, refused, agents, bytes } = report;
    for (name, help, count) in [
        ("stored", "Records of other agents' audit logs that were stored", stored),
        ("repeated", "Records of other agents' audit logs that were received again", repeated),
        ("rejected", "Log records that are no records of audit logs, or were changed", rejected),
    ] {
        encoder.counter(&format!("telexec_audit_collector_{name}_records"), help, count as f64)?;
    }
    encoder.counter(
        "telexec_audit_collector_breaks",
        "Records of other agents' audit logs that do not follow the ones before them",
        breaks as f64,
    )?;
    encoder.counter(
        "telexec_audit_collector_refused_requests",
        "Requests of other agents that were not stored, and are sent again",
        refused as f64,
    )?;
    encoder.gauge("telexec_audit_collector_agents", "Agents whose audit logs are collected", agents as f64)?;
    encoder.gauge("telexec_audit_collector_bytes", "Bytes of collected audit logs", bytes as f64)
}

impl AgentCollector {
    fn encode_forwards(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        let forwards = &self.forwards;
        encoder.gauge(
            "telexec_forwards",
            "Open forwards: connections, and sockets that listen",
            forwards.open().into(),
        )?;
        encoder.gauge("telexec_forwards_limit", "Maximum of open forwards (max_forwards)", forwards.limit().into())?;
        encoder.counter(
            "telexec_forward_received_bytes",
            "Bytes that callers sent into forwarded connections",
            forwards.received() as f64,
        )?;
        encoder.counter(
            "telexec_forward_sent_bytes",
            "Bytes that callers were sent from forwarded connections",
            forwards.sent() as f64,
        )
    }
}

impl fmt::Debug for AgentCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentCollector").finish_non_exhaustive()
    }
}

impl Collector for AgentCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut encoder = MetricEncoder(encoder);
        self.encode_agent(&mut encoder)?;
        match encode_process(&mut encoder) {
            // the other metrics are still served
            Err(Fault::Lookup) | Ok(()) => Ok(()),
            Err(Fault::Write(error)) => Err(error),
        }
    }
}

/// Why the process metrics are missing.
enum Fault {
    Lookup,
    Write(fmt::Error),
}

impl From<procfs::ProcError> for Fault {
    fn from(_: procfs::ProcError) -> Self {
        Self::Lookup
    }
}

impl From<fmt::Error> for Fault {
    fn from(error: fmt::Error) -> Self {
        Self::Write(error)
    }
}

/// Process metrics, by their conventional names.
fn encode_process(encoder: &mut MetricEncoder<'_>) -> Result<(), Fault> {
    let own = Process::myself()?;
    let (stat, limits) = (own.stat()?, own.limits()?);
    let a_second = procfs::ticks_per_second() as f64;
    let started = procfs::boot_time_secs()? as f64 + stat.starttime as f64 / a_second;
    let cpu = (stat.utime + stat.stime) as f64 / a_second;
    encoder.counter("process_cpu_seconds", "Processor time of the agent itself", cpu)?;
    encoder.gauge(
        "process_resident_memory_bytes",
        "Resident memory of the agent, in bytes",
        stat.rss_bytes().get() as f64,
    )?;
    encoder.gauge("process_virtual_memory_bytes", "Virtual memory of the agent, in bytes", stat.vsize as f64)?;
    encoder.gauge("process_threads", "Threads of the agent", stat.num_threads as f64)?;
    encoder.gauge("process_start_time_seconds", "Start time of the agent, in seconds since the Unix epoch", started)?;
    encoder.gauge("process_open_fds", "Open file descriptors of the agent", own.fd_count()? as f64)?;
    if let procfs::process::LimitValue::Value(most) = limits.max_open_files.soft_limit {
        encoder.gauge("process_max_fds", "Maximum of open file descriptors of the agent", most as f64)?;
    }
    Ok(())
}

fn since_epoch(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Encodes single metrics.
struct MetricEncoder<'a>(DescriptorEncoder<'a>);

impl MetricEncoder<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        self.metric(name, help, &ConstGauge::new(value))
    }

    fn counter(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        self.metric(name, help, &ConstCounter::new(value))
    }

    /// One for each value of this label.
    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: impl IntoIterator<Item = (&'static str, f64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, &format!("{help}."), None, MetricType::Gauge)?;
        for (value, number) in values {
            ConstGauge::new(number).encode(family.encode_family(&[(label, value)])?)?;
        }
        Ok(())
    }

    fn info(&mut self, name: &str, help: &str, (label, value): (&'static str, &str)) -> fmt::Result {
        self.metric(name, help, &Info::new([(label, value.to_owned())]))
    }

    fn metric(&mut self, name: &str, help: &str, metric: &impl EncodeMetric) -> fmt::Result {
        metric.encode(self.0.encode_descriptor(name, &format!("{help}."), None, metric.metric_type())?)
    }
}
