//! The contents of records.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use telexec_executor::{ExecutionId, ExecutorError, TraceContext};
use time::OffsetDateTime;

use super::command::{Asked, clip, clip_to};
use super::json;
use super::operation::{FileRecord, ForwardRecord, OperationRecord};
use super::recording::Recorded;
use super::rejected::RejectedPeer;
use crate::call::Call;
use crate::call::caller::Caller;
use crate::policy::Decision;
use crate::timestamp::rfc3339;

/// A record without the fields of the chain.
#[derive(Debug)]
pub(super) struct Record {
    time: OffsetDateTime,
    execution_id: Option<ExecutionId>,
    origin: Option<Arc<Origin>>,
    body: Body,
}

#[derive(Serialize)]
struct Line<'a> {
    seq: u64,
    time: String,
    event: &'static str,
    agent: &'a str,
    #[serde(skip_serializing_if = "is_zero")]
    dropped: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_id: Option<&'a str>,
    #[serde(flatten)]
    origin: Option<&'a Origin>,
    #[serde(flatten)]
    body: &'a Body,
    prev: &'a str,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Record {
    /// With the current time.
    pub(super) fn new(body: Body) -> Self {
        Self { time: OffsetDateTime::now_utc(), execution_id: None, origin: None, body }
    }

    pub(super) fn of(self, origin: &Arc<Origin>) -> Self {
        Self { origin: Some(Arc::clone(origin)), ..self }
    }

    pub(super) fn about(self, id: Option<&ExecutionId>) -> Self {
        Self { execution_id: id.cloned(), ..self }
    }

    /// An end with what was recorded of the execution.
    pub(super) fn with_recording(mut self, recorded: Recorded) -> Self {
        if let Body::End(end) = &mut self.body {
            end.recording = Some(recorded);
        }
        self
    }

    /// Whether it reports the outcome of a start.
    pub(super) fn is_end(&self) -> bool {
        matches!(self.body, Body::End(_) | Body::NotStarted(_))
    }

    /// The text of its line.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn text(&self, seq: u64, prev: &str, agent: &str, dropped: u64) -> io::Result<Vec<u8>> {
        json::to_line(&Line {
            seq,
            time: rfc3339(self.time),
            event: self.body.event(),
            agent,
            dropped,
            execution_id: self.execution_id.as_ref().map(ExecutionId::as_str),
            origin: self.origin.as_deref(),
            body: &self.body,
            prev,
        })
    }
}

/// Who called, from where, and what.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Origin {
    identity: String,
    transport: Cow<'static, str>,
    peer: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_gid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_serial: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_fingerprint: Option<String>,
    /// The peer of the connection, if a token names another caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    presented_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_id: Option<String>,
    /// The roles that the token gives the caller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    token_roles: Vec<String>,
    rpc: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
}

impl Origin {
    pub(super) fn of(call: &Call) -> Arc<Self> {
        let trace_id = call.trace.as_ref().map(TraceContext::trace_id);
        Self::of_caller(&call.caller, call.rpc.as_str().into(), trace_id)
    }

    /// Of peers that were not authenticated.
    pub(super) fn of_nobody() -> Arc<Self> {
        Arc::new(Self {
            identity: String::new(),
            transport: "".into(),
            peer: String::new(),
            peer_pid: None,
            peer_uid: None,
            peer_gid: None,
            certificate_serial: None,
            certificate_fingerprint: None,
            presented_by: None,
            token_id: None,
            token_roles: Vec::new(),
            rpc: "".into(),
            trace_id: None,
        })
    }

    pub(super) fn of_caller(caller: &Caller, rpc: Cow<'static, str>, trace_id: Option<String>) -> Arc<Self> {
        Arc::new(Self {
            identity: clip(caller.identity.as_str()),
            transport: caller.transport.as_str().into(),
            peer: clip(&caller.address),
            peer_pid: caller.credentials.and_then(|credentials| credentials.pid()),
            peer_uid: caller.credentials.map(|credentials| credentials.uid()),
            peer_gid: caller.credentials.map(|credentials| credentials.gid()),
            certificate_serial: caller.certificate().map(|certificate| certificate.serial.clone()),
            certificate_fingerprint: caller.certificate().map(|certificate| certificate.fingerprint.clone()),
            presented_by: caller.presented_by.as_ref().map(|identity| clip(identity.as_str())),
            token_roles: caller.roles().iter().take(MAX_RULES).map(|role| clip_name(role)).collect(),
            token_id: caller.token.as_ref().and_then(|token| token.named.id.as_deref()).map(clip_name),
            rpc,
            trace_id,
        })
    }
}

