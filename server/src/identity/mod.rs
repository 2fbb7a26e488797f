//! The identity of a caller.

pub(crate) mod patterns;
pub(crate) mod source;

use std::fmt;
use std::sync::Arc;

use tokio::net::unix::UCred;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::X509Certificate;

/// As much as a SPIFFE ID may have.
const MAX_NAME_BYTES: usize = 2048;

/// A caller as authenticated by its transport.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity(Arc<str>);

impl Identity {
    /// A caller on plaintext TCP: anyone on this machine.
    pub(crate) fn anonymous() -> Self {
        Self("tcp:anonymous".into())
    }

    /// The peer of a TLS connection who presented no certificate: nobody, unless a call has a token.
    pub(crate) fn unknown() -> Self {
        Self("tls:anonymous".into())
    }

    /// The peer of a Unix socket: `unix:uid=N`.
    pub(crate) fn from_credentials(credentials: &UCred) -> Self {
        Self(format!("unix:uid={}", credentials.uid()).into())
    }

    /// The peer of a vsock socket: `vsock:cid=N`.
    pub(crate) fn from_cid(cid: u32) -> Self {
        Self(format!("vsock:cid={cid}").into())
    }

    /// The holder of a verified certificate: its SPIFFE ID, else its DNS name, else its common name. `None`: it has none of
    /// these that may be used.
    pub(crate) fn from_certificate(certificate: &X509Certificate<'_>) -> Option<Self> {
        let names = certificate.subject_alternative_name().ok().flatten();
        let names = || names.iter().flat_map(|extension| &extension.value.general_names);
        let spiffe = names().find_map(|name| match name {
            GeneralName::URI(uri) if uri.starts_with("spiffe://") => Some(*uri),
            _ => None,
        });
        let dns = || {
            names().find_map(|name| match name {
                GeneralName::DNSName(name) => Some(*name),
                _ => None,
            })
        };
        // must not look like an identity of another kind, such as unix:uid=0
        let plain = |name: &&str| !name.contains([':', '/']);
        let common_name = || certificate.subject().iter_common_name().find_map(|name| name.as_str().ok());
        let name = spiffe.or_else(|| dns().or_else(common_name).filter(plain))?;
        // identities are logged
        (!name.is_empty() && !name.contains(char::is_control)).then(|| Self(name.into()))
    }

    /// One that someone asks about; `None`: no caller has such a name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let is_name = !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.contains(char::is_control);
        is_name.then(|| Self(name.into()))
    }

    /// Whom a token names; `None`: it is no name, or not all of it can be seen.
    pub(crate) fn from_token(issuer: &str, name: &str) -> Option<Self> {
        let is_name = !name.is_empty() && name == name.trim() && name.chars().all(is_printed);
        Self::from_name(&format!("{issuer}:{name}")).filter(|_| is_name)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether a character can be seen as what it is.
pub(crate) fn is_printed(c: char) -> bool {
    c.escape_debug().len() == 1 || matches!(c, '"' | '\'' | '\\')
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
