//! The certificate of a peer, parsed once for its connection.

use rustls::pki_types::{CertificateDer, UnixTime};

use crate::digest::sha256;
use crate::identity::Identity;
use crate::tls::certificate::{end, parse};

/// A peer's certificate, and all that is asked of it while the connection is open.
#[derive(Clone, Debug)]
pub(crate) struct PeerCertificate {
    pub(crate) der: CertificateDer<'static>,
    /// The CA certificates that were presented with it.
    pub(crate) intermediates: Vec<CertificateDer<'static>>,
    /// The holder.
    pub(crate) identity: Identity,
    /// In hexadecimal with colons.
    pub(crate) serial: String,
    /// SHA-256 of the whole certificate, in hexadecimal.
    pub(crate) fingerprint: String,
    /// The last seconds of it and the intermediates, since the epoch.
    ends: Vec<u64>,
}

impl PeerCertificate {
    /// The chain that a peer presented, the peer's own certificate first. `None`: that is missing or malformed, or has no
    /// usable name.
    pub(crate) fn parse(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let (der, intermediates) = chain.split_first()?;
        let certificate = parse(der)?;
        let intermediate_ends = intermediates.iter().filter_map(|der| Some(end(&parse(der)?)));
        Some(Self {
            identity: Identity::from_certificate(&certificate)?,
            serial: certificate.raw_serial_as_string(),
            fingerprint: sha256(der),
            ends: [end(&certificate)].into_iter().chain(intermediate_ends).collect(),
            der: der.clone().into_owned(),
            intermediates: intermediates.iter().map(|der| der.clone().into_owned()).collect(),
        })
    }

    /// The last second of its own certificate, since the epoch.
    pub(crate) fn end(&self) -> u64 {
        self.ends.first().copied().unwrap_or(0)
    }

    /// The last second of the first certificate of the chain that has yet to expire, since the epoch; `None`: all have expired.
    pub(crate) fn next_end(&self, now: UnixTime) -> Option<u64> {
        self.ends.iter().copied().filter(|end| *end >= now.as_secs()).min()
    }
}
