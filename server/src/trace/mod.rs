//! Tracing: a span for each command, between the caller's span and the command's own.

#[cfg(feature = "otlp")]
mod otlp;
/// The same without an exporter.
#[cfg(not(feature = "otlp"))]
#[path = "none.rs"]
mod otlp;

use std::sync::Arc;

use aws_lc_rs::rand::fill;
use telexec_engine::ExecutionObserver;
use telexec_engine::Workers;
use telexec_executor::{Command, ExecutionId, ExecutorError};

use self::otlp::Exporter;
pub(crate) use self::otlp::{Span, check};
use crate::call::Call;

/// The exporter of spans, if there is one; clones share it.
#[derive(Clone)]
pub(crate) struct Traces(Option<Arc<Exporter>>);

impl Traces {
    /// Exports to a collector, whose address has passed [`check`]. Needs the runtime.
    ///
    /// # Errors
    /// The exporter cannot be set up.
    pub(crate) fn to(endpoint: Option<&str>) -> Result<Self, String> {
        Ok(Self(endpoint.map(Exporter::new).transpose()?.map(Arc::new)))
    }

    /// The command with a new span as its trace context, if the call has one or spans are exported; and the span, if they are.
    pub(crate) fn continued(&self, call: &Call, command: Command) -> (Command, Option<Span>) {
        let parent = call.trace.as_ref();
        let Some(exporter) = &self.0 else {
            let trace = parent.and_then(|parent| Some(parent.child(new_span()?)));
            return (command.with_trace(trace), None);
        };
        let (trace, span) = exporter.begin(call, parent);
        (command.with_trace(trace), Some(span))
    }

    /// Exports the remaining spans, within a short timeout.
    pub(crate) async fn close(self, workers: &Workers) {
        if let Some(exporter) = self.0 {
            // it blocks
            let _ = workers.run("traces", move || exporter.close()).await;
        }
    }
}

/// Ends the span of a command that was not started.
pub(crate) fn refused(span: Option<Span>, error: &ExecutorError) {
    if let Some(mut span) = span {
        span.fail(error);
    }
}

/// Adds the span to the observers of a command.
pub(crate) fn watch(
    span: Option<Span>,
    others: Option<(ExecutionId, Box<dyn ExecutionObserver>)>,
) -> Option<(ExecutionId, Box<dyn ExecutionObserver>)> {
    let Some(span) = span else { return others };
    let (id, next) = others.unzip();
    let id = id.unwrap_or_else(ExecutionId::generate);
    let watch = span.watch(&id, next);
    Some((id, watch))
}

/// `None`: the system's random numbers are not available.
fn new_span() -> Option<[u8; 8]> {
    let mut id = [0; 8];
    fill(&mut id).ok()?;
    (id != [0; 8]).then_some(id)
}
