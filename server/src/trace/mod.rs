//! Tracing: a span for each command, between the caller's span and the command's own.

#[cfg(feature = "otlp")]
mod otlp;
/// The same without an exporter.
#[cfg(not(feature = "otlp"))]
#[path = "none.rs"]
mod otlp;

use std::sync::Arc;

use aws_lc_rs::rand::fill;
use telexec_engine::Workers;
use telexec_executor::TraceContext;

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

    /// A new span for a command: the trace context to pass to the command, if the call has one or spans are exported; and the
    /// span, if they are.
    pub(crate) fn begin(&self, call: &Call) -> (Option<TraceContext>, Option<Span>) {
        let parent = call.trace.as_ref();
        let Some(exporter) = &self.0 else {
            return (parent.and_then(|parent| Some(parent.child(new_span()?))), None);
        };
        let (trace, span) = exporter.begin(call, parent);
        (trace, Some(span))
    }

    /// Exports the remaining spans, within a short timeout.
    pub(crate) async fn close(self, workers: &Workers) {
        if let Some(exporter) = self.0 {
            // it blocks
            let _ = workers.run("traces", move || exporter.close()).await;
        }
    }
}

/// `None`: the system's random numbers are not available.
fn new_span() -> Option<[u8; 8]> {
    let mut id = [0; 8];
    fill(&mut id).ok()?;
    (id != [0; 8]).then_some(id)
}
