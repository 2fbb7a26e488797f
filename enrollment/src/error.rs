//! Why a machine has no certificate.

use std::io;
use std::path::PathBuf;

use crate::token::InvalidToken;

/// Why a certificate was not issued, renewed or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnrollError {
    /// The flags do not fit together.
    #[error("{0}")]
    Usage(String),
    /// No token was given, or something else.
    #[error("the token cannot be used")]
    Token(#[from] InvalidToken),
    /// A file cannot be read or written.
    #[error("cannot {what} {}", path.display())]
    File {
        /// What was to be done with it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file has something else in it.
    #[error("cannot use {}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// There is a certificate already.
    #[error("{} exists: renew it with --renew, or replace it with --force and a new token", .0.display())]
    Exists(PathBuf),
    /// Machines must trust the CA that they have in this file.
    #[error("{} is of another CA: replace it with --force, or select another directory with --dir", .0.display())]
    AnotherCa(PathBuf),
    /// A key that this user has not made, or that others may read.
    #[error("{} is not a private file of this user (mode 0600): remove it, and a new key is made", .0.display())]
    ForeignKey(PathBuf),
    /// The directory is that of a CA.
    #[error("{} is the directory of a CA: select another one with --dir", .0.display())]
    DirectoryOfCa(PathBuf),
    /// It is not clear which certificate is to be renewed.
    #[error("{} has {found} certificates with a key: select one with --name", directory.display())]
    Ambiguous {
        /// The directory.
        directory: PathBuf,
        /// How many it has.
        found: usize,
    },
    /// No connection.
    #[error("{server} is unreachable")]
    Unreachable {
        /// HOST:PORT.
        server: String,
        /// The cause.
        source: io::Error,
    },
    /// There is no such name.
    #[error("no host named {0:?} was found: check the spelling")]
    NoSuchHost(String),
    /// Whether there is such a name cannot be found out now.
    #[error("cannot look up {host}: {reason}")]
    Lookup {
        /// The name.
        host: String,
        /// Why not.
        reason: String,
    },
    /// The server is not the CA.
    #[error("{server} is not the CA that this machine is to trust; nothing was sent to it")]
    Untrusted {
        /// HOST:PORT.
        server: String,
        /// The cause.
        source: io::Error,
    },
    /// The CA refused.
    #[error("{server} refused: {reason}")]
    Refused {
        /// HOST:PORT.
        server: String,
        /// Why.
        reason: String,
        /// The kind of the refusal.
        code: tonic::Code,
    },
    /// The call failed.
    #[error("{server} failed")]
    Failed {
        /// HOST:PORT.
        server: String,
        /// The cause.
        source: Box<tonic::Status>,
    },
    /// The answer makes no sense.
    #[error("{server} answered with something else than was asked for: {what}")]
    Answer {
        /// HOST:PORT.
        server: String,
        /// What is wrong.
        what: &'static str,
    },
    /// A key or a request cannot be made.
    #[error("cannot make the request")]
    Request(#[from] rcgen::Error),
}

impl EnrollError {
    /// Whether trying again may help.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Lookup { .. } => true,
            Self::Failed { source, .. } => {
                matches!(source.code(), tonic::Code::Unavailable | tonic::Code::Unknown | tonic::Code::Cancelled)
            }
            _ => false,
        }
    }

    /// Whether the CA has given this machine nothing, and the same again would not change that.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::NoSuchHost(_) | Self::Untrusted { .. } => true,
            Self::Refused { code, .. } => *code != tonic::Code::ResourceExhausted,
            _ => false,
        }
    }

    /// What to look at.
    pub fn hint(&self) -> Option<&'static str> {
        matches!(self, Self::Unreachable { .. }).then_some("is `telexec certs serve` running there?")
    }
}
