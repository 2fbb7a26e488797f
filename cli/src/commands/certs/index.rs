//! `index.json` in the CA's directory: the certificates that the CA has issued, and which of them it has revoked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use x509_parser::pem::Pem;
use x509_parser::prelude::X509Certificate;

use super::profile::Profile;
use super::token::PendingToken;
use super::{CLOCK_SKEW, DAY, FAILED, failed, files, hex};
use crate::args::RevokeReason;
use crate::output::Failure;

/// Everything in the file.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(super) struct Index {
    /// SHA-256 of the CA's public key: another CA starts with an index of its own.
    ca: String,
    /// The number of the last revocation list.
    pub(super) crl_number: u64,
    /// In the order in which they were issued.
    pub(super) certificates: Vec<Issued>,
    /// Those that can still be used, if only to ask for the same again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) tokens: Vec<PendingToken>,
    /// Serial numbers of revoked certificates that are not among these: an earlier version issued them elsewhere.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) revoked_elsewhere: BTreeMap<String, humantime_serde::Serde<SystemTime>>,
}

/// A certificate that the CA has issued.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Issued {
    /// In hexadecimal.
    pub(super) serial: String,
    #[serde(flatten)]
    pub(super) profile: Profile,
    #[serde(with = "humantime_serde")]
    pub(super) not_before: SystemTime,
    #[serde(with = "humantime_serde")]
    pub(super) not_after: SystemTime,
    /// As it was asked for; the CA may have ended sooner.
    #[serde(with = "humantime_serde")]
    pub(super) lifetime: Duration,
    #[serde(with = "humantime_serde", default, skip_serializing_if = "Option::is_none")]
    pub(super) revoke_time: Option<SystemTime>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) revoke_reason: Option<RevokeReason>,
    /// PEM.
    pub(super) certificate: String,
}

/// What has become of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Valid,
    /// Still valid, but there is a newer one for the same.
    Renewed,
    Expired,
    Revoked,
}

impl Index {
    pub(super) fn path(directory: &Path) -> PathBuf {
        directory.join("index.json")
    }

    /// Reads the index of a CA. Without one, it has the certificates that are in the directory: earlier versions kept no index.
    pub(super) fn load(directory: &Path, ca: &X509Certificate<'_>) -> Result<Self, Failure> {
        let path = Self::path(directory);
        let key = hex(&super::sha256(ca.public_key().raw));
        let index = match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| failed(path.display(), &error))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Self::default(),
            Err(error) => return Err(failed(format_args!("cannot read {}", path.display()), &error)),
        };
        if index.ca == key {
            return Ok(index);
        }
        Ok(Self { ca: key, certificates: found(directory, ca)?, ..Self::default() })
    }

    pub(super) fn save(&mut self, directory: &Path) -> Result<(), Failure> {
        self.forget(SystemTime::now());
        let path = Self::path(directory);
        let text = serde_json::to_string_pretty(self).map_err(|error| failed(path.display(), &error))?;
        files::replace(&path, files::SECRET, &(text + "\n"))
    }

    /// Drops certificates that have expired, unless there is no newer one for the same; and tokens a day after they have,
    /// so that the log can say why one is refused.
    fn forget(&mut self, now: SystemTime) {
        self.tokens.retain(|token| now < token.expire_time + DAY);
        let all = std::mem::take(&mut self.certificates);
        let is_newest = |at: usize, issued: &Issued| !all.iter().skip(at + 1).any(|newer| newer.is_for_same_as(issued));
        let kept = all.iter().enumerate().filter(|(at, issued)| issued.not_after >= now || is_newest(*at, issued));
        self.certificates = kept.map(|(_, issued)| issued.clone()).collect();
    }

    /// Those with this name or serial number, in the order in which they were issued.
    pub(super) fn find(&self, selector: &str) -> Vec<usize> {
        let serial = serial(selector);
        let by = |matches: &dyn Fn(&Issued) -> bool| -> Vec<usize> {
            let found = self.certificates.iter().enumerate().filter(|(_, issued)| matches(issued));
            found.map(|(at, _)| at).collect()
        };
        let named = by(&|issued| issued.profile.name == selector);
        if named.is_empty() { by(&|issued| Some(&issued.serial) == serial.as_ref()) } else { named }
    }

    /// Where the certificate with this encoding is.
    pub(super) fn position(&self, der: &[u8]) -> Option<usize> {
        self.certificates.iter().position(|issued| issued.der().is_ok_and(|issued| issued == der))
    }

    /// Whether a newer certificate, not revoked, has its name and usage.
    pub(super) fn is_renewed(&self, at: usize) -> bool {
        let mut newer = self.certificates.iter().skip(at + 1).filter(|newer| newer.revoke_time.is_none());
        self.certificates.get(at).is_some_and(|issued| newer.any(|newer| newer.is_for_same_as(issued)))
    }

    pub(super) fn status(&self, at: usize, now: SystemTime) -> Status {
        match self.certificates.get(at) {
            Some(issued) if issued.revoke_time.is_some() => Status::Revoked,
            Some(issued) if issued.not_after < now => Status::Expired,
            _ if self.is_renewed(at) => Status::Renewed,
            _ => Status::Valid,
        }
    }
}

