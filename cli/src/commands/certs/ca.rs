//! The CA: `ca.pem`, which is public, and `ca.key`, which is secret.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SerialNumber,
};
use time::OffsetDateTime;

use super::profile::Profile;
use super::{CLOCK_SKEW, DAY, FAILED, failed, files, new_key};
use crate::output::Failure;

/// A CA with its key.
pub(super) struct CertificateAuthority {
    pub(super) issuer: Issuer<'static, KeyPair>,
    /// Its own certificate.
    pub(super) pem: String,
    pub(super) name: String,
    pub(super) not_after: SystemTime,
}

/// A certificate that was just signed.
pub(super) struct Signed {
    pub(super) pem: String,
    /// The CA ends before the lifetime that was asked for.
    pub(super) is_cut: bool,
}

pub(super) fn cert_path(directory: &Path) -> PathBuf {
    directory.join("ca.pem")
}

pub(super) fn key_path(directory: &Path) -> PathBuf {
    directory.join("ca.key")
}

/// There is nothing of that name, not even a link to what cannot be reached.
pub(super) fn is_missing(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Returns certificate and key of a new CA as PEM.
pub(super) fn make(name: &str, days: u32) -> Result<(String, String), Failure> {
    let key = new_key()?;
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    Ok((self_sign(subject, &key, days)?, key.serialize_pem()))
}

fn self_sign(subject: DistinguishedName, key: &KeyPair, days: u32) -> Result<String, Failure> {
    let mut params = CertificateParams::default();
    params.distinguished_name = subject;
    let now = SystemTime::now();
    (params.not_before, params.not_after) = ((now - CLOCK_SKEW).into(), (now + DAY * days).into());
    params.serial_number = Some(new_serial()?);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let cert = params.self_signed(key).map_err(|error| failed("cannot sign the certificate", &error))?;
    Ok(cert.pem())
}

impl CertificateAuthority {
    pub(super) fn load(directory: &Path) -> Result<Self, Failure> {
        let (cert, key) = (cert_path(directory), key_path(directory));
        let cert_pem = files::read(&cert)?;
        if is_missing(&key) {
            let text = format!("{} does not exist: this machine has the CA's certificate alone", key.display());
            let hint = "run this on the machine where `telexec certs init` was run, or select its directory with --dir";
            return Err(Failure::message(FAILED, text).hint(Some(hint)));
        }
        Self::from_pem(&cert_pem, &files::read(&key)?, &cert, &key)
    }

    pub(super) fn from_pem(cert_pem: &str, key_pem: &str, cert: &Path, key: &Path) -> Result<Self, Failure> {
        let signing = KeyPair::from_pem(key_pem).map_err(|error| failed(key.display(), &error))?;
        let (_, pem) =
            x509_parser::pem::parse_x509_pem(cert_pem.as_bytes()).map_err(|error| failed(cert.display(), &error))?;
        let parsed = pem.parse_x509().map_err(|error| failed(cert.display(), &error))?;
        if parsed.public_key().raw != signing.subject_public_key_info() {
            return Err(Failure::message(FAILED, format!("{} is not the key of {}", key.display(), cert.display())));
        }
        let name = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        let (name, not_after) = (name.unwrap_or_default().to_owned(), parsed.validity().not_after.to_datetime());
        let issuer = Issuer::from_ca_cert_pem(cert_pem, signing).map_err(|error| failed(cert.display(), &error))?;
        Ok(Self { issuer, pem: cert_pem.to_owned(), name, not_after: not_after.into() })
    }

    /// The encoding of its own certificate.
    pub(super) fn der(&self) -> Result<Vec<u8>, Failure> {
        let parsed = x509_parser::pem::parse_x509_pem(self.pem.as_bytes());
        parsed.map(|(_, pem)| pem.contents).map_err(|error| failed("ca.pem", &error))
    }

    /// The encoding of its public key (SubjectPublicKeyInfo).
    pub(super) fn public_key(&self) -> Vec<u8> {
        self.issuer.key().subject_public_key_info()
    }

    /// A new certificate of this CA as PEM: for the same key, so that all certificates that it has issued stay valid.
    pub(super) fn renewed(&self, days: u32) -> Result<String, Failure> {
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, self.name.clone());
        let renewed = self_sign(subject, self.issuer.key(), days)?;
        if subject_of(&renewed)? != subject_of(&self.pem)? {
            let text = "this CA was not made by `telexec certs init`: renew it with the program that made it";
            return Err(Failure::message(FAILED, text));
        }
        Ok(renewed)
    }

    /// Signs a certificate that is valid from shortly before now, and no longer than the CA.
    pub(super) fn sign(
        &self,
        profile: &Profile,
        key: &impl PublicKeyData,
        lifetime: Duration,
    ) -> Result<Signed, Failure> {
        let now = SystemTime::now();
        if self.not_after <= now {
            return Err(Failure::message(FAILED, format!("the CA {:?} has expired", self.name))
                .hint(Some("give it a new certificate for its key: telexec certs renew --ca")));
        }
        let wanted = now + lifetime;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, profile.name.clone());
        let names = profile.names.iter().map(|name| name.to_san()).collect::<Result<_, _>>();
        params.subject_alt_names = names.map_err(|error| failed(&profile.name, &error))?;
        params.not_before = (now - CLOCK_SKEW).into();
        params.not_after = OffsetDateTime::from(wanted.min(self.not_after));
        params.serial_number = Some(new_serial()?);
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        if profile.usage.is_server() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        if profile.usage.is_client() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        }
        let cert = params.signed_by(key, &self.issuer);
        let cert = cert.map_err(|error| failed("cannot sign the certificate", &error))?;
        Ok(Signed { pem: cert.pem(), is_cut: wanted > self.not_after })
    }
}

