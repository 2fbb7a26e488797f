//! The calls of machines: what they get, and why they get nothing.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use rcgen::SubjectPublicKeyInfo;
use telexec_proto::enrollment::v1::enrollment_service_server::EnrollmentService;
use telexec_proto::enrollment::v1::{EnrollRequest, EnrollResponse, RenewRequest, RenewResponse};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use super::super::index::{Index, Issued, Status as CertificateStatus};
use super::super::store::{CRL_DAYS, Store, crl_path, load_index};
use super::super::token::Worthless;
use super::super::{ca, date, files};
use super::limits::Limits;
use crate::output::{Failure, print_message};

/// One of our own is about 300 bytes long.
const MAX_REQUEST_BYTES: usize = 16 * 1024;
/// The same for whatever is wrong with a token: guessing is not to pay.
const WORTHLESS: &str = "the token is unknown, has expired, or was used by another machine";

/// The service over the CA's directory, which it opens for each call: other processes use it meanwhile.
#[derive(Clone)]
pub(super) struct Enrollments {
    pub(super) authority: Arc<Authority>,
    pub(super) limits: Arc<Limits>,
}

/// The CA that issues, and others that machines are to trust too.
pub(super) struct Authority {
    pub(super) directory: PathBuf,
    /// Directories of CAs: certificates of theirs are renewed by the one above.
    pub(super) trust: Vec<PathBuf>,
    pub(super) limits: Arc<Limits>,
}

/// The peer of a connection.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    /// The certificate that it has proved to have the key of; of whom it is, is not known yet.
    pub(super) certificate: Option<Vec<u8>>,
    /// Cancelled by its first call.
    pub(super) called: CancellationToken,
}

/// Why a call got nothing.
enum Refusal {
    /// For the caller, and for the log.
    Unauthenticated(String, String),
    Invalid(&'static str),
    /// The limit that is reached.
    TooMany(String),
    Failed(Failure),
}

impl Refusal {
    /// The same for both.
    fn unauthenticated(text: impl Into<String>) -> Self {
        let text = text.into();
        Self::Unauthenticated(text.clone(), text)
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

#[async_trait]
impl EnrollmentService for Enrollments {
    async fn enroll(&self, request: Request<EnrollRequest>) -> Result<Response<EnrollResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        self.answer(extensions.get().cloned(), move |authority, peer| authority.enroll(&request, peer)).await
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Result<Response<RenewResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        self.answer(extensions.get().cloned(), move |authority, peer| authority.renew(&request, peer)).await
    }
}

impl Enrollments {
    /// On a thread that may wait for the lock and the disk. Each call is a line of the log.
    async fn answer<T: Send + 'static>(
        &self,
        peer: Option<Peer>,
        work: impl FnOnce(&Authority, &Peer) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let peer = peer.ok_or_else(|| Status::internal("the connection has no peer"))?;
        if peer.called.is_cancelled() {
            return Err(Status::resource_exhausted("a connection is for one call"));
        }
        peer.called.cancel();
        let (authority, address) = (Arc::clone(&self.authority), peer.address);
        let done = tokio::task::spawn_blocking(move || work(&authority, &peer)).await;
        let refusal = match done.map_err(|_| Status::internal("the call was given up"))? {
            Ok(answer) => return Ok(Response::new(answer)),
            Err(refusal) => refusal,
        };
        let (status, reason) = match refusal {
            Refusal::Unauthenticated(text, reason) => (Status::unauthenticated(text), reason),
            Refusal::Invalid(text) => (Status::invalid_argument(text), text.to_owned()),
            Refusal::TooMany(text) => (Status::resource_exhausted(text.clone()), text),
            Refusal::Failed(failure) => (Status::internal("the CA failed: see its log"), failure.to_string()),
        };
        if self.limits.logs(address.ip()) {
            print_message(&format!("refused {address}: {reason}"));
        }
        Err(status)
    }
}

impl Authority {
    fn enroll(&self, request: &EnrollRequest, peer: &Peer) -> Result<EnrollResponse, Refusal> {
        let key = key_of_request(&request.certificate_request)?;
        let worthless = |worthless: Worthless| Refusal::Unauthenticated(WORTHLESS.to_owned(), worthless.to_string());
        // before the lock is taken, for which others wait
        self.index()?.token(&request.secret, &key, SystemTime::now()).map_err(worthless)?;
        let mut store = Store::open(&self.directory)?;
        let issued = store.redeem(&request.secret, &key, SystemTime::now())?.map_err(worthless)?;
        print_message(&said("enrolled", &issued, peer));
        let (ca_certificates, revocation_lists) = self.trusted(&mut store)?;
        Ok(EnrollResponse { certificate: issued.certificate, ca_certificates, revocation_lists })
    }

