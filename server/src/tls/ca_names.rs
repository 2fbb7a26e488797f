//! The names for which each CA may issue certificates: the table `[identities]` of the configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, OtherError};

use telexec_executor::text::error_chain;

use crate::identity::Identity;
use crate::identity::patterns::NamePatterns;
use crate::invalid::InvalidSetting;

/// CA files, with the names for which each may issue certificates.
#[derive(Clone, Debug)]
pub(crate) struct Identities(Vec<(PathBuf, NamePatterns)>);

impl Identities {
    /// # Errors
    /// A pattern is malformed, or there is no CA: no caller could connect.
    pub(crate) fn new(configured: &BTreeMap<PathBuf, Vec<String>>) -> Result<Self, InvalidSetting> {
        if configured.is_empty() {
            let text = "[identities] names no CA file, so no caller could connect: leave it out, or name the files of client_ca";
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

    /// These CAs, loaded. `verifier` makes a verifier for the CAs of a file.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn load<E>(
        &self,
        verifier: impl Fn(&Path) -> Result<Arc<dyn ClientCertVerifier>, E>,
    ) -> Result<CaNames, E> {
        self.0.iter().map(|(path, names)| Ok((verifier(path)?, names.clone()))).collect::<Result<_, _>>().map(CaNames)
    }
}

/// For the CAs of each file: a verifier, and the names for which they may issue certificates.
#[derive(Debug)]
pub(crate) struct CaNames(Vec<(Arc<dyn ClientCertVerifier>, NamePatterns)>);

impl CaNames {
    /// Whether a CA of this chain may issue certificates for the holder's name; `None`: the certificate has no usable one.
    ///
    /// # Errors
    /// None may.
    pub(crate) fn check(
        &self,
        holder: Option<&Identity>,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let name = holder.map(Identity::as_str).unwrap_or_default();
        let is_allowed = |(ca, names): &(Arc<dyn ClientCertVerifier>, NamePatterns)| {
            !name.is_empty() && names.contain(name) && ca.verify_client_cert(end_entity, intermediates, now).is_ok()
        };
        if self.0.iter().any(is_allowed) {
            return Ok(());
        }
        let error = NameNotAllowed { name: name.to_owned() };
        Err(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error)))))
    }
}

/// A valid certificate whose CA may not issue certificates for the name in it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("its CA may not issue certificates for the name {name:?}: see [identities] in the agent's configuration")]
struct NameNotAllowed {
    name: String,
}

/// Why a certificate is not accepted, without the prefixes of rustls.
pub(crate) fn reason(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Other(error)) => error_chain(error),
        error => error.to_string(),
    }
}
