//! Limits the connections open at once: in all, per caller and per address.

use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::warn;

use crate::config::Config;
use crate::identity::Identity;
use crate::identity::source::Source;
use crate::listen::Remote;
use crate::listen::descriptors::Descriptors;
use crate::listen::pending::PendingConnection;

/// Limits the connections of authenticated callers; clones share the counts.
#[derive(Clone)]
pub(crate) struct ConnectionLimiter(Arc<Shared>);

struct Shared {
    max: usize,
    max_per_identity: usize,
    max_per_source: usize,
    descriptors: Descriptors,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    all: usize,
    identities: HashMap<Identity, usize>,
    sources: HashMap<Source, usize>,
    /// The last caller was refused: the next refusals are not logged.
    is_full: bool,
}

/// One counted connection, until it is dropped.
pub(crate) struct ConnectionPermit {
    limiter: ConnectionLimiter,
    identity: Identity,
    source: Source,
}

impl ConnectionLimiter {
    /// By default no single caller and no single address may have more than three quarters of all.
    pub(crate) fn new(config: &Config) -> Self {
        let number = |number| usize::try_from(number).unwrap_or(usize::MAX);
        let max = number(config.max_connections);
        let share = |share: Option<NonZeroU32>| share.map_or(max - max / 4, |share| number(share.get()));
        Self(Arc::new(Shared {
            max,
            max_per_identity: share(config.max_connections_per_identity),
            max_per_source: share(config.max_connections_per_source),
            descriptors: Descriptors::new(),
            counts: Mutex::default(),
        }))
    }

    /// For a connection that is authenticated now. `None`: a limit is reached, or only reserved descriptors are left, and
    /// connections have their part of them. The first of consecutive refusals is logged.
    pub(crate) fn acquire(
        &self,
        identity: &Identity,
        remote: &Remote,
        pending: &PendingConnection,
    ) -> Option<ConnectionPermit> {
        let mut counts = self.counts();
        let own = counts.identities.get(identity).copied().unwrap_or(0);
        let same_source = counts.sources.get(&remote.source).copied().unwrap_or(0);
        let limits = [
            (counts.all, self.0.max, "max_connections"),
            (own, self.0.max_per_identity, "max_connections_per_identity"),
            (same_source, self.0.max_per_source, "max_connections_per_source"),
        ];
        let full = limits.into_iter().find(|(open, max, _)| open >= max);
        let max = self.0.descriptors.max_in_reserve();
        let few = || !pending.has_room() && counts.all >= max && self.0.descriptors.are_few();
        let unreserved = usize::try_from(self.0.descriptors.unreserved()).unwrap_or(usize::MAX);
        let full = full.or_else(|| few().then_some((unreserved, unreserved, "RLIMIT_NOFILE")));
        let is_full = full.is_some();
        let was_full = std::mem::replace(&mut counts.is_full, is_full);
        if let Some((open, max, setting)) = full {
            if !was_full {
                let from = &remote.address;
                warn!(from, %identity, open, most = max, setting, "rejected a connection, and will reject others: too many connections");
            }
            return None;
        }
        counts.all += 1;
        *counts.identities.entry(identity.clone()).or_default() += 1;
        *counts.sources.entry(remote.source).or_default() += 1;
        Some(ConnectionPermit { limiter: self.clone(), identity: identity.clone(), source: remote.source })
    }

    /// How many there are.
    pub(crate) fn open(&self) -> usize {
        self.counts().all
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts = self.limiter.counts();
        counts.all -= 1;
        decrement(&mut counts.identities, &self.identity);
        decrement(&mut counts.sources, &self.source);
    }
}

fn decrement<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    match counts.get_mut(key) {
        Some(count) if *count > 1 => *count -= 1,
        _ => drop(counts.remove(key)),
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;

    use super::*;
    use crate::listen::pending::PendingConnections;
    use crate::tls::peer_certificate::PeerCertificate;

    fn identity(name: &str) -> Identity {
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let chain = [CertificateDer::from(params.self_signed(&key).unwrap())];
        PeerCertificate::parse(&chain).unwrap().identity
    }

    fn limiter(max_connections: u32) -> ConnectionLimiter {
        ConnectionLimiter::new(&Config { max_connections, ..Config::default() })
    }

    fn acquire(limiter: &ConnectionLimiter, identity: &Identity, cid: u32) -> Option<ConnectionPermit> {
        let remote = Remote { address: String::new(), source: Source::Cid(cid) };
        limiter.acquire(identity, &remote, &PendingConnections::new(1, 1).enter(remote.source, true))
    }

    #[test]
    fn nobody_takes_all_connections() {
        let limiter = limiter(8);
        let (anna, bob, eve) = (identity("anna"), identity("bob"), identity("eve"));
        let mut annas: Vec<_> = (0..6).map(|cid| acquire(&limiter, &anna, cid).unwrap()).collect();
        assert!(acquire(&limiter, &anna, 7).is_none());
        let bobs: Vec<_> = (0..2).map(|cid| acquire(&limiter, &bob, cid).unwrap()).collect();
        assert!(acquire(&limiter, &bob, 7).is_none() && acquire(&limiter, &eve, 7).is_none());
        annas.pop();
        let eves = acquire(&limiter, &eve, 7).unwrap();
        assert!(acquire(&limiter, &anna, 7).is_none());
        drop((annas, bobs, eves));
        let counts = limiter.counts();
        assert!(counts.identities.is_empty() && counts.sources.is_empty() && counts.all == 0);
    }

    #[test]
    fn callers_of_one_address_do_not_take_all_connections() {
        let limiter = limiter(8);
        let callers: Vec<_> = (0..8).map(|number| identity(&format!("caller{number}"))).collect();
        let permits: Vec<_> = callers.iter().map_while(|caller| acquire(&limiter, caller, 1)).collect();
        assert_eq!(permits.len(), 6);
        assert!(acquire(&limiter, &callers[7], 2).is_some());
    }

    #[test]
    fn few_connections_are_for_anyone() {
        let limiter = limiter(3);
        let anna = identity("anna");
        let permits: Vec<_> = (0..3).map(|_| acquire(&limiter, &anna, 1).unwrap()).collect();
        assert!(acquire(&limiter, &anna, 2).is_none());
        drop(permits);
    }
}
