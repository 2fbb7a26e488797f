//! Exports spans to an OpenTelemetry collector, by OTLP over gRPC.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hyper::Uri;
use opentelemetry::trace::{
    Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer,
    TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, SpanData, SpanExporter};
use telexec_engine::{ExecutionObserver, MainProcess};
use telexec_executor::{ExecutionId, ExecutorError, ExitCause, Exited, TraceContext};
use tracing::{info, warn};

use crate::call::Call;
use crate::hostname::hostname;

/// For one batch; the queue meanwhile is bounded, and further spans are dropped.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// For the last batch, at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Checks the address of a collector.
///
/// # Errors
/// Why it is invalid.
pub(crate) fn check(endpoint: &str) -> Result<(), String> {
    let invalid = |why: &str| Err(format!("otlp_endpoint: {endpoint}: {why}"));
    let Ok(uri) = Uri::from_str(endpoint) else { return invalid("expected a URL such as http://127.0.0.1:4317") };
    match (uri.scheme_str(), uri.path()) {
        (Some("http"), "" | "/") if uri.authority().is_some() => Ok(()),
        (Some("https"), _) => {
            invalid("TLS is not supported, since the collector runs on this machine: use its http:// address")
        }
        (Some("http"), _) => invalid("the URL must not have a path, since the protocol is gRPC"),
        _ => invalid("expected a URL such as http://127.0.0.1:4317"),
    }
}

/// Exports spans.
pub(super) struct Exporter {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Exporter {
    pub(super) fn new(endpoint: &str) -> Result<Self, String> {
        check(endpoint)?;
        let exporter = opentelemetry_otlp::SpanExporter::builder().with_tonic();
        let exporter = exporter.with_endpoint(endpoint).with_timeout(EXPORT_TIMEOUT);
        let exporter = exporter.build().map_err(|error| format!("otlp_endpoint: {endpoint}: {error}"))?;
        let exporter = ExportLogger { exporter, fails: AtomicBool::new(false) };
        let resource = Resource::builder().with_service_name("telexecd").with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("host.name", hostname()),
        ]);
        let provider =
            SdkTracerProvider::builder().with_resource(resource.build()).with_batch_exporter(exporter).build();
        let tracer = provider.tracer("telexec");
        Ok(Self { provider, tracer })
    }

    /// A span for a command, and the trace context to pass on to the command.
    pub(super) fn begin(&self, call: &Call, parent: Option<&TraceContext>) -> (Option<TraceContext>, Span) {
        let context =
            parent.map_or_else(Context::new, |parent| Context::new().with_remote_span_context(remote(parent)));
        let builder = self.tracer.span_builder("execution").with_kind(SpanKind::Server).with_attributes([
            KeyValue::new("rpc.system", "grpc"),
            KeyValue::new("rpc.service", "telexec.v1.ExecutionService"),
            KeyValue::new("rpc.method", call.rpc.as_str()),
            KeyValue::new("telexec.identity", call.caller.identity.to_string()),
            KeyValue::new("telexec.transport", call.caller.transport.as_str()),
        ]);
        let span = self.tracer.build_with_context(builder, &context);
        let own = span.span_context();
        let span_id = own.span_id().to_bytes();
        let passed_on = match parent {
            Some(parent) => parent.child(span_id),
            None => TraceContext::root(own.trace_id().to_bytes(), span_id),
        };
        (Some(passed_on.sampled(own.is_sampled())), Span(span))
    }

    pub(super) fn close(&self) {
        let _ = self.provider.shutdown_with_timeout(SHUTDOWN_TIMEOUT);
    }
}

fn remote(trace: &TraceContext) -> SpanContext {
    let flags = TraceFlags::default().with_sampled(trace.is_sampled());
    let (trace_id, span_id) = (TraceId::from_hex(&trace.trace_id()), SpanId::from_hex(&trace.span_id()));
    let state = TraceState::from_str(trace.tracestate()).unwrap_or_default();
    let (trace_id, span_id) = (trace_id.unwrap_or(TraceId::INVALID), span_id.unwrap_or(SpanId::INVALID));
    SpanContext::new(trace_id, span_id, flags, true, state)
}

/// A command's span, which ends when it is dropped.
pub(crate) struct Span(opentelemetry_sdk::trace::Span);

impl Span {
    /// Ends the span of a command that was not started.
    pub(crate) fn fail(mut self, error: &ExecutorError) {
        self.0.set_status(Status::error(error.to_string()));
    }

    /// Ends the span with the execution of this id.
    pub(crate) fn observer(mut self, id: &ExecutionId) -> Box<dyn ExecutionObserver> {
        self.0.set_attribute(KeyValue::new("telexec.execution_id", id.to_string()));
        Box::new(SpanObserver(Mutex::new(self)))
    }

    fn end(mut self, exited: &Exited) {
        let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.0.set_attributes([
            KeyValue::new("telexec.cause", exited.cause.as_str()),
            KeyValue::new("telexec.stdout_bytes", bytes(exited.stdout.bytes)),
            KeyValue::new("telexec.stderr_bytes", bytes(exited.stderr.bytes)),
        ]);
        if let ExitCause::Exited(code) = exited.cause {
            self.0.set_attribute(KeyValue::new("process.exit.code", i64::from(code)));
        }
        match exited.cause {
            ExitCause::Exited(0) => {}
            ExitCause::Exited(code) => self.0.set_status(Status::error(format!("exit code {code}"))),
            cause => self.0.set_status(Status::error(cause.as_str())),
        }
    }
}

/// Records the outcome of a command in its span. The lock is uncontended: one task observes all of a command.
struct SpanObserver(Mutex<Span>);

impl SpanObserver {
    fn into_span(self) -> Span {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ExecutionObserver for SpanObserver {
    fn started(&self, main: &MainProcess) {
        let mut span = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        span.0.add_event("started", vec![KeyValue::new("process.pid", i64::from(main.pid))]);
    }

    fn ended(self: Box<Self>, exited: &Exited) {
        self.into_span().end(exited);
    }

    fn not_started(self: Box<Self>, error: &ExecutorError) {
        self.into_span().fail(error);
    }

    fn repeated(self: Box<Self>) {
        self.into_span().0.add_event("repeated", Vec::new());
    }
}

/// Logs once that the export fails, and once that it works again.
struct ExportLogger {
    exporter: opentelemetry_otlp::SpanExporter,
    fails: AtomicBool,
}

impl fmt::Debug for ExportLogger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExportLogger").finish_non_exhaustive()
    }
}

impl SpanExporter for ExportLogger {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let result = self.exporter.export(batch).await;
        match (self.fails.swap(result.is_err(), Ordering::Relaxed), &result) {
            (false, Err(error)) => warn!(%error, "cannot export spans to otlp_endpoint, dropping them"),
            (true, Ok(())) => info!("exporting spans to otlp_endpoint again"),
            _ => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_an_address_for_grpc() {
        for endpoint in ["http://127.0.0.1:4317", "http://[::1]:4317/", "http://collector"] {
            check(endpoint).unwrap();
        }
        for endpoint in ["", "127.0.0.1:4317", "https://a:4317", "http://a:4318/v1/traces", "unix:///a", "http://"] {
            assert!(check(endpoint).unwrap_err().starts_with("otlp_endpoint: "), "{endpoint}");
        }
    }
}
