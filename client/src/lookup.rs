//! The error of a host name that has no address.

use std::io;

/// A host name has no address: a cause of [`ConnectError::Unreachable`](crate::ConnectError::Unreachable).
#[derive(Debug, thiserror::Error)]
#[error("no host named {host:?} was found: {reason}")]
pub struct LookupError {
    /// The name.
    pub host: String,
    /// What the system's resolver said.
    pub reason: String,
}

impl LookupError {
    pub(crate) fn new(host: &str, error: &io::Error) -> Self {
        let text = error.to_string();
        let reason = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
        Self { host: host.to_owned(), reason: reason.to_owned() }
    }
}
