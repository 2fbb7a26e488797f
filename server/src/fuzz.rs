//! What fuzz targets reach of this crate, and what must hold there. Only in their builds (`cfg(fuzzing)`).

#![allow(clippy::panic)]

use rustls::pki_types::CertificateDer;

use crate::caller::Shown;
use crate::certificate::Certificate;
use crate::identity::Identity;

/// Reads a certificate, as if it were a caller's.
///
/// # Panics
/// If something came of it that must not.
pub fn certificate(der: &[u8]) {
    let der = CertificateDer::from(der);
    let identity = Identity::from_certificate(&der);
    let shown = Shown::from_certificate(&der);
    assert_eq!(shown.is_some(), Certificate::first_of(std::slice::from_ref(&der)).is_ok());
    if let Some(identity) = identity {
        let name = identity.as_str();
        assert!(shown.is_some() && !name.is_empty() && !name.contains(char::is_control), "{name:?}");
        assert!(name.starts_with("spiffe://") || !name.contains([':', '/']), "{name:?}");
    }
}