impl Issued {
    /// # Errors
    /// It is malformed, or is not one that this program issues.
    pub(super) fn from_pem(pem: &str) -> Result<Self, Failure> {
        let (_, parsed) =
            x509_parser::pem::parse_x509_pem(pem.as_bytes()).map_err(|error| failed("a certificate", &error))?;
        let certificate = parsed.parse_x509().map_err(|error| failed("a certificate", &error))?;
        Self::new(&certificate, pem).ok_or_else(|| Failure::message(FAILED, "the certificate has unexpected names"))
    }

    fn new(certificate: &X509Certificate<'_>, pem: &str) -> Option<Self> {
        let [not_before, not_after]: [SystemTime; 2] =
            [certificate.validity().not_before, certificate.validity().not_after].map(|time| time.to_datetime().into());
        let serial = certificate.raw_serial();
        Some(Self {
            // a positive number with the highest bit set is encoded with a zero in front
            serial: hex(serial.strip_prefix(&[0]).unwrap_or(serial)),
            profile: Profile::of(certificate)?,
            not_before,
            not_after,
            lifetime: not_after.duration_since(not_before).unwrap_or_default().saturating_sub(CLOCK_SKEW),
            revoke_time: None,
            revoke_reason: None,
            certificate: pem.to_owned(),
        })
    }

    pub(super) fn is_for_same_as(&self, other: &Self) -> bool {
        self.profile.name == other.profile.name && self.profile.usage == other.profile.usage
    }

    /// Its encoding.
    pub(super) fn der(&self) -> Result<Vec<u8>, Failure> {
        let parsed = x509_parser::pem::parse_x509_pem(self.certificate.as_bytes());
        parsed.map(|(_, pem)| pem.contents).map_err(|error| failed(&self.serial, &error))
    }
}

impl Status {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Renewed => "renewed",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        }
    }
}

/// A serial number of this CA's, with or without colons, as the index has it.
pub(super) fn serial(text: &str) -> Option<String> {
    let digits = text.replace(':', "").to_ascii_lowercase();
    (digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())).then_some(digits)
}

pub(super) fn unknown(selector: &str, directory: &Path) -> Failure {
    Failure::message(FAILED, format!("no certificate of this CA has the name or serial {selector:?}"))
        .hint(Some(format!("`telexec certs list --all --dir {}` lists them", directory.display())))
}

/// The certificates in a directory that this CA has signed, the oldest first.
fn found(directory: &Path, ca: &X509Certificate<'_>) -> Result<Vec<Issued>, Failure> {
    let unreadable = |error: std::io::Error| failed(format_args!("cannot read {}", directory.display()), &error);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "pem") {
            found.extend(std::fs::read(&path).ok().and_then(|text| issued_in(&text, ca)));
        }
    }
    found.sort_by_key(|issued: &Issued| issued.not_before);
    Ok(found)
}

/// `None`: the file does not begin with a certificate of this CA for an agent or a caller.
fn issued_in(text: &[u8], ca: &X509Certificate<'_>) -> Option<Issued> {
    let pem = Pem::iter_from_buffer(text).next()?.ok()?;
    let certificate = pem.parse_x509().ok()?;
    if certificate.is_ca() || certificate.verify_signature(Some(ca.public_key())).is_err() {
        return None;
    }
    Issued::new(&certificate, std::str::from_utf8(text).ok()?)
}
