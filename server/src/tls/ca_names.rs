//! Which names each CA may vouch for: the table `[identities]` of the configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme};

use crate::identity::Identity;
use crate::identity::patterns::NamePatterns;
use crate::invalid::InvalidSetting;

/// CA files, with the names for which each may issue certificates.
#[derive(Clone, Debug)]
pub(crate) struct Identities(Vec<(PathBuf, NamePatterns)>);

impl Identities {
    /// # Errors
    /// A pattern is malformed, or there is no CA: nobody could connect.
    pub(crate) fn new(configured: &BTreeMap<PathBuf, Vec<String>>) -> Result<Self, InvalidSetting> {
        if configured.is_empty() {
            let text =
                "[identities] names no CA file, so nobody could come in: leave it out, or name those of client_ca";
            return Err(InvalidSetting(text.to_owned()));
        }
        let file = |(path, patterns): (&PathBuf, &Vec<String>)| {
            Ok((path.clone(), NamePatterns::new(&format!("identities.{:?}", path.display().to_string()), patterns)?))
        };
        configured.iter().map(file).collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|(path, _)| path.as_path())
    }

    /// A verifier that accepts what `clients` accepts if one of these CAs may vouch for the name as well. `verifier` makes
    /// one for the CAs of a file.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn bind<E>(
        &self,
        clients: Arc<dyn ClientCertVerifier>,
        verifier: impl Fn(&Path) -> Result<Arc<dyn ClientCertVerifier>, E>,
    ) -> Result<Arc<dyn ClientCertVerifier>, E> {
        let cas = self.0.iter().map(|(path, names)| Ok((verifier(path)?, names.clone())));
        Ok(Arc::new(Bound { clients, cas: cas.collect::<Result<_, _>>()? }))
    }
}

/// A valid certificate whose CA may not vouch for the name in it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("its CA does not vouch for the name {name:?}: see [identities] in the agent's configuration")]
struct NotVouched {
    name: String,
}

/// Why a certificate is not accepted, without the prefixes of rustls.
pub(crate) fn reason(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Other(error)) => error.to_string(),
        error => error.to_string(),
    }
}

/// The verifier of handshakes where names are bound to CAs.
#[derive(Debug)]
struct Bound {
    /// With the revocation lists.
    clients: Arc<dyn ClientCertVerifier>,
    cas: Vec<(Arc<dyn ClientCertVerifier>, NamePatterns)>,
}

impl ClientCertVerifier for Bound {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.clients.verify_client_cert(end_entity, intermediates, now)?;
        let identity = Identity::from_certificate(end_entity);
        let name = identity.as_ref().map(Identity::as_str).unwrap_or_default();
        let vouches = |(ca, names): &(Arc<dyn ClientCertVerifier>, NamePatterns)| {
            !name.is_empty() && names.contain(name) && ca.verify_client_cert(end_entity, intermediates, now).is_ok()
        };
        if self.cas.iter().any(vouches) {
            return Ok(verified);
        }
        let error = NotVouched { name: name.to_owned() };
        Err(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error)))))
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.clients.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.clients.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.clients.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.clients.supported_verify_schemes()
    }
}
