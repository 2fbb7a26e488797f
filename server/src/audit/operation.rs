//! What is recorded of calls that start nothing.

use std::time::Duration;

use serde::Serialize;
use telexec_executor::{ExecutionId, ExecutorError, Signal};

use super::command::{clip, clip_line};
use super::json;
use super::record::{Failure, clip_name};
use crate::call::{Call, Rpc};
use crate::identity::Identity;
use crate::policy::{Endpoint, FileUse, PortUse};
use crate::timestamp::ms;

/// An operation on an execution.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Operation<'a> {
    /// The RPC whose permission was checked, if not that of the call.
    pub(crate) action: Option<Rpc>,
    pub(crate) execution_id: Option<&'a ExecutionId>,
    pub(crate) signal: Option<Signal>,
    /// The output position to attach from.
    pub(crate) position: Option<u64>,
    /// The identity that was asked about, or whose start is approved or rejected.
    pub(crate) about: Option<&'a Identity>,
    /// Which approval.
    pub(crate) approval_id: Option<&'a str>,
    /// Why it is approved or rejected.
    pub(crate) reason: Option<&'a str>,
    /// What is forwarded.
    pub(crate) port: Option<&'a PortUse>,
    /// The file that is used.
    pub(crate) file: Option<&'a FileUse>,
    /// What is looked for in files.
    pub(crate) pattern: Option<&'a str>,
}

/// What came of a forward.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForwardOutcome<'a> {
    /// Bytes from the caller.
    pub(crate) received: u64,
    /// Bytes to the caller.
    pub(crate) sent: u64,
    pub(crate) wall_time: Duration,
    /// Why it ended.
    pub(crate) cause: &'static str,
    /// The error of the system, if there was one.
    pub(crate) errno: Option<&'a str>,
}

/// What came of the use of a file.
#[derive(Debug, Default)]
pub(crate) struct FileOutcome {
    /// Of its content, as it was sent or received.
    pub(crate) bytes: u64,
    /// Of that; `None`: the caller did not get or send all of it.
    pub(crate) sha256: Option<String>,
    /// Of a search: what was looked for.
    pub(crate) pattern: Option<String>,
    /// `None`: it was done.
    pub(crate) error: Option<Failure>,
}

impl FileOutcome {
    /// It failed, or its caller went.
    pub(crate) fn failed(bytes: u64, error: Option<&ExecutorError>) -> Self {
        Self { bytes, sha256: None, pattern: None, error: Some(error.map_or_else(Failure::given_up, Failure::from)) }
    }
}

/// The operation on an execution.
#[derive(Debug, Serialize)]
pub(super) struct OperationRecord {
    /// The RPC with the same effect, if it was done in the course of another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) action: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) signal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) position: Option<u64>,
    /// The identity that CheckCommand was asked about, if not the caller's, or whose start is approved or rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) about: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) approval_id: Option<String>,
    /// Why it is approved or rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) review_reason: Option<String>,
    #[serde(flatten)]
    pub(super) port: Option<UsedPort>,
    #[serde(flatten)]
    pub(super) file: Option<UsedFile>,
    /// What is looked for in files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pattern: Option<String>,
}

impl OperationRecord {
    /// `pattern`: as it may be recorded.
    pub(super) fn new(call: &Call, operation: Operation<'_>, pattern: Option<String>) -> Self {
        let action = operation.action.filter(|action| *action != call.rpc).map(Rpc::as_str);
        let action = operation.port.map(|used| used.action.as_str()).or(action);
        Self {
            action: operation.file.map(|file| file.action.as_str()).or(action),
            signal: operation.signal.map(|signal| signal.to_string()),
            position: operation.position,
            about: operation.about.map(|identity| clip_name(identity.as_str())),
            approval_id: operation.approval_id.map(clip),
            review_reason: operation.reason.filter(|reason| !reason.is_empty()).map(clip),
            port: operation.port.map(UsedPort::from),
            file: operation.file.map(UsedFile::new),
            pattern,
        }
    }
}

/// What is forwarded.
#[derive(Debug, Default, Serialize)]
pub(super) struct UsedPort {
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unix_path: Option<String>,
    /// Who uses a Unix socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
}

impl From<&PortUse> for UsedPort {
    fn from(used: &PortUse) -> Self {
        let user = used.user.as_deref().map(clip);
        match &used.endpoint {
            Endpoint::Tcp { host, port } => Self { host: Some(clip(host)), port: Some(*port), user, ..Self::default() },
            Endpoint::Unix(path) => Self { unix_path: Some(clip(path)), user, ..Self::default() },
        }
    }
}

/// The end of a forward.
#[derive(Debug, Serialize)]
pub(super) struct ForwardRecord {
    action: &'static str,
    #[serde(flatten)]
    port: UsedPort,
    cause: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<String>,
    received_bytes: u64,
    sent_bytes: u64,
    wall_ms: u64,
}

impl ForwardRecord {
    pub(super) fn new(used: &PortUse, outcome: ForwardOutcome<'_>) -> Self {
        Self {
            action: used.action.as_str(),
            port: used.into(),
            cause: outcome.cause,
            errno: outcome.errno.map(clip_name),
            received_bytes: outcome.received,
            sent_bytes: outcome.sent,
            wall_ms: ms(outcome.wall_time),
        }
    }
}

/// A file, and the user who opens it.
#[derive(Debug, Serialize)]
pub(super) struct UsedFile {
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
}

/// Longer paths are cut: as of the kernel.
const MAX_PATH_BYTES: u64 = 4096;

impl UsedFile {
    pub(super) fn new(file: &FileUse) -> Self {
        let path = file.path.as_deref().map(|path| clip_line(MAX_PATH_BYTES, path));
        Self { path, user: file.user.as_deref().map(clip) }
    }
}

/// An upper bound of what the record of a file has beside others.
pub(super) fn file_length(file: &FileUse) -> u64 {
    [&file.path, &file.user].into_iter().flatten().map(json::length).sum()
}

/// What came of the use of a file.
#[derive(Debug, Serialize)]
pub(super) struct FileRecord {
    action: &'static str,
    #[serde(flatten)]
    file: UsedFile,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pattern: Option<String>,
    #[serde(flatten)]
    failure: Option<Failure>,
}

impl FileRecord {
    pub(super) fn new(file: &FileUse, outcome: FileOutcome) -> Self {
        let FileOutcome { bytes, sha256, pattern, error } = outcome;
        Self { action: file.action.as_str(), file: UsedFile::new(file), bytes, sha256, pattern, failure: error }
    }
}