    fn renew(&self, request: &RenewRequest, peer: &Peer) -> Result<RenewResponse, Refusal> {
        let presented = peer.certificate.as_ref();
        let presented = presented.ok_or_else(|| Refusal::unauthenticated("a renewal needs the present certificate"))?;
        let now = SystemTime::now();
        // before the lock is taken, for which others wait
        self.presented(&self.index()?, presented, now)?;
        let mut store = Store::open(&self.directory)?;
        let (issued, is_own) = self.presented(&store.index, presented, now)?;
        // one that would end with this one, as the CA does, is no gain
        let is_due = is_due(&issued, now) && issued.not_after < store.ca.not_after;
        let certificate = if request.force || !is_own || is_due {
            let name = &issued.profile.name;
            if !self.limits.renews(name, issued.profile.usage) {
                let text = format!("{name} has been renewed too often: wait an hour, or use the last certificate");
                return Err(Refusal::TooMany(text));
            }
            let key = x509_parser::parse_x509_certificate(presented)
                .ok()
                .and_then(|(_, certificate)| SubjectPublicKeyInfo::from_der(certificate.public_key().raw).ok())
                .ok_or(Refusal::Invalid("the key of the certificate is of an unknown kind"))?;
            let (renewed, _) = store.issue(&issued.profile, &key, issued.lifetime)?;
            store.save()?;
            print_message(&said("renewed", &renewed, peer));
            renewed.certificate
        } else {
            String::new()
        };
        let (ca_certificates, revocation_lists) = self.trusted(&mut store)?;
        Ok(RenewResponse { certificate, ca_certificates, revocation_lists })
    }

    /// The index of the CA that issues, as it was last saved.
    fn index(&self) -> Result<Index, Failure> {
        load_index(&self.directory, &files::read(&ca::cert_path(&self.directory))?)
    }

    /// The certificate that a peer has presented, and whether the CA of this index has issued it, or one of the others.
    fn presented(&self, own: &Index, presented: &[u8], now: SystemTime) -> Result<(Issued, bool), Refusal> {
        if let Some(usable) = usable(own, presented, now) {
            return usable.map(|issued| (issued, true)).map_err(Refusal::unauthenticated);
        }
        for directory in &self.trust {
            let index = load_index(directory, &files::read(&ca::cert_path(directory))?)?;
            if let Some(usable) = usable(&index, presented, now) {
                return usable.map(|issued| (issued, false)).map_err(Refusal::unauthenticated);
            }
        }
        Err(Refusal::unauthenticated("the certificate was not issued by this CA"))
    }

    /// The CAs to trust, and their lists.
    fn trusted(&self, store: &mut Store) -> Result<(String, String), Failure> {
        if !crl_path(&self.directory).exists() {
            store.save_with_crl(CRL_DAYS)?;
        }
        let all = || std::iter::once(&self.directory).chain(&self.trust).map(PathBuf::as_path);
        let concatenated = |path: fn(&Path) -> PathBuf| {
            all().map(|directory| files::read(&path(directory))).collect::<Result<String, _>>()
        };
        Ok((concatenated(ca::cert_path)?, concatenated(crl_path)?))
    }
}

/// What the index says of the certificate that a peer has presented; `None`: it does not know it.
fn usable(index: &Index, presented: &[u8], now: SystemTime) -> Option<Result<Issued, String>> {
    let at = index.position(presented)?;
    let issued = index.certificates.get(at)?.clone();
    Some(match index.status(at, now) {
        CertificateStatus::Revoked => Err("the certificate is revoked".to_owned()),
        CertificateStatus::Expired => {
            Err(format!("the certificate expired on {}: enrol with a new token", date(issued.not_after)))
        }
        CertificateStatus::Valid | CertificateStatus::Renewed => Ok(issued),
    })
}

/// In the last third of its life.
fn is_due(issued: &Issued, now: SystemTime) -> bool {
    let whole = issued.not_after.duration_since(issued.not_before).unwrap_or_default();
    issued.not_after.duration_since(now).unwrap_or_default() < whole / 3
}

/// The public key of a request whose signature proves that the sender has the private one.
fn key_of_request(der: &[u8]) -> Result<Vec<u8>, Refusal> {
    const MALFORMED: &str = "the certificate signing request is malformed, or its signature is wrong";
    if der.len() > MAX_REQUEST_BYTES {
        return Err(Refusal::Invalid("the certificate signing request is too long"));
    }
    let (rest, request) = X509CertificationRequest::from_der(der).map_err(|_| Refusal::Invalid(MALFORMED))?;
    if !rest.is_empty() || request.verify_signature().is_err() {
        return Err(Refusal::Invalid(MALFORMED));
    }
    Ok(request.certification_request_info.subject_pki.raw.to_vec())
}

fn said(what: &str, issued: &Issued, peer: &Peer) -> String {
    let Issued { profile, serial, not_after, .. } = issued;
    let (usage, names) = (profile.usage.as_str(), profile.listed_names());
    format!(
        "{what} {} ({usage}; {names}) at {}: serial {serial}, valid until {}",
        profile.name,
        peer.address,
        date(*not_after)
    )
}
