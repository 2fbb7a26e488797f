//! Why an action has no result, and what the server is told.

use bazel_remote_apis::google::protobuf::Any;
use bazel_remote_apis::google::rpc;
use prost::Message;
use telexec_executor::ExecutorError;
use tonic::Code;
use tonic_types::pb::PreconditionFailure;
use tonic_types::pb::precondition_failure::Violation;

use crate::cas::CasError;
use crate::digest::{Digest, InvalidDigest};
use crate::owned::OwnedError;
use crate::sftp::SftpError;

const PRECONDITION_FAILURE: &str = "type.googleapis.com/google.rpc.PreconditionFailure";

/// Of a failure's text, which may quote what a client sent: with many outcomes it is one message to the server.
const MAX_TEXT_BYTES: usize = 4 * 1024;
/// Missing blobs that are named: about half a megabyte.
const MAX_VIOLATIONS: usize = 5_000;

/// Why an action has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The lease or its action is malformed: no worker can run it.
    #[error("{0}")]
    Invalid(String),
    /// It asks for what this worker does not have, or its command cannot be started.
    #[error("{0}")]
    Unsatisfied(String),
    /// The CAS lacks blobs that it needs: its client is to upload them, and ask again.
    #[error("the CAS lacks {} that the action needs, such as {}", blobs(.0.len()), first(.0))]
    Missing(Vec<Digest>),
    /// It is larger than this worker takes.
    #[error("{0}")]
    TooLarge(String),
    /// The agent's policy denies it.
    #[error("the agent does not permit it")]
    Denied(#[source] ExecutorError),
    /// The target cannot run it now: another one may.
    #[error("the target {target} cannot run it now")]
    Target {
        /// Which.
        target: String,
        /// What failed.
        source: TargetError,
    },
    /// The agent has as much to do as it takes.
    #[error("the agent of the target {target} is busy")]
    Busy {
        /// Which.
        target: String,
        /// Its limit.
        source: ExecutorError,
    },
    /// The server hands out more than it was told to.
    #[error("the bot has as many leases as it takes")]
    Surplus,
    /// The CAS does not answer, or not as it should.
    #[error("the CAS cannot be used now")]
    Cas(#[source] CasError),
    /// The server has taken the lease back, or this worker ends.
    #[error("the worker has let go of the action")]
    LetGo,
}

/// What failed on a target.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    /// Its agent, or the way to it.
    #[error(transparent)]
    Agent(#[from] ExecutorError),
    /// A file of this worker.
    #[error(transparent)]
    File(#[from] SftpError),
    /// A directory of this worker.
    #[error(transparent)]
    Directory(#[from] OwnedError),
    /// The agent was shut down while the action ran.
    #[error("the agent was shut down while the action ran")]
    Shutdown,
    /// It ran, and nobody knows all that it wrote.
    #[error("the agent has lost a part of the action's output")]
    Gap,
}

impl TargetError {
    /// The disk has no room.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Self::File(error) | Self::Directory(OwnedError::File(error) | OwnedError::Make { source: error, .. }) => {
                error.is_full()
            }
            _ => false,
        }
    }
}

fn blobs(count: usize) -> String {
    if count == 1 { "a blob".to_owned() } else { format!("{count} blobs") }
}

fn first(digests: &[Digest]) -> String {
    digests.first().map(ToString::to_string).unwrap_or_default()
}

impl From<InvalidDigest> for Failure {
    fn from(error: InvalidDigest) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<CasError> for Failure {
    fn from(error: CasError) -> Self {
        match error {
            CasError::Missing(digests) => Self::Missing(digests),
            error => Self::Cas(error),
        }
    }
}

impl Failure {
    /// What failed on a target. A limit of its agent is no fault.
    pub(crate) fn of_target(target: &str, source: impl Into<TargetError>) -> Self {
        let target = target.to_owned();
        match source.into() {
            TargetError::Agent(source @ ExecutorError::Exhausted { .. }) => Self::Busy { target, source },
            source => Self::Target { target, source },
        }
    }

    /// In words, with the causes. What a client sent may be a part of it.
    pub(crate) fn text(&self) -> String {
        let mut text = crate::chain(self);
        if text.len() > MAX_TEXT_BYTES {
            text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
            text.push_str("...");
        }
        text
    }

    /// Whether the target is to blame, and should rest before it gets more to do.
    pub(crate) fn is_of_target(&self) -> bool {
        matches!(self, Self::Target { .. })
    }

    /// The target's disk is full.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Target { source, .. } if source.is_full())
    }

    /// As the lease has it. Servers hand a lease with `UNAVAILABLE` to another bot, and all others to the client.
    pub(crate) fn to_status(&self) -> rpc::Status {
        let code = match self {
            Self::Invalid(_) => Code::InvalidArgument,
            Self::Unsatisfied(_) | Self::Missing(_) => Code::FailedPrecondition,
            Self::TooLarge(_) => Code::ResourceExhausted,
            Self::Denied(_) => Code::PermissionDenied,
            Self::Target { .. } | Self::Busy { .. } | Self::Surplus | Self::Cas(_) | Self::LetGo => Code::Unavailable,
        };
        let details = match self {
            Self::Missing(digests) => vec![violations(digests)],
            _ => Vec::new(),
        };
        rpc::Status { code: code.into(), message: self.text(), details }
    }
}

/// The form in which the Remote Execution API wants missing blobs to be named. Of many, the next ones are named next time.
fn violations(digests: &[Digest]) -> Any {
    let violation = |digest: &Digest| Violation {
        r#type: "MISSING".to_owned(),
        subject: format!("blobs/{digest}"),
        description: String::new(),
    };
    let failure = PreconditionFailure { violations: digests.iter().take(MAX_VIOLATIONS).map(violation).collect() };
    Any { type_url: PRECONDITION_FAILURE.to_owned(), value: failure.encode_to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_is_told_is_bounded() {
        let status = Failure::Invalid("a".to_owned() + &"ä".repeat(MAX_TEXT_BYTES)).to_status();
        assert!(status.message.len() <= MAX_TEXT_BYTES + 3 && status.message.ends_with("ä..."));
        let digest = crate::args::DigestFunction::Sha256.digest(b"");
        assert!(Failure::Missing(vec![digest; 500_000]).to_status().encoded_len() < 1024 * 1024);
    }
}
