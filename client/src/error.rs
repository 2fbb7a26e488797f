//! Classifies errors of connections and calls.
//!
//! A status sent by an agent has no source. For a lost connection tonic makes a status of almost any code, with the cause in
//! its chain of sources.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use telexec_executor::{ExecutionId, ExecutorError};
use telexec_proto::convert::error_from_status;
use tonic::{Code, Status, TimeoutExpired};

pub(crate) type Source = Box<dyn Error + Send + Sync>;

/// Why connecting to an agent failed. No request was sent.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Plaintext is only for targets on this machine.
    #[error("{endpoint} is not on this machine, so it needs TLS: a certificate, its key and a CA")]
    TlsRequired {
        /// What was to be reached.
        endpoint: String,
    },
    /// A file of the [`TlsOptions`](crate::TlsOptions) cannot be used.
    #[error("cannot use {}", path.display())]
    Credentials {
        /// What was to be reached.
        endpoint: String,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Cause,
    },
    /// The SPIFFE Workload API issues no certificate that can be used. With the feature `spiffe`.
    #[error("cannot get an X.509-SVID for {endpoint}")]
    WorkloadApi {
        /// What was to be reached.
        endpoint: String,
        /// Whether a retry may succeed, as when the API is restarting.
        is_temporary: bool,
        /// The cause.
        source: Cause,
    },
    /// There is no usable [`AccessToken`](crate::AccessToken).
    #[error("cannot use the access token{}", path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default())]
    AccessToken {
        /// What was to be reached.
        endpoint: String,
        /// The file that it was to be in.
        path: Option<PathBuf>,
        /// What is wrong with it.
        source: Cause,
    },
    /// Connecting failed.
    #[error("{endpoint} is unreachable")]
    Unreachable {
        /// What was to be reached.
        endpoint: String,
        /// The cause.
        source: Cause,
    },
    /// What is expected in the agent's certificate cannot be in one, or no CA can vouch for it.
    #[error("server_name: {reason}")]
    ServerName {
        /// What was to be reached.
        endpoint: String,
        /// What is wrong.
        reason: String,
    },
    /// This side refused the agent's certificate, or the agent this side's.
    #[error("TLS authentication with {endpoint} failed")]
    Untrusted {
        /// What was to be reached.
        endpoint: String,
        /// The cause.
        source: Cause,
    },
}

/// A cause that several calls can share; its source is the error itself.
#[derive(Clone, Debug)]
pub struct Cause(Arc<dyn Error + Send + Sync>);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

impl From<Source> for Cause {
    fn from(source: Source) -> Self {
        Self(source.into())
    }
}

impl From<ConnectError> for ExecutorError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Unreachable { endpoint, source } => Self::Unreachable { endpoint, source: source.into() },
            ConnectError::Untrusted { endpoint, source } => Self::Untrusted { endpoint, source: source.into() },
            ConnectError::WorkloadApi { ref endpoint, is_temporary: true, .. } => {
                Self::Unreachable { endpoint: endpoint.clone(), source: error.into() }
            }
            ConnectError::TlsRequired { ref endpoint }
            | ConnectError::Credentials { ref endpoint, .. }
            | ConnectError::ServerName { ref endpoint, .. }
            | ConnectError::WorkloadApi { ref endpoint, .. } => {
                Self::Untrusted { endpoint: endpoint.clone(), source: error.into() }
            }
            // not sent, so the agent does not know who calls
            ConnectError::AccessToken { ref source, .. } => {
                Self::Unauthenticated { reason: format!("{error}: {source}") }
            }
        }
    }
}

/// The first connection failed.
pub(crate) fn connecting(error: tonic::transport::Error, endpoint: &str) -> ConnectError {
    find::<ConnectError>(&error).cloned().unwrap_or_else(|| ConnectError::Unreachable {
        endpoint: endpoint.to_owned(),
        source: Source::from(root_cause(&error)).into(),
    })
}

/// A call failed before its response began.
pub(crate) fn calling(status: Status, endpoint: &str) -> ExecutorError {
    if let Some(error) = find::<ConnectError>(&status) {
        return error.clone().into();
    }
    if find::<TimeoutExpired>(&status).is_some() {
        return ExecutorError::DeadlineExceeded;
    }
    let endpoint = endpoint.to_owned();
    if let Some(error) = find::<rustls::Error>(&status) {
        return ExecutorError::Untrusted { endpoint, source: error.clone().into() };
    }
    // hyper: the request was never sent on a connection
    if find::<hyper::Error>(&status).is_some_and(hyper::Error::is_canceled) {
        return ExecutorError::Unreachable { endpoint, source: root_cause(&status).into() };
    }
    following(status, &endpoint)
}

/// A call failed while its response arrived.
pub(crate) fn following(status: Status, endpoint: &str) -> ExecutorError {
    if status.source().is_some() {
        return lost(endpoint, root_cause(&status));
    }
    match error_from_status(&status) {
        // not from the agent: something between it and this side
        ExecutorError::Internal(_) if status.code() == Code::Unavailable => lost(endpoint, status.message()),
        error => error,
    }
}

/// The connection was lost.
pub(crate) fn lost(endpoint: &str, source: impl Into<Source>) -> ExecutorError {
    ExecutorError::Lost { endpoint: endpoint.to_owned(), source: source.into() }
}

/// Converts the error for a command that may run, but can no longer be followed.
pub(crate) fn gone(error: ExecutorError) -> ExecutorError {
    match error {
        ExecutorError::Unreachable { ref endpoint, .. } | ExecutorError::Untrusted { ref endpoint, .. } => {
            lost(&endpoint.clone(), error)
        }
        error => error,
    }
}

/// Whether the agent was reached again after [`ExecutorError::Lost`]: it has ended the command, or does not know it.
pub fn is_settled(error: &ExecutorError) -> bool {
    find::<Forgotten>(error).is_some() || find::<GivenUp>(error).is_some() || find::<Restarted>(error).is_some()
}

/// The agent was reached again, but does not know the execution.
#[derive(Debug, thiserror::Error)]
#[error("the agent no longer knows execution {id}: it was restarted, or has forgotten it")]
pub(crate) struct Forgotten {
    pub(crate) id: ExecutionId,
    pub(crate) source: Option<ExecutorError>,
}

/// The agent has ended the command.
#[derive(Debug, thiserror::Error)]
#[error("the agent ended the command because the connection was lost for too long")]
pub(crate) struct GivenUp;

/// It is unknown whether the command ran.
#[derive(Debug, thiserror::Error)]
#[error(
    "the agent may have been restarted before it reported whether the command runs; the command is not started again"
)]
pub(crate) struct Restarted;

/// The first error of this type in a chain of sources.
pub(crate) fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    chain(error).find_map(|error| error.downcast_ref())
}

/// The text of the last error in the chain, since the libraries between have little to add.
fn root_cause(error: &(dyn Error + 'static)) -> String {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    match find::<io::Error>(error).map(io::Error::kind) {
        Some(BrokenPipe | ConnectionReset | UnexpectedEof) => "the other side closed it".to_owned(),
        _ => chain(error).last().unwrap_or(error).to_string(),
    }
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| {
        // these two do not return the wrapped error as their source
        if let Some(error) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            return Some(error as &(dyn Error + 'static));
        }
        if let Some(error) = error.downcast_ref::<h2::Error>().and_then(h2::Error::get_io) {
            return Some(error as &(dyn Error + 'static));
        }
        error.source()
    })
}
