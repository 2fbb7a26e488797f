//! TLS: this server's certificate, and whose certificates callers may have. The files are read again when they change.

use std::convert::Infallible;
use std::fs;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{CertificateError, RootCertStore, ServerConfig};
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use super::reloaded::Reloaded;
use super::secrets::{bad, read_private};
use crate::args::HttpArgs;
use crate::output::Failure;

/// Between two checks of whether the certificate of an open connection has expired.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(60);

/// The current credentials.
pub(super) struct Tls(Reloaded<Credentials>);

struct Credentials {
    acceptor: TlsAcceptor,
    /// `None`: callers need no certificate.
    clients: Option<Arc<dyn ClientCertVerifier>>,
}

struct Files {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    client_crl: Option<PathBuf>,
}

impl Tls {
    /// `None`: there is to be no TLS.
    ///
    /// # Errors
    /// The files cannot be used.
    pub(super) fn new(args: &HttpArgs) -> Result<Option<Self>, Failure> {
        let (Some(cert), Some(key)) = (args.tls_cert.clone(), args.tls_key.clone()) else { return Ok(None) };
        let files = Files { cert, key, client_ca: args.client_ca.clone(), client_crl: args.client_crl.clone() };
        Ok(Some(Self(Reloaded::new(files.paths(), move || files.load())?)))
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.0.current().acceptor.clone()
    }

    /// Takes up changes of the files.
    pub(super) async fn follow(&self) -> Infallible {
        self.0.follow("certificates").await
    }

    /// Verifies the certificate of a caller as in a handshake: an open connection must not be worth more than a new one.
    ///
    /// # Errors
    /// For the caller: why the certificate is not accepted any more.
    pub(super) fn verify(&self, chain: &[CertificateDer<'_>]) -> Result<(), &'static str> {
        let current = self.0.current();
        let Some(clients) = &current.clients else { return Ok(()) };
        let Some((leaf, intermediates)) = chain.split_first() else { return Err("a certificate is needed\n") };
        match clients.verify_client_cert(leaf, intermediates, UnixTime::now()) {
            Ok(_) => Ok(()),
            Err(rustls::Error::InvalidCertificate(CertificateError::Revoked)) => {
                Err("the certificate of this connection has been revoked\n")
            }
            Err(rustls::Error::InvalidCertificate(
                CertificateError::Expired | CertificateError::ExpiredContext { .. },
            )) => Err("the certificate of this connection has expired\n"),
            Err(_) => Err("the certificate of this connection is not accepted any more\n"),
        }
    }

    /// Returns when the certificate of an open connection is not accepted any more.
    pub(super) async fn refused(&self, chain: &[CertificateDer<'_>]) {
        self.verify_again(|| self.verify(chain).is_ok()).await;
    }

    /// Calls this now, after each change, and now and then since certificates expire; returns when it is false.
    pub(super) async fn verify_again(&self, mut verify: impl FnMut() -> bool) {
        let mut changes = self.0.subscribe();
        while verify() {
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { pending::<()>().await },
                () = sleep(EXPIRY_INTERVAL) => {}
            }
        }
    }
}

impl Files {
    fn paths(&self) -> Vec<PathBuf> {
        [&self.cert, &self.key].into_iter().chain(&self.client_ca).chain(&self.client_crl).cloned().collect()
    }

    fn load(&self) -> Result<Credentials, Failure> {
        let clients = self.client_ca.as_deref().map(|path| self.verifier(path)).transpose()?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|error| bad(&self.cert, error))?;
        let builder = match &clients {
            None => builder.with_no_client_auth(),
            Some(clients) => builder.with_client_cert_verifier(Arc::clone(clients)),
        };
        let key = PrivateKeyDer::from_pem_slice(&read_private(&self.key)?);
        let key = key.map_err(|error| bad(&self.key, error))?;
        let mut config =
            builder.with_single_cert(certificates(&self.cert)?, key).map_err(|error| bad(&self.key, error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // a resumed session would outlive a change of certificates
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Credentials { acceptor: TlsAcceptor::from(Arc::new(config)), clients })
    }

    /// With revocation lists, a certificate that none of them covers is refused.
    fn verifier(&self, path: &Path) -> Result<Arc<dyn ClientCertVerifier>, Failure> {
        let cas = certificates(path)?;
        let lists = match &self.client_crl {
            Some(path) => revocation_lists(path, &cas)?,
            None => Vec::new(),
        };
        let mut roots = RootCertStore::empty();
        for certificate in cas {
            roots.add(certificate).map_err(|error| bad(path, error))?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).with_crls(lists).build();
        verifier.map(|verifier| verifier as _).map_err(|error| bad(path, error))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let text = fs::read(path).map_err(|error| bad(path, error))?;
    let found = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| bad(path, error))?;
    if found.is_empty() { Err(bad(path, "it contains no PEM certificate")) } else { Ok(found) }
}

/// The newest first, which is the one of a CA that is used. Each CA must have signed one: a file that was mixed up would
/// otherwise lock everybody out.
fn revocation_lists(
    path: &Path,
    cas: &[CertificateDer<'_>],
) -> Result<Vec<CertificateRevocationListDer<'static>>, Failure> {
    let text = fs::read(path).map_err(|error| bad(path, error))?;
    let ders = CertificateRevocationListDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let ders = ders.map_err(|error| bad(path, error))?;
    let parse = |der| CertificateRevocationList::from_der(der).map(|(_, list)| list);
    let parsed = ders.iter().map(|der| parse(der)).collect::<Result<Vec<_>, _>>();
    let parsed = parsed.map_err(|error| bad(path, error))?;
    for ca in cas {
        // a malformed one is refused when it is loaded as a CA
        let Ok((_, ca)) = X509Certificate::from_der(ca) else { continue };
        let is_its = |list: &CertificateRevocationList<'_>| {
            list.issuer().as_raw() == ca.subject().as_raw() && list.verify_signature(ca.public_key()).is_ok()
        };
        if !parsed.iter().any(is_its) {
            return Err(bad(path, format!("it contains no revocation list of {}", ca.subject())));
        }
    }
    let mut dated: Vec<_> =
        parsed.iter().map(CertificateRevocationList::last_update).zip(ders.iter().cloned()).collect();
    dated.sort_by_key(|(date, _)| std::cmp::Reverse(*date));
    Ok(dated.into_iter().map(|(_, der)| der).collect())
}
