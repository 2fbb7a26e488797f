//! Who calls: the unit that sessions belong to and are shared among.

use std::net::IpAddr;

use rustls::pki_types::CertificateDer;
use x509_parser::oid_registry::OID_X509_EXT_SUBJECT_ALT_NAME;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::commands::source::source;

/// A caller, as far as its connection shows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Caller {
    /// The names in its certificate, which a renewed one has too; the key of one without names.
    Certificate(Vec<u8>),
    /// It has none.
    Source(IpAddr),
}

impl Caller {
    /// From a verified chain, which is empty where callers need no certificate.
    pub(super) fn new(address: IpAddr, chain: &[CertificateDer<'_>]) -> Self {
        let Some(leaf) = chain.first() else { return Self::Source(source(address)) };
        let Ok((_, certificate)) = X509Certificate::from_der(leaf) else { return Self::Certificate(leaf.to_vec()) };
        let alternative = certificate.get_extension_unique(&OID_X509_EXT_SUBJECT_ALT_NAME).ok().flatten();
        let subject = certificate.subject();
        Self::Certificate(match alternative {
            Some(names) => [subject.as_raw(), names.value].concat(),
            None if subject.iter().next().is_none() => certificate.public_key().raw.to_vec(),
            None => subject.as_raw().to_vec(),
        })
    }

    /// Whether this one may use what that one began. The address of a caller without a certificate may change.
    pub(super) fn may_act_for(&self, owner: &Self) -> bool {
        match (self, owner) {
            (Self::Source(_), Self::Source(_)) => true,
            (this, owner) => this == owner,
        }
    }
}
