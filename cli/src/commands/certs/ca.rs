//! The CA: `ca.pem`, which is public, and `ca.key`, which is secret.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData};
use time::OffsetDateTime;

use super::{FAILED, common_name, directory, failed, files, new_key, new_serial, validity};
use crate::args::CertsInitArgs;
use crate::output::{self, Failure};

/// A CA with its key.
pub(super) struct CertificateAuthority {
    pub(super) issuer: Issuer<'static, KeyPair>,
    pub(super) not_after: OffsetDateTime,
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
}

pub(super) fn init(args: &CertsInitArgs) -> Result<(), Failure> {
    let directory = directory(args.dir.as_ref())?;
    let (cert, key) = (directory.join("ca.pem"), directory.join("ca.key"));
    let (cert_pem, key_pem) = make(&args.name, args.days)?;
    files::write_pair(&cert, &cert_pem, &key, &key_pem, args.force)?;
    let given = args.dir.as_ref().map_or_else(String::new, |dir| format!(" --dir {}", dir.display()));
    output::print(
        format!(
            "created {} (public) and {} (keep it secret)\n\
             next: telexec certs issue NAME --server{given}    for the agent on the host NAME\n      \
             telexec certs issue NAME --client{given}    for the caller NAME\n",
            cert.display(),
            key.display(),
        )
        .as_bytes(),
    )
}

/// Returns certificate and key of a new CA as PEM.
pub(super) fn make(name: &str, days: u32) -> Result<(String, String), Failure> {
    let key = new_key()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(name);
    (params.not_before, params.not_after) = validity(days);
    params.serial_number = Some(new_serial()?);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let cert = params.self_signed(&key).map_err(|error| failed("cannot sign the certificate", &error))?;
    Ok((cert.pem(), key.serialize_pem()))
}

impl CertificateAuthority {
    pub(super) fn load(directory: &Path) -> Result<Self, Failure> {
        let (cert, key) = (directory.join("ca.pem"), directory.join("ca.key"));
        let (cert_pem, key_pem) = (files::read(&cert)?, files::read(&key)?);
        Self::from_pem(&cert_pem, &key_pem, cert, key)
    }

    pub(super) fn from_pem(cert_pem: &str, key_pem: &str, cert: PathBuf, key: PathBuf) -> Result<Self, Failure> {
        let signing = KeyPair::from_pem(key_pem).map_err(|error| failed(key.display(), &error))?;
        let (_, pem) =
            x509_parser::pem::parse_x509_pem(cert_pem.as_bytes()).map_err(|error| failed(cert.display(), &error))?;
        let parsed = pem.parse_x509().map_err(|error| failed(cert.display(), &error))?;
        if parsed.public_key().raw != signing.subject_public_key_info() {
            return Err(Failure::message(FAILED, format!("{} is not the key of {}", key.display(), cert.display())));
        }
        let not_after = parsed.validity().not_after.to_datetime();
        let issuer = Issuer::from_ca_cert_pem(cert_pem, signing).map_err(|error| failed(cert.display(), &error))?;
        Ok(Self { issuer, not_after, cert, key })
    }
}
