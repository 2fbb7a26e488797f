//! An OpenTelemetry collector: each record is a log record of OTLP, by gRPC, whose body is the line as it is.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsPartialSuccess, ExportLogsServiceRequest};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::resource::v1::Resource;
use telexec_executor::text::{printable, root_cause};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::service_fn;
use tracing::warn;

use super::state::Delivered;
use super::{Destination, DestinationConfig, Protocol, Requests, Unsent};
use crate::audit::follower::Line;
use crate::hostname::hostname;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For the acknowledgement of records.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection is closed when there was nothing to send for this long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two exports.
const SETTLE_DELAY: Duration = Duration::from_millis(1);
/// After a crash, the records of this time are sent again.
const SAVE_INTERVAL: Duration = Duration::from_secs(5);
/// Of records that are sent at once after a failure: they have to be acknowledged in time, and not to be too large for the collector.
const MIN_BATCH_BYTES: usize = 64 * 1024;
/// Of the reasons of collectors.
const MAX_REASON_BYTES: usize = 512;

pub(super) struct Otlp {
    config: DestinationConfig,
    resource: Resource,
    /// Of records that are sent at once, in bytes.
    limit: usize,
    /// The last reason of the collector, which is logged once.
    rejection: String,
}

/// Records that a collector does not take, whenever they are sent.
struct Rejected {
    records: u64,
    reason: String,
}

impl Otlp {
    pub(super) fn new(config: DestinationConfig) -> Self {
        let attributes = [
            ("service.name", "telexecd".to_owned()),
            ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
            ("host.name", hostname()),
        ];
        let attributes = attributes.into_iter().map(|(key, value)| attribute(key, Value::StringValue(value)));
        let resource = Resource { attributes: attributes.collect(), ..Resource::default() };
        Self { config, resource, limit: usize::MAX, rejection: String::new() }
    }

    /// Sends a batch, and those that come until there is none for some time.
    fn send_by(
        &mut self,
        runtime: &Runtime,
        mut batch: Vec<Line>,
        unsent: &mut Unsent,
        requests: &mut Requests<'_>,
    ) -> io::Result<()> {
        let mut client = LogsServiceClient::new(runtime.block_on(connect(&self.config))?);
        let mut saved = Instant::now();
        while let Some(last) = batch.last().map(Delivered::from) {
            let rejected = runtime.block_on(export(&mut client, &self.resource, &batch))?;
            self.report(rejected, &batch, unsent);
            unsent.delivered(last);
            self.limit = self.limit.saturating_mul(2);
            unsent.set_limit(self.limit);
            if saved.elapsed() > SAVE_INTERVAL {
                unsent.save();
                saved = Instant::now();
            }
            batch = unsent.wait_for_batch(Instant::now() + IDLE_TIMEOUT, requests)?;
            // reads what the collector has said meanwhile, as that it closes the connection: then there is another
            runtime.block_on(async { tokio::time::sleep(SETTLE_DELAY).await });
        }
        unsent.save();
        Ok(())
    }

    fn report(&mut self, rejected: Option<Rejected>, batch: &[Line], unsent: &Unsent) {
        let Some(Rejected { records, reason }) = rejected else { return };
        unsent.count_lost(records);
        if self.rejection != reason {
            let [first, last] = [batch.first(), batch.last()].map(|line| line.map(|line| line.seq));
            warn!(
                records,
                reason, first, last, "the collector rejects records of the audit log: they are not sent again"
            );
            self.rejection = reason;
        }
    }
}

impl Destination for Otlp {
    fn send_all(&mut self, unsent: &mut Unsent, requests: &mut Requests<'_>) -> io::Result<bool> {
        let batch = unsent.next_batch()?;
        if batch.is_empty() {
            return Ok(false);
        }
        // for one connection: a task that nobody polls would keep it open
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let sent = self.send_by(&runtime, batch, unsent, requests);
        // without waiting for a lookup that hangs
        runtime.shutdown_background();
        sent.map(|()| true)
    }

    fn failed(&mut self, unsent: &mut Unsent) {
        self.limit = MIN_BATCH_BYTES;
        unsent.set_limit(self.limit);
    }
}

