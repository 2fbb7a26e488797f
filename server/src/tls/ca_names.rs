//! Which names each certificate authority vouches for: the table `[identities]` of the configuration.

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

/// Files of authorities, with the names of the callers whose certificates they may issue.
#[derive(Clone, Debug)]
pub(crate) struct Identities(Vec<(PathBuf, NamePatterns)>);

impl Identities {
    /// # Errors
    /// A pattern is malformed, or there is no authority: nobody could come in.
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

    /// Whom `clients` lets in, if one of these authorities vouches for its name; `verifier` makes what asks whether a
    /// certificate is of the authorities of a file.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn bind<E>(
        &self,
        clients: Arc<dyn ClientCertVerifier>,
        verifier: impl Fn(&Path) -> Result<Arc<dyn ClientCertVerifier>, E>,
    ) -> Result<Arc<dyn ClientCertVerifier>, E> {
        let authorities = self.0.iter().map(|(path, names)| Ok((verifier(path)?, names.clone())));
        Ok(Arc::new(Bound { clients, authorities: authorities.collect::<Result<_, _>>()? }))
    }
}

/// A certificate that could be anyone's of its authority, which is not to vouch for this name.
#[derive(Clone, Debug, thiserror::Error)]
#[error("its authority does not vouch for the name {name:?}: see [identities] in the agent's configuration")]
struct NotVouched {
    name: String,
}

/// Why a certificate is not accepted, as rustls has it or as it is said here.
pub(crate) fn reason(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Other(error)) => error.to_string(),
        error => error.to_string(),
    }
}

/// What handshakes ask, where names are bound to authorities.
#[derive(Debug)]
struct Bound {
    /// With the revocation lists.
    clients: Arc<dyn ClientCertVerifier>,
    authorities: Vec<(Arc<dyn ClientCertVerifier>, NamePatterns)>,
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
        let vouches = |(authority, names): &(Arc<dyn ClientCertVerifier>, NamePatterns)| {
            !name.is_empty()
                && names.contain(name)
                && authority.verify_client_cert(end_entity, intermediates, now).is_ok()
        };
        if self.authorities.iter().any(vouches) {
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
