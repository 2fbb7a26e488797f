//! The settings for TLS.

use std::net::SocketAddr;

use super::{Config, ConfigError};
use crate::address::ListenAddress;
use crate::invalid::InvalidSetting;
use crate::listen::tcp::protection;
use crate::reload::Source;
use crate::tls::ca_names::Identities;
use crate::tls::{TlsFiles, TlsSource};
use crate::token::TokenIssuerConfig;

impl Config {
    /// Where certificates are from; `None`: none are configured.
    ///
    /// # Errors
    /// Settings are missing, malformed, or exclude each other.
    pub(crate) fn tls_source(&self) -> Result<Option<TlsSource>, ConfigError> {
        let Some(spiffe) = &self.spiffe else { return Ok(self.tls_files()?.map(TlsSource::Files)) };
        let files = [&self.tls_cert, &self.tls_key, &self.client_ca, &self.client_crl].into_iter().flatten();
        if files.count() > 0 || self.identities.is_some() {
            let text = "[spiffe] excludes tls_cert, tls_key, client_ca, client_crl and [identities]: certificates are from the Workload API";
            return Err(InvalidSetting(text.to_owned()).into());
        }
        Ok(Some(TlsSource::Workload(spiffe.settings(self.admits_without_certificate())?)))
    }

    /// Whether there are callers with tokens instead of certificates.
    fn admits_without_certificate(&self) -> bool {
        self.token_issuers.values().any(TokenIssuerConfig::admits_without_certificate)
    }

    /// The files for TLS.
    ///
    /// # Errors
    /// Only some of the three files are given, or a name of `identities` is malformed.
    fn tls_files(&self) -> Result<Option<TlsFiles>, ConfigError> {
        let (cert, key, client_ca) = (self.tls_cert.clone(), self.tls_key.clone(), self.client_ca.clone());
        let identities = self.identities.as_ref().map(Identities::new).transpose()?;
        let admits_without_certificate = self.admits_without_certificate();
        let invalid = |text: &str| Err(InvalidSetting(text.to_owned()).into());
        if client_ca.is_none() && identities.is_some() {
            return invalid("[identities] needs client_ca");
        }
        if client_ca.is_none() && self.client_crl.is_some() {
            return invalid("--client-crl needs --client-ca");
        }
        match (cert, key) {
            (Some(cert), Some(key)) if client_ca.is_some() || admits_without_certificate => {
                let client_crl = self.client_crl.clone();
                Ok(Some(TlsFiles { cert, key, client_ca, client_crl, identities, admits_without_certificate }))
            }
            (None, None) if client_ca.is_none() => Ok(None),
            _ => invalid("--tls-cert, --tls-key and --client-ca must be given together"),
        }
    }

    /// Checks that the agent's certificate has not expired. An agent starts with such a certificate, and takes the next one
    /// when it is there; until then callers refuse it.
    ///
    /// # Errors
    /// It has expired, or cannot be used.
    pub fn check_expiry(&self) -> Result<(), ConfigError> {
        let Some(TlsSource::Files(files)) = self.tls_source()? else { return Ok(()) };
        let loaded = files.load()?;
        Ok(loaded.own.map_or(Ok(()), |own| own.certificate.check_expiry(&files.cert))?)
    }
}

/// A host name is looked up only when it is listened on.
pub(super) fn check_protection(
    listen: &ListenAddress,
    tls: Option<&TlsSource>,
    insecure: bool,
) -> Result<(), ConfigError> {
    let ListenAddress::Tcp(address) = listen else { return Ok(()) };
    let literal: Vec<SocketAddr> = address.parse().into_iter().collect();
    protection(&literal, tls, insecure).map(drop)
}