/// Sends records. Returns how many of them the collector rejects for good, and why.
async fn export(
    client: &mut LogsServiceClient<Channel>,
    resource: &Resource,
    lines: &[Line],
) -> io::Result<Option<Rejected>> {
    let scope = InstrumentationScope { name: "telexec.audit".to_owned(), ..InstrumentationScope::default() };
    let log_records = lines.iter().map(log_record).collect();
    let scope_logs = vec![ScopeLogs { scope: Some(scope), log_records, ..ScopeLogs::default() }];
    let logs = ResourceLogs { resource: Some(resource.clone()), scope_logs, ..ResourceLogs::default() };
    let request = ExportLogsServiceRequest { resource_logs: vec![logs] };
    let exported = tokio::time::timeout(EXPORT_TIMEOUT, client.export(request)).await;
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the collector does not acknowledge the records");
    let response = exported.map_err(late)?.map_err(|status| failure(&status))?.into_inner();
    let rejected = response.partial_success.map(|ExportLogsPartialSuccess { rejected_log_records, error_message }| {
        let all = u64::try_from(lines.len()).unwrap_or(u64::MAX);
        let records = u64::try_from(rejected_log_records).unwrap_or(0).min(all);
        Rejected { records, reason: shown(&error_message) }
    });
    Ok(rejected.filter(|rejected| rejected.records > 0))
}

/// The cause if the connection has failed, or what the collector says.
fn failure(status: &Status) -> io::Error {
    match status.source() {
        Some(source) => lost(source),
        None if status.code() == Code::Unimplemented && status.message().is_empty() => io::Error::other(
            "what listens there does not collect logs: an agent does with [audit_collector] in its configuration",
        ),
        None => io::Error::other(format!("the collector answers {:?}: {}", status.code(), shown(status.message()))),
    }
}

/// The connection has failed.
fn lost(error: &(dyn Error + 'static)) -> io::Error {
    io::Error::other(shown(&root_cause(error).to_string()))
}

/// Connects, and checks the collector's certificate. Without TLS only to this machine.
async fn connect(config: &DestinationConfig) -> io::Result<Channel> {
    let server = config.server(Protocol::Otlp).map_err(io::Error::other)?;
    let tls = match server.tls {
        Some((ca, name)) => {
            let mut tls = rustls::ClientConfig::clone(&*config.tls(ca).map_err(io::Error::other)?);
            tls.alpn_protocols = vec![b"h2".to_vec()];
            Some((TlsConnector::from(Arc::new(tls)), name))
        }
        None => None,
    };
    let address: Arc<str> = server.address.into();
    let scheme = if tls.is_some() { "https" } else { "http" };
    let origin = format!("{scheme}://{address}").parse().map_err(io::Error::other)?;
    // for https it would set up TLS itself
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(io::Error::other)?;
    let endpoint = endpoint.origin(origin).connect_timeout(CONNECT_TIMEOUT);
    let connector = service_fn(move |_| {
        let (address, tls) = (Arc::clone(&address), tls.clone());
        async move {
            let stream = dial(&address, tls.is_some()).await?;
            stream.set_nodelay(true)?;
            let stream: Box<dyn crate::handshake::Stream> = match tls {
                Some((tls, name)) => Box::new(tls.connect(name, stream).await?),
                None => Box::new(stream),
            };
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    });
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, endpoint.connect_with_connector(connector)).await;
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no connection in time");
    connected.map_err(late)?.map_err(|error| lost(&error))
}

async fn dial(address: &str, is_tls: bool) -> io::Result<TcpStream> {
    let found = tokio::net::lookup_host(address).await?;
    let addresses: Vec<_> = found.filter(|address| is_tls || address.ip().is_loopback()).collect();
    let each = CONNECT_TIMEOUT / u32::try_from(addresses.len().max(1)).unwrap_or(1);
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address, or none on this machine");
    for address in addresses {
        match tokio::time::timeout(each, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failed = error,
            Err(_) => failed = io::Error::new(io::ErrorKind::TimedOut, format!("no answer from {address}")),
        }
    }
    Err(failed)
}

fn log_record(line: &Line) -> LogRecord {
    let (severity, severity_text) = match line.is_refusal() {
        true => (SeverityNumber::Warn, "WARN"),
        false => (SeverityNumber::Info, "INFO"),
    };
    let text = String::from_utf8_lossy(&line.text).into_owned();
    let trace_id = line.trace_id.as_deref().and_then(|id| u128::from_str_radix(id, 16).ok());
    LogRecord {
        time_unix_nano: humantime::parse_rfc3339(&line.time).map_or(0, since_epoch),
        observed_time_unix_nano: since_epoch(SystemTime::now()),
        severity_number: severity.into(),
        severity_text: severity_text.to_owned(),
        event_name: format!("telexec.audit.{}", line.event),
        body: Some(AnyValue { value: Some(Value::StringValue(text)) }),
        attributes: vec![attribute("telexec.audit.seq", Value::IntValue(i64::try_from(line.seq).unwrap_or(i64::MAX)))],
        trace_id: trace_id.map(|id| id.to_be_bytes().to_vec()).unwrap_or_default(),
        ..LogRecord::default()
    }
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

/// In nanoseconds.
fn since_epoch(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn shown(reason: &str) -> String {
    let end = reason.floor_char_boundary(MAX_REASON_BYTES);
    printable(reason.get(..end).unwrap_or_default())
}
