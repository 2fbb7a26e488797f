//! TLS 1.3 and 1.2, mutual unless callers may have tokens instead: what handshakes need, from files or from the SPIFFE Workload API.

pub(crate) mod ca_names;
pub(crate) mod certificate;
pub(crate) mod client_cert_check;
pub(crate) mod client_verifier;
mod error;
pub(crate) mod expiry;
mod files;
pub(crate) mod no_certificate;
pub(crate) mod peer_certificate;
pub(crate) mod presented;
pub(crate) mod private_key;
mod revocation;
mod svid_verifier;
mod workload;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use telexec_engine::Workers;

pub(crate) use self::error::TlsError;
pub(crate) use self::files::{TlsFiles, certificates, roots};
pub(crate) use self::workload::{WorkloadCertificates, WorkloadSettings};
use crate::reload::{Changes, Reload, ReloadState, Watched};
use crate::tls::certificate::Certificate;
use crate::tls::client_verifier::ClientVerifier;
use crate::tls::revocation::Revocation;

/// Where certificates are from.
#[derive(Clone, Debug)]
pub(crate) enum TlsSource {
    Files(TlsFiles),
    Workload(WorkloadSettings),
}

/// The current credentials; clones share them.
#[derive(Clone)]
pub(crate) enum Tls {
    Files(Watched<TlsFiles>),
    Workload(WorkloadCertificates),
}

/// The agent's certificate, and the verifier for those of callers.
#[derive(Default)]
pub(crate) struct Credentials {
    /// `None`: it has none at present, and no handshake is possible.
    pub(crate) own: Option<OwnCertificate>,
    /// Verifies callers' certificates; `None`: none are asked for, or they cannot be verified at present.
    pub(crate) clients: Option<Arc<ClientVerifier>>,
    pub(crate) revocation: Option<Revocation>,
}

/// The agent's own certificate.
pub(crate) struct OwnCertificate {
    pub(crate) certificate: Certificate,
    /// The configuration of handshakes.
    pub(crate) server: Arc<ServerConfig>,
}

impl TlsSource {
    /// Whether callers are asked for certificates.
    pub(crate) fn asks_for_certificates(&self) -> bool {
        match self {
            Self::Files(files) => files.client_ca.is_some(),
            Self::Workload(_) => true,
        }
    }
}

impl Tls {
    /// Loads the files, or waits for the Workload API a little.
    ///
    /// # Errors
    /// The files cannot be used. Without the Workload API there are no credentials until it answers.
    pub(crate) async fn load(source: TlsSource) -> Result<Self, TlsError> {
        match source {
            TlsSource::Files(files) => Watched::load(files).map(Self::Files),
            TlsSource::Workload(settings) => Ok(Self::Workload(WorkloadCertificates::fetch(settings).await)),
        }
    }

    pub(crate) fn current(&self) -> Arc<Credentials> {
        match self {
            Self::Files(files) => files.current(),
            Self::Workload(workload) => workload.current(),
        }
    }

    /// Of the files; `None`: they are not from files.
    pub(crate) fn reload_state(&self) -> Option<ReloadState> {
        match self {
            Self::Files(files) => Some(files.state()),
            Self::Workload(_) => None,
        }
    }

    /// Notifies of replacements from now on.
    pub(crate) fn changes(&self) -> Changes<Credentials> {
        match self {
            Self::Files(files) => files.changes(),
            Self::Workload(workload) => workload.changes(),
        }
    }

    /// How long calls may run on after the SVID of their caller has expired; `None`: callers have certificates that nobody renews for them.
    pub(crate) fn call_grace(&self) -> Option<Duration> {
        match self {
            Self::Files(_) => None,
            Self::Workload(workload) => Some(workload.call_grace()),
        }
    }

    /// The last second of the agent's certificate; `None`: it has none at present.
    pub(crate) fn end(&self) -> Option<SystemTime> {
        self.current().own.as_ref().map(|own| own.certificate.end())
    }

    /// Replaces the credentials when there are new ones, at once if a reload is requested. Never returns.
    pub(crate) async fn follow(self, reload: Reload, workers: Workers) {
        match self {
            Self::Files(files) => files.follow(reload, workers).await,
            Self::Workload(workload) => workload.follow(reload).await,
        }
    }
}

impl OwnCertificate {
    /// # Errors
    /// The key is of another certificate, or one of them cannot be used.
    fn new(
        certificate: Certificate,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        clients: Option<&Arc<ClientVerifier>>,
    ) -> Result<Self, rustls::Error> {
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?;
        let builder = match clients {
            Some(clients) => builder.with_client_cert_verifier(Arc::clone(clients) as _),
            None => builder.with_no_client_auth(),
        };
        let mut server = builder.with_single_cert(chain, key)?;
        server.alpn_protocols = vec![b"h2".to_vec()];
        // a resumed session would outlive a change of certificates
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        Ok(Self { certificate, server: Arc::new(server) })
    }
}
