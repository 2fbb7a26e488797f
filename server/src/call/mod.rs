//! One call: its RPC, caller and deadline.

pub(crate) mod caller;
pub(crate) mod deadline;
pub(crate) mod events;
mod rpc;
pub(crate) mod status;

use std::sync::Arc;

use telexec_engine::ConnectionState;
use telexec_executor::TraceContext;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

pub(crate) use self::rpc::Rpc;
use crate::call::caller::Caller;
use crate::call::deadline::Deadline;
use crate::request_memory::Reservation;

/// Headers of W3C Trace Context.
const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// A call, as needed for the policy and the logs.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) rpc: Rpc,
    pub(crate) caller: Arc<Caller>,
    pub(crate) deadline: Deadline,
    /// Whether its connection is lost.
    pub(crate) connection: ConnectionState,
    /// The memory of its request.
    pub(crate) reservation: Arc<Reservation>,
    /// The caller's span, if it is part of a trace.
    pub(crate) trace: Option<TraceContext>,
}

impl Call {
    /// From the caller and the deadline in the request's extensions.
    ///
    /// # Errors
    /// They are missing.
    pub(crate) fn of<T>(request: &Request<T>, rpc: Rpc) -> Result<Self, Status> {
        let caller = request.extensions().get::<Arc<Caller>>();
        let caller = caller.ok_or_else(|| Status::unauthenticated("the transport did not say who calls"))?;
        let reservation = request.extensions().get::<Arc<Reservation>>();
        let reservation = reservation.ok_or_else(|| Status::internal("the transport did not count the request"))?;
        let deadline = request.extensions().get::<Deadline>().cloned().unwrap_or_default();
        let connection = request.extensions().get::<ConnectionState>().cloned().unwrap_or_default();
        let trace = trace(request.metadata());
        let (caller, reservation) = (Arc::clone(caller), Arc::clone(reservation));
        Ok(Self { rpc, caller, deadline, connection, reservation, trace })
    }
}

/// `None`: missing, or malformed, which the recommendation says to ignore.
fn trace(metadata: &MetadataMap) -> Option<TraceContext> {
    let mut parents = metadata.get_all(TRACEPARENT).iter();
    let parent = parents.next()?.to_str().ok()?;
    let states = metadata.get_all(TRACESTATE).iter().map(|state| state.to_str());
    // one unreadable value makes all of them malformed
    let states = states.collect::<Result<Vec<_>, _>>().unwrap_or_default().join(",");
    parents.next().is_none().then(|| TraceContext::parse(parent, &states)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(headers: &[(&'static str, &str)]) -> Option<TraceContext> {
        let mut metadata = MetadataMap::new();
        for (name, value) in headers {
            metadata.append(*name, value.parse().unwrap());
        }
        trace(&metadata)
    }

    #[test]
    fn a_trace_is_known_by_its_headers() {
        let parent = (TRACEPARENT, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        let trace = of(&[parent, (TRACESTATE, "a=1"), (TRACESTATE, "b=2, c=3")]).unwrap();
        assert_eq!((trace.traceparent().as_str(), trace.tracestate()), (parent.1, "a=1,b=2,c=3"));
        assert_eq!(of(&[parent, (TRACESTATE, "a=1"), (TRACESTATE, "A")]).unwrap().tracestate(), "");
        assert_eq!(of(&[parent, parent]), None);
        assert_eq!(of(&[(TRACESTATE, "a=1")]), None);
        assert_eq!(of(&[]), None);
    }
}
