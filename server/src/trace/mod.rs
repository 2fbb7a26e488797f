//! The agent's part of a trace: a span for each command, between its caller's span and its own.

#[cfg(feature = "otlp")]
mod otlp;
/// The same without anything that sends spans.
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

/// Where spans go, if they go anywhere; its clones go to the same place.
#[derive(Clone)]
pub(crate) struct Traces(Option<Arc<Exporter>>);

impl Traces {
    /// To a collector, whose address [`check`] has found to be one. Needs the runtime.
    ///
    /// # Errors
    /// It cannot be sent to.
    pub(crate) fn to(endpoint: Option<&str>) -> Result<Self, String> {
        Ok(Self(endpoint.map(Exporter::new).transpose()?.map(Arc::new)))
    }

    /// The same command in a span of its own, if its call is a part of a trace or spans are sent; and the span, if it is.
    pub(crate) fn continued(&self, call: &Call, command: Command) -> (Command, Option<Span>) {
        let parent = call.trace.as_ref();
        let Some(exporter) = &self.0 else {
            let trace = parent.and_then(|parent| Some(parent.child(new_span()?)));
            return (command.with_trace(trace), None);
        };
        let (trace, span) = exporter.begin(call, parent);
        (command.with_trace(trace), Some(span))
    }

    /// Sends what was not sent yet, if that is soon done.
    pub(crate) async fn close(self, workers: &Workers) {
        if let Some(exporter) = self.0 {
            // it waits
            let _ = workers.run("traces", move || exporter.close()).await;
        }
    }
}

/// Ends the span of a command that is not started.
pub(crate) fn refused(span: Option<Span>, error: &ExecutorError) {
    if let Some(mut span) = span {
        span.fail(error);
    }
}

/// Lets the span see a command too that `others` see.
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

/// `None`: the system has no random numbers.
fn new_span() -> Option<[u8; 8]> {
    let mut id = [0; 8];
    fill(&mut id).ok()?;
    (id != [0; 8]).then_some(id)
}