/// The subject of a certificate, as it is encoded.
fn subject_of(pem: &str) -> Result<Vec<u8>, Failure> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).map_err(|error| failed("ca.pem", &error))?;
    Ok(pem.parse_x509().map_err(|error| failed("ca.pem", &error))?.subject().as_raw().to_vec())
}

/// A random positive number of 16 bytes.
fn new_serial() -> Result<SerialNumber, Failure> {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|error| failed("cannot generate a serial number", &error))?;
    if let Some(first) = bytes.first_mut() {
        *first = (*first & 0x7f) | 0x40;
    }
    Ok(SerialNumber::from_slice(&bytes))
}

#[cfg(test)]
mod tests {
    use x509_parser::pem::parse_x509_pem;

    use super::super::profile::{SubjectName, Usage};
    use super::*;

    fn ca(cert: &str, key: &str) -> CertificateAuthority {
        CertificateAuthority::from_pem(cert, key, Path::new("ca.pem"), Path::new("ca.key")).unwrap()
    }

    fn profile() -> Profile {
        Profile { name: "web-1".into(), usage: Usage::Client, names: vec![SubjectName::Dns("web-1".into())] }
    }

    #[test]
    fn a_certificate_is_what_was_asked_for_and_no_longer_valid_than_its_ca() {
        let (cert, key) = make("test", 10).unwrap();
        let ca = ca(&cert, &key);
        let signed = ca.sign(&profile(), &new_key().unwrap(), DAY * 20).unwrap();
        assert!(signed.is_cut && !ca.sign(&profile(), &new_key().unwrap(), DAY * 9).unwrap().is_cut);
        let (_, pem) = parse_x509_pem(signed.pem.as_bytes()).unwrap();
        let cert = pem.parse_x509().unwrap();
        assert_eq!(SystemTime::from(cert.validity().not_after.to_datetime()), ca.not_after);
        assert!(!cert.is_ca());
        assert_eq!(Profile::of(&cert).unwrap(), profile());
        assert_eq!(cert.issuer().to_string(), "CN=test");
    }

    #[test]
    fn a_renewed_ca_vouches_for_what_it_issued_before() {
        let (cert, key) = make("test", 10).unwrap();
        let before = ca(&cert, &key);
        let signed = before.sign(&profile(), &new_key().unwrap(), DAY).unwrap();
        let after = ca(&before.renewed(100).unwrap(), &key);
        assert!(after.not_after > before.not_after + DAY * 80);
        let (_, ca_pem) = parse_x509_pem(after.pem.as_bytes()).unwrap();
        let ca = ca_pem.parse_x509().unwrap();
        let (_, pem) = parse_x509_pem(signed.pem.as_bytes()).unwrap();
        let cert = pem.parse_x509().unwrap();
        cert.verify_signature(Some(ca.public_key())).unwrap();
        assert_eq!(cert.issuer(), ca.subject());
    }
}
