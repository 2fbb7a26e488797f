//! One call: which, and whose.

use std::sync::Arc;

use telexec_proto::timeout;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

use crate::caller::Caller;
use crate::execution_service::invalid;

/// The header of the W3C Trace Context recommendation.
const TRACEPARENT: &str = "traceparent";

/// A call, as far as it matters to whether it is allowed and to who hears of it.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) rpc: Rpc,
    pub(crate) caller: Arc<Caller>,
    /// 32 hexadecimal digits: the trace that the call is a part of.
    pub(crate) trace_id: Option<String>,
}

impl Call {
    /// Who calls; the connection noted it. Also checks the one header that all calls may have.
    ///
    /// # Errors
    /// That header is malformed.
    pub(crate) fn of<T>(request: &Request<T>, rpc: Rpc) -> Result<Self, Status> {
        if let Some(value) = request.metadata().get(timeout::HEADER) {
            timeout::parse(value.as_bytes()).map_err(invalid)?;
        }
        let caller = request.extensions().get::<Arc<Caller>>();
        let caller = caller.ok_or_else(|| Status::unauthenticated("the transport did not say who calls"))?;
        Ok(Self { rpc, caller: Arc::clone(caller), trace_id: trace_id(request.metadata()) })
    }
}

/// Every RPC of the two services: what a policy calls an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rpc {
    Execute,
    Run,
    Interact,
    Attach,
    WriteInput,
    SignalExecution,
    ResizeTerminal,
    GetExecution,
    ListExecutions,
    GetAgent,
    CheckCommand,
}

impl Rpc {
    pub(crate) const ALL: [Self; 11] = [
        Self::Execute,
        Self::Run,
        Self::Interact,
        Self::Attach,
        Self::WriteInput,
        Self::SignalExecution,
        Self::ResizeTerminal,
        Self::GetExecution,
        Self::ListExecutions,
        Self::GetAgent,
        Self::CheckCommand,
    ];

    /// Its name in the proto.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Execute => "Execute",
            Self::Run => "Run",
            Self::Interact => "Interact",
            Self::Attach => "Attach",
            Self::WriteInput => "WriteInput",
            Self::SignalExecution => "SignalExecution",
            Self::ResizeTerminal => "ResizeTerminal",
            Self::GetExecution => "GetExecution",
            Self::ListExecutions => "ListExecutions",
            Self::GetAgent => "GetAgent",
            Self::CheckCommand => "CheckCommand",
        }
    }

    /// The group of actions that it is of, in the schema of policies.
    pub(crate) fn group(self) -> &'static str {
        match self {
            Self::Execute | Self::Run | Self::Interact => "start",
            Self::WriteInput | Self::SignalExecution | Self::ResizeTerminal => "control",
            Self::Attach | Self::GetExecution | Self::ListExecutions | Self::GetAgent | Self::CheckCommand => "read",
        }
    }
}

/// `None`: there is none, or it is malformed, which the recommendation says to ignore.
fn trace_id(metadata: &MetadataMap) -> Option<String> {
    let mut parts = metadata.get(TRACEPARENT)?.to_str().ok()?.split('-');
    let (version, trace_id) = (parts.next()?, parts.next()?);
    let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_version = version.len() == 2 && is_hex(version) && version != "ff";
    let is_trace = trace_id.len() == 32 && is_hex(trace_id) && trace_id.bytes().any(|digit| digit != b'0');
    (is_version && is_trace).then(|| trace_id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_known_by_its_header() {
        let id = "0af7651916cd43dd8448eb211c80319c";
        let of = |value: String| {
            let mut metadata = MetadataMap::new();
            metadata.insert(TRACEPARENT, value.parse().unwrap());
            trace_id(&metadata)
        };
        assert_eq!(of(format!("00-{id}-b7ad6b7169203331-01")).as_deref(), Some(id));
        assert_eq!(of(format!("cc-{id}-b7ad6b7169203331-01-more")).as_deref(), Some(id));
        for malformed in
            ["", "00", "00-", &format!("ff-{id}-b7"), &format!("0-{id}"), &format!("00-{}-b7", "0".repeat(32))]
        {
            assert_eq!(of(malformed.to_owned()), None, "{malformed}");
        }
        assert_eq!(of(format!("00-{}-b7", id.to_uppercase())), None);
        assert_eq!(trace_id(&MetadataMap::new()), None);
    }
}
