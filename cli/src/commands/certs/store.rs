//! The CA's directory: one process at a time changes it, and after a crash it is as before or after a change.
//!
//! A certificate is in the index before anyone has it, so that it can be revoked.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateRevocationListParams, KeyIdMethod, PublicKeyData, RevocationReason, RevokedCertParams, SerialNumber,
};

use super::ca::CertificateAuthority;
use super::index::{Index, Issued, Status};
use super::profile::Profile;
use super::{CLOCK_SKEW, DAY, ca, failed, files};
use crate::args::RevokeReason;
use crate::output::Failure;

/// How long a revocation list is up to date, unless another time is asked for.
pub(super) const CRL_DAYS: u32 = 90;

/// An open directory, locked against other processes.
pub(super) struct Store {
    pub(super) directory: PathBuf,
    pub(super) ca: CertificateAuthority,
    pub(super) index: Index,
    _lock: File,
}

pub(super) fn crl_path(directory: &Path) -> PathBuf {
    directory.join("crl.pem")
}

/// Waits until no other process uses the directory. The lock ends with the file.
pub(super) fn lock(directory: &Path) -> Result<File, Failure> {
    let lock = || {
        let file = File::open(directory)?;
        file.lock().map(|()| file)
    };
    lock().map_err(|error| failed(format_args!("cannot lock {}", directory.display()), &error))
}

impl Store {
    pub(super) fn open(directory: &Path) -> Result<Self, Failure> {
        // says what to do where there is no CA
        files::read(&ca::cert_path(directory))?;
        let lock = lock(directory)?;
        let ca = CertificateAuthority::load(directory)?;
        let index = load_index(directory, &ca.pem)?;
        Ok(Self { directory: directory.to_owned(), ca, index, _lock: lock })
    }

    /// Signs a certificate and notes it; nobody may have it before [`save`](Self::save). Returns it, and whether the CA ends
    /// before it should.
    pub(super) fn issue(
        &mut self,
        profile: &Profile,
        key: &impl PublicKeyData,
        lifetime: Duration,
    ) -> Result<(Issued, bool), Failure> {
        let signed = self.ca.sign(profile, key, lifetime)?;
        let issued = Issued { lifetime, ..Issued::from_pem(&signed.pem)? };
        self.index.certificates.push(issued.clone());
        Ok((issued, signed.is_cut))
    }

    pub(super) fn save(&mut self) -> Result<(), Failure> {
        self.index.save(&self.directory)
    }

    /// Saves, and writes a new revocation list. Returns when that is to be replaced by the next.
    pub(super) fn save_with_crl(&mut self, days: u32) -> Result<SystemTime, Failure> {
        self.index.crl_number += 1;
        self.save()?;
        let now = SystemTime::now();
        let next_update = now + DAY * days;
        let pem = self.revocation_list(now, next_update)?;
        files::replace(&crl_path(&self.directory), files::PUBLIC, &pem)?;
        Ok(next_update)
    }

    /// The serial numbers on the list, since when and why: expired certificates need no entry.
    pub(super) fn revoked(&self, now: SystemTime) -> Vec<(&str, SystemTime, Option<RevokeReason>)> {
        let listed = self.index.certificates.iter().filter(|issued| issued.not_after >= now);
        let listed =
            listed.filter_map(|issued| Some((issued.serial.as_str(), issued.revoke_time?, issued.revoke_reason)));
        let elsewhere = self.index.revoked_elsewhere.iter().map(|(serial, time)| (serial.as_str(), **time, None));
        listed.chain(elsewhere).collect()
    }

    fn revocation_list(&self, now: SystemTime, next_update: SystemTime) -> Result<String, Failure> {
        let revoked = self.revoked(now).into_iter().map(|(serial, time, reason)| RevokedCertParams {
            serial_number: SerialNumber::from_slice(&super::unhex(serial)),
            revocation_time: time.into(),
            reason_code: reason.map(code),
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: (now - CLOCK_SKEW).into(),
            next_update: next_update.into(),
            crl_number: SerialNumber::from(self.index.crl_number),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let signed = list.signed_by(&self.ca.issuer).and_then(|list| list.pem());
        signed.map_err(|error| failed("cannot sign the revocation list", &error))
    }

    /// The newest certificates of each name and usage that have not been revoked.
    pub(super) fn current(&self, now: SystemTime) -> Vec<Issued> {
        let certificates = self.index.certificates.iter().enumerate();
        certificates
            .filter(|(at, _)| !self.index.is_renewed(*at) && self.index.status(*at, now) != Status::Revoked)
            .map(|(_, issued)| issued.clone())
            .collect()
    }
}

fn code(reason: RevokeReason) -> RevocationReason {
    match reason {
        RevokeReason::KeyCompromise => RevocationReason::KeyCompromise,
        RevokeReason::AffiliationChanged => RevocationReason::AffiliationChanged,
        RevokeReason::Superseded => RevocationReason::Superseded,
        RevokeReason::CessationOfOperation => RevocationReason::CessationOfOperation,
        RevokeReason::PrivilegeWithdrawn => RevocationReason::PrivilegeWithdrawn,
    }
}

/// The index of the CA with this certificate.
pub(super) fn load_index(directory: &Path, ca_pem: &str) -> Result<Index, Failure> {
    let path = ca::cert_path(directory);
    let (_, pem) =
        x509_parser::pem::parse_x509_pem(ca_pem.as_bytes()).map_err(|error| failed(path.display(), &error))?;
    Index::load(directory, &pem.parse_x509().map_err(|error| failed(path.display(), &error))?)
}
