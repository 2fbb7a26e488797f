//! How many connections there may be at once, in all, of one caller and from one address.

use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::warn;

use crate::config::Config;
use crate::identity::Identity;
use crate::identity::source::Source;
use crate::listen::Remote;

/// Places for callers that are known; its clones share them.
#[derive(Clone)]
pub(crate) struct Places(Arc<Shared>);

struct Shared {
    most: usize,
    most_per_identity: usize,
    most_per_source: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    identities: HashMap<Identity, usize>,
    sources: HashMap<Source, usize>,
    /// Since when that is so, nobody else was told.
    is_full: bool,
}

/// One of the places, until it is dropped.
pub(crate) struct Place {
    places: Places,
    identity: Identity,
    source: Source,
}

impl Places {
    /// If nothing else is said, a quarter of the places is out of reach for each single caller and each single address.
    pub(crate) fn new(config: &Config) -> Self {
        let number = |number| usize::try_from(number).unwrap_or(usize::MAX);
        let most = number(config.max_connections);
        let share = |share: Option<NonZeroU32>| share.map_or(most - most / 4, |share| number(share.get()));
        Self(Arc::new(Shared {
            most,
            most_per_identity: share(config.max_connections_per_identity),
            most_per_source: share(config.max_connections_per_source),
            taken: Mutex::default(),
        }))
    }

    /// `None`: there is none for this caller. That is logged once, until there is one again.
    pub(crate) fn take(&self, identity: &Identity, remote: &Remote) -> Option<Place> {
        let mut taken = self.taken();
        let own = taken.identities.get(identity).copied().unwrap_or(0);
        let same_source = taken.sources.get(&remote.source).copied().unwrap_or(0);
        let limits = [
            (taken.all, self.0.most, "max_connections"),
            (own, self.0.most_per_identity, "max_connections_per_identity"),
            (same_source, self.0.most_per_source, "max_connections_per_source"),
        ];
        let full = limits.into_iter().find(|(open, most, _)| open >= most);
        let is_full = full.is_some();
        let was_full = std::mem::replace(&mut taken.is_full, is_full);
        if let Some((open, most, setting)) = full {
            if !was_full {
                let from = &remote.address;
                warn!(from, %identity, open, most, setting, "turned a peer away, and will others: too many connections");
            }
            return None;
        }
        taken.all += 1;
        *taken.identities.entry(identity.clone()).or_default() += 1;
        *taken.sources.entry(remote.source).or_default() += 1;
        Some(Place { places: self.clone(), identity: identity.clone(), source: remote.source })
    }

    /// How many are taken.
    pub(crate) fn open(&self) -> usize {
        self.taken().all
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        give_back(&mut taken.identities, &self.identity);
        give_back(&mut taken.sources, &self.source);
    }
}

fn give_back<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    match counts.get_mut(key) {
        Some(count) if *count > 1 => *count -= 1,
        _ => drop(counts.remove(key)),
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;

    use super::*;

    fn identity(name: &str) -> Identity {
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        Identity::from_certificate(&CertificateDer::from(params.self_signed(&key).unwrap())).unwrap()
    }

    fn places(max_connections: u32) -> Places {
        Places::new(&Config { max_connections, ..Config::default() })
    }

    fn from(cid: u32) -> Remote {
        Remote { address: String::new(), source: Source::Cid(cid) }
    }

    #[test]
    fn nobody_takes_all_places() {
        let places = places(8);
        let (anna, bob, eve) = (identity("anna"), identity("bob"), identity("eve"));
        let mut annas: Vec<_> = (0..6).map(|cid| places.take(&anna, &from(cid)).unwrap()).collect();
        assert!(places.take(&anna, &from(7)).is_none());
        let bobs: Vec<_> = (0..2).map(|cid| places.take(&bob, &from(cid)).unwrap()).collect();
        assert!(places.take(&bob, &from(7)).is_none() && places.take(&eve, &from(7)).is_none());
        annas.pop();
        let eves = places.take(&eve, &from(7)).unwrap();
        assert!(places.take(&anna, &from(7)).is_none());
        drop((annas, bobs, eves));
        let taken = places.taken();
        assert!(taken.identities.is_empty() && taken.sources.is_empty() && taken.all == 0);
    }

    #[test]
    fn callers_of_one_address_do_not_take_all_places() {
        let places = places(8);
        let callers: Vec<_> = (0..8).map(|number| identity(&format!("caller{number}"))).collect();
        let taken: Vec<_> = callers.iter().map_while(|caller| places.take(caller, &from(1))).collect();
        assert_eq!(taken.len(), 6);
        assert!(places.take(&callers[7], &from(2)).is_some());
    }

    #[test]
    fn few_places_are_for_anyone() {
        let places = places(3);
        let anna = identity("anna");
        let taken: Vec<_> = (0..3).map(|_| places.take(&anna, &from(1)).unwrap()).collect();
        assert!(places.take(&anna, &from(2)).is_none());
        drop(taken);
    }
}
