//! Certificate revocation lists (CRLs).

use std::cmp::Reverse;
use std::path::Path;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::prelude::{ASN1Time, CertificateRevocationList, FromDer, X509Certificate};

use crate::tls::TlsError;
use crate::tls::certificate::parse;

/// What the log reports of the lists.
pub(crate) struct Revocation {
    /// The number of revoked certificates.
    pub(crate) revoked: usize,
    /// The earliest `nextUpdate` of the lists, if it is past.
    pub(crate) outdated_since: Option<String>,
}

/// Reads a file of lists (PEM). Each CA must have signed one of them: a file that was mixed up or damaged would
/// otherwise lock everybody out, or revoke nobody.
pub(crate) fn read(
    path: &Path,
    cas: &[CertificateDer<'_>],
) -> Result<(Vec<CertificateRevocationListDer<'static>>, Revocation), TlsError> {
    const WHAT: &str = "revocation list";
    let read = |error| TlsError::unreadable(WHAT, path, error);
    let ders: Vec<_> =
        CertificateRevocationListDer::pem_file_iter(path).map_err(read)?.collect::<Result<_, _>>().map_err(read)?;
    if ders.is_empty() {
        return Err(TlsError::Empty { what: WHAT, path: path.to_owned() });
    }
    let mut lists = Vec::new();
    for der in &ders {
        let (_, list) = CertificateRevocationList::from_der(der)
            .map_err(|source| TlsError::Revocation { path: path.to_owned(), source: source.into() })?;
        lists.push((list, der.clone()));
    }
    for ca in cas {
        // a malformed one is refused when it is loaded as a CA
        let Some(ca) = parse(ca) else { continue };
        if !lists.iter().any(|(list, _)| is_signed_by(list, &ca)) {
            return Err(TlsError::Unlisted { path: path.to_owned(), ca: ca.subject().to_string() });
        }
    }
    // of two lists of one CA the newer is used
    lists.sort_by_key(|(list, _)| Reverse(list.last_update()));
    let summary = summarize(lists.iter().map(|(list, _)| list));
    Ok((lists.into_iter().map(|(_, der)| der).collect(), summary))
}

fn is_signed_by(list: &CertificateRevocationList<'_>, ca: &X509Certificate<'_>) -> bool {
    list.issuer().as_raw() == ca.subject().as_raw() && list.verify_signature(ca.public_key()).is_ok()
}

fn summarize<'a>(lists: impl Iterator<Item = &'a CertificateRevocationList<'a>> + Clone) -> Revocation {
    let now = ASN1Time::now();
    Revocation {
        revoked: lists.clone().map(|list| list.iter_revoked_certificates().count()).sum(),
        outdated_since: lists
            .filter_map(CertificateRevocationList::next_update)
            .min()
            .filter(|next| *next < now)
            .map(|next| next.to_string()),
    }
}
