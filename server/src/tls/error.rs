//! What is wrong with the files of certificates.

use std::path::{Path, PathBuf};

use rustls::pki_types::pem;

/// Certificates, a key or revocation lists that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("cannot read a {what} from {path}")]
    Read {
        /// The expected content.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file contains nothing of the expected kind.
    #[error("{path} contains no PEM {what}")]
    Empty {
        /// The expected content.
        what: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// A CA certificate cannot be used.
    #[error("{path} contains a CA certificate that cannot be used")]
    Ca {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A revocation list cannot be used.
    #[error("{path} contains a revocation list that cannot be used")]
    Revocation {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Without a list of its own, all certificates of a CA would be refused.
    #[error("{path} contains no revocation list signed by {ca}: add one, even if it lists nothing")]
    Unlisted {
        /// The file of the lists.
        path: PathBuf,
        /// The name of the CA.
        ca: String,
    },
    /// The private key is accessible to others than the agent's user and root.
    #[error(
        "others may use the private key {path} (mode {mode:o}): run chmod 600 {path}, or with agent_user chown root:GROUP and chmod 640, GROUP being its group"
    )]
    Exposed {
        /// The key's file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Callers would refuse the certificate.
    #[error("the certificate {cert} is not for a server (extended key usage serverAuth): an agent needs one that is")]
    NotForServer {
        /// The certificate's file.
        cert: PathBuf,
    },
    /// Callers refuse the certificate.
    #[error("the certificate {cert} expired on {not_after}: renew it")]
    Expired {
        /// The certificate's file.
        cert: PathBuf,
        /// Its last second.
        not_after: String,
    },
    /// They are not a pair.
    #[error("the key {key} does not belong to the certificate {cert}")]
    KeyMismatch {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// The certificate or the key cannot be used.
    #[error("the certificate {cert} and the key {key} cannot be used together")]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The cause.
        source: rustls::Error,
    },
}

impl TlsError {
    pub(super) fn unreadable(what: &'static str, path: &Path, error: pem::Error) -> Self {
        // its text for these would say no more than that it is one
        let source = match error {
            pem::Error::Io(error) => error.into(),
            error => error.into(),
        };
        Self::Read { what, path: path.to_owned(), source }
    }

    /// Why the certificate and the key of these files cannot be used.
    pub(crate) fn pair(cert: &Path, key: &Path, source: rustls::Error) -> Self {
        let (cert, key) = (cert.to_owned(), key.to_owned());
        match source {
            rustls::Error::InconsistentKeys(_) => Self::KeyMismatch { cert, key },
            source => Self::Pair { cert, key, source },
        }
    }
}
