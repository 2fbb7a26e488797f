//! Records of who was turned away before a policy was asked: peers that were not authenticated, calls of certificates that are no
//! longer valid, and calls with tokens that are not accepted.

use std::num::NonZero;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use serde::Serialize;
use telexec_executor::ExecutorError;

use super::command::clip;
use super::record::{Body, Failure, Origin, Record, clip_name};
use super::{Audit, CLEANUP_SIZE, Inner, MAX_WAITING, json, rest};
use crate::call::caller::{Caller, Transport};
use crate::digest::sha256;
use crate::handshake::HandshakeError;
use crate::identity::Identity;
use crate::identity::source::Source;
use crate::listen::Remote;
use crate::tls::certificate::parse;

/// Peers of one source that are recorded in a burst; then one a second.
const BURST: NonZero<u32> = NonZero::new(20).expect("it is positive");
/// What a record of one has beside what it says of the peer.
const MAX_OTHER_BYTES: u64 = 512;
/// All who are not authenticated have one share of the log. No identity is named so.
const NOBODY: &str = "";

/// Limits the records of each source.
pub(super) fn limiter() -> DefaultKeyedRateLimiter<String> {
    RateLimiter::keyed(Quota::per_second(NonZero::<u32>::MIN).allow_burst(BURST))
}

/// A peer that was not authenticated.
#[derive(Debug, Serialize)]
pub(super) struct RejectedPeer {
    transport: &'static str,
    peer: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_uid: Option<u32>,
    /// What the certificate that it presented says, whoever has made it; likewise the next two.
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_serial: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_fingerprint: Option<String>,
    error: &'static str,
    message: String,
}

impl Audit {
    /// Records that a peer was not authenticated, unless it went away by itself.
    pub(crate) async fn record_rejected_peer(&self, transport: Transport, remote: &Remote, error: &HandshakeError) {
        let Some(inner) = self.0.as_ref().filter(|_| error.is_decision()) else { return };
        if !inner.spares_nobody(&remote.source.to_string()) {
            return inner.leave_out(NOBODY, true, Origin::of_nobody);
        }
        let peer = Box::new(RejectedPeer::new(transport, remote, error));
        if inner.fits(NOBODY, MAX_OTHER_BYTES + json::length(&peer), true, Origin::of_nobody) {
            inner.write(Record::new(Body::RejectedPeer(peer))).await;
        }
    }

    /// Records that a call was refused: the certificate of its connection is no longer valid, or its token is not accepted.
    pub(crate) async fn record_rejected_call(&self, caller: &Caller, path: &str, error: &ExecutorError) {
        let Some(inner) = &self.0 else { return };
        let origin = || Origin::of_caller(caller, clip_name(path.rsplit('/').next().unwrap_or_default()).into(), None);
        let record = || Record::new(Body::RejectedCall(Failure::from(error))).of(&origin());
        if !caller.is_authenticated() {
            if !inner.spares_nobody(&caller.source()) {
                return inner.leave_out(NOBODY, true, Origin::of_nobody);
            }
            if inner.fits(NOBODY, rest(caller.identity.as_str()), true, Origin::of_nobody) {
                inner.write(record()).await;
            }
            return;
        }
        let identity = caller.identity.as_str();
        if inner.spares(identity, origin) && inner.fits(identity, rest(identity), true, origin) {
            inner.write(record()).await;
        }
    }
}

impl Inner {
    /// Whether there may be a record of one from this source who is not authenticated.
    fn spares_nobody(&self, source: &str) -> bool {
        if self.rejections.len() > CLEANUP_SIZE {
            self.rejections.retain_recent();
        }
        // the rest of the queue is for callers, and none of these waits for room in it
        self.rejections.check_key(&source.to_owned()).is_ok() && self.slots.available_permits() > MAX_WAITING / 2
    }
}

impl RejectedPeer {
    fn new(transport: Transport, remote: &Remote, error: &HandshakeError) -> Self {
        let presented = error.certificate();
        let parsed = presented.and_then(parse);
        let name = parsed.as_ref().and_then(Identity::from_certificate);
        Self {
            transport: transport.as_str(),
            peer: clip_name(&remote.address),
            peer_uid: match remote.source {
                Source::Uid(uid) => uid,
                Source::Ip(_) | Source::Cid(_) => None,
            },
            certificate_name: name.map(|name| clip_name(name.as_str())),
            certificate_serial: parsed.map(|certificate| clip_name(&certificate.raw_serial_as_string())),
            certificate_fingerprint: presented.map(|certificate| sha256(certificate)),
            error: error.result().as_str(),
            message: clip(&error.to_string()),
        }
    }
}
