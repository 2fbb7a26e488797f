//! TLS of the CA's service.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};

use super::super::profile::Profile;
use super::super::store::{CRL_DAYS, Store};
use super::super::{DAY, ca, failed, files, new_key};
use crate::output::{Failure, print_message};

/// How long the service uses a certificate of its own.
const REPLACE_AFTER: Duration = Duration::from_secs(12 * 60 * 60);
/// Between two checks of its age.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
const LIFETIME: Duration = DAY.saturating_mul(7);

/// The configuration, with a certificate that is replaced now and then.
pub(super) struct ServiceTls {
    directory: PathBuf,
    current: Mutex<Current>,
}

struct Current {
    config: Arc<ServerConfig>,
    made: SystemTime,
    /// The CA's certificate (PEM), which is sent with the service's own.
    ca: String,
}

impl ServiceTls {
    pub(super) fn new(directory: &Path) -> Result<Self, Failure> {
        Ok(Self { directory: directory.to_owned(), current: Mutex::new(make(directory)?) })
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current().config)
    }

    /// Replaces the certificate when it is old or the CA has been renewed, and otherwise keeps it. Never returns.
    pub(super) async fn renew(self: Arc<Self>) -> Infallible {
        let mut is_reported = false;
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let this = Arc::clone(&self);
            // waits for the lock of the directory, and for the disk
            let renewed = tokio::task::spawn_blocking(move || this.renew_if_due()).await;
            if let Ok(Err(failure)) = &renewed
                && !is_reported
            {
                print_message(&format!("cannot renew the certificate of this service, trying again: {failure}"));
            }
            is_reported = matches!(renewed, Ok(Err(_)));
        }
    }

    fn renew_if_due(&self) -> Result<(), Failure> {
        let ca = files::read(&ca::cert_path(&self.directory))?;
        let is_due = {
            let current = self.current();
            // by the system's clock, which goes on while the machine sleeps; an error: it was set back
            let age = SystemTime::now().duration_since(current.made);
            current.ca != ca || age.map_or(true, |age| age > REPLACE_AFTER)
        };
        if is_due {
            *self.current() = make(&self.directory)?;
        }
        Ok(())
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A certificate for the service, which stays in memory. The revocation list is written again too: it is kept up to date as
/// long as this runs.
fn make(directory: &Path) -> Result<Current, Failure> {
    let mut store = Store::open(directory)?;
    store.save_with_crl(CRL_DAYS)?;
    let key = new_key()?;
    let signed = store.ca.sign(&Profile::enrollment_server(), &key, LIFETIME)?;
    let leaf = CertificateDer::from_pem_slice(signed.pem.as_bytes()).map_err(|error| failed("ca.pem", &error))?;
    let chain = vec![leaf, store.ca.der()?.into()];
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| failed("TLS", &error))?
        .with_client_cert_verifier(Arc::new(AnyCertificate(provider)))
        .with_single_cert(chain, PrivatePkcs8KeyDer::from(key.serialize_der()).into());
    let mut config = config.map_err(|error| failed("TLS", &error))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.send_tls13_tickets = 0;
    Ok(Current { config: Arc::new(config), made: SystemTime::now(), ca: store.ca.pem })
}

/// Lets a client present any certificate, or none, and has it prove that it has the key. What the certificate is worth is
/// decided by the CA's index, call by call: agents' certificates are not for clients, and are renewed here all the same.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