/// The decision on a request, and the rules behind it.
#[derive(Debug, Serialize)]
pub(super) struct Decided {
    decision: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rules: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
    /// Of a start that another identity has to approve.
    #[serde(skip_serializing_if = "Option::is_none")]
    approval_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    approved_by: Option<String>,
}

/// Further rules are not listed, and longer names are cut.
const MAX_RULES: usize = 16;
const MAX_NAME: usize = 256;

pub(super) fn clip_name(name: &str) -> String {
    clip_to(MAX_NAME, name)
}

impl From<&Decision> for Decided {
    fn from(made: &Decision) -> Self {
        Self {
            decision: if made.allowed { "allow" } else { "deny" },
            rules: made.rules.iter().take(MAX_RULES).map(|rule| clip_name(rule)).collect(),
            policy: made.policy.as_deref().map(clip),
            approval_id: made.approval_id.clone(),
            approved_by: made.approved_by.as_ref().map(|identity| clip(identity.as_str())),
        }
    }
}

/// The fields by kind of record.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Body {
    /// A command is to be started.
    Start {
        #[serde(flatten)]
        decision: Decided,
        #[serde(skip_serializing_if = "Option::is_none")]
        recording: Option<StartedRecording>,
        #[serde(flatten)]
        asked: Box<Asked>,
    },
    /// The policy denied a start.
    Denied {
        #[serde(flatten)]
        decision: Decided,
        #[serde(flatten)]
        failure: Failure,
        #[serde(flatten)]
        asked: Box<Asked>,
    },
    /// A start was refused for another reason.
    Refused {
        #[serde(flatten)]
        decision: Decided,
        #[serde(flatten)]
        failure: Failure,
        #[serde(flatten)]
        asked: Box<Asked>,
    },
    /// A command has ended.
    End(Box<End>),
    /// A start that was recorded came to nothing.
    NotStarted(NotStarted),
    /// An operation on an execution, or one that was denied.
    Call {
        #[serde(flatten)]
        decision: Decided,
        #[serde(flatten)]
        operation: Box<OperationRecord>,
        #[serde(flatten)]
        failure: Option<Failure>,
    },
    /// A request for an approval is approved or rejected.
    Review {
        #[serde(flatten)]
        decision: Decided,
        #[serde(flatten)]
        operation: Box<OperationRecord>,
        /// What would run.
        #[serde(flatten)]
        asked: Box<Asked>,
    },
    /// A forward has ended, or came to nothing.
    Forward(ForwardRecord),
    /// A file was read or written, or that failed.
    File(FileRecord),
    /// A peer was not authenticated.
    RejectedPeer(Box<RejectedPeer>),
    /// A call was refused: the certificate of its connection is no longer valid, or its token is not accepted.
    RejectedCall(Failure),
    /// Totals of a caller's records that were omitted.
    Omitted(Omitted),
    /// The agent has opened this log.
    Opened { version: &'static str, pid: u32, containment: &'static str },
    /// It has moved an unusable tail aside.
    Recovered { set_aside: String, bytes: u64 },
    /// The agent shut down in an orderly way.
    Closed {},
}

impl Body {
    fn event(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::Denied { .. } => "denied",
            Self::Refused { .. } => "refused",
            Self::End(_) => "end",
            Self::NotStarted(_) => "not_started",
            Self::Call { .. } | Self::Review { .. } => "call",
            Self::Forward(_) => "forward",
            Self::File(_) => "file",
            Self::RejectedPeer(_) | Self::RejectedCall(_) => "rejected",
            Self::Omitted(_) => "more",
            Self::Opened { .. } => "opened",
            Self::Recovered { .. } => "recovered",
            Self::Closed {} => "closed",
        }
    }
}

/// The recording that a start is to have.
#[derive(Debug, Serialize)]
pub(super) enum StartedRecording {
    /// The name of its file.
    #[serde(rename = "file")]
    File(String),
    /// Why there is none.
    #[serde(rename = "error")]
    Missing(String),
}

/// A start that came to nothing.
#[derive(Debug, Serialize)]
pub(super) struct NotStarted {
    /// The number of the start's record.
    pub(super) start: u64,
    #[serde(flatten)]
    pub(super) failure: Failure,
}

/// How a command ended.
#[derive(Debug, Serialize)]
pub(super) struct End {
    /// The number of its start's record; `None` if that could not be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) start: Option<u64>,
    pub(super) pid: u32,
    pub(super) user: String,
    pub(super) directory: String,
    pub(super) cause: &'static str,
    pub(super) exit_code: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) signal: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) core_dumped: bool,
    pub(super) wall_ms: u64,
    pub(super) cpu_ms: u64,
    pub(super) max_rss_bytes: u64,
    /// Of all processes, by their cgroup; likewise the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) all_cpu_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peak_memory_bytes: Option<u64>,
    pub(super) stdout: Written,
    pub(super) stderr: Written,
    pub(super) containment: &'static str,
    pub(super) survivors: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) recording: Option<Recorded>,
    /// Of the receipt that its caller has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) receipt_sha256: Option<String>,
}

/// What a command wrote to one of its streams.
#[derive(Debug, Serialize)]
pub(super) struct Written {
    pub(super) bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) dropped_bytes: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) incomplete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sha256: Option<String>,
}

/// Why something failed.
#[derive(Debug, Serialize)]
pub(crate) struct Failure {
    error: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stage: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<String>,
}

impl Failure {
    /// The caller was gone before the outcome.
    pub(crate) fn given_up() -> Self {
        Self { error: "given_up", message: None, stage: None, errno: None }
    }

    /// A repeated start, which follows the execution that exists.
    pub(super) fn repeated() -> Self {
        Self { error: "repeated", message: None, stage: None, errno: None }
    }
}

impl From<&ExecutorError> for Failure {
    fn from(error: &ExecutorError) -> Self {
        let (word, message) = (word(error), Some(clip(&error.to_string())));
        match error {
            // without the program's name: that is a piece of the command
            ExecutorError::Spawn(error) => Self {
                error: word,
                message: None,
                stage: Some(error.stage.as_str()),
                errno: Some(error.errno_name().into_owned()),
            },
            ExecutorError::File(error) => {
                Self { error: word, message, stage: None, errno: Some(error.errno_name().into_owned()) }
            }
            _ => Self { error: word, message, stage: None, errno: None },
        }
    }
}

fn word(error: &ExecutorError) -> &'static str {
    match error {
        ExecutorError::Invalid(_) => "invalid",
        ExecutorError::Spawn(_) => "spawn_failed",
        ExecutorError::File(_) => "file_failed",
        ExecutorError::Corrupted { .. } => "corrupted",
        ExecutorError::NoUpload(_) | ExecutorError::NoApproval(_) => "not_found",
        ExecutorError::Unsupported { .. } => "unsupported",
        ExecutorError::Unauthenticated { .. } => "unauthenticated",
        ExecutorError::Denied { .. } | ExecutorError::ApprovalRequired { .. } => "denied",
        ExecutorError::Exhausted { .. } => "exhausted",
        ExecutorError::NotFound(_) => "not_found",
        ExecutorError::AlreadyExists(_) => "already_exists",
        ExecutorError::AlreadyRunning(_) => "already_running",
        ExecutorError::FailedPrecondition { .. } => "failed_precondition",
        ExecutorError::OutOfRange { .. } => "out_of_range",
        ExecutorError::DeadlineExceeded => "deadline_exceeded",
        ExecutorError::ShuttingDown => "shutting_down",
        ExecutorError::Unreachable { .. }
        | ExecutorError::Untrusted { .. }
        | ExecutorError::Lost { .. }
        | ExecutorError::Internal(_) => "internal",
    }
}

/// Totals of one identity's omitted records.
#[derive(Debug, Serialize)]
pub(super) struct Omitted {
    /// The time of the first.
    pub(super) since: String,
    /// Commands and calls that were denied or refused.
    pub(super) denied: u64,
    /// Other calls that would have been recorded.
    pub(super) calls: u64,
}
