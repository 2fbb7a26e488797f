//! How many connections there may be at once, in all and of one caller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::warn;

use crate::identity::Identity;

/// Places for callers that are known; its clones share them.
#[derive(Clone)]
pub(crate) struct Places(Arc<Shared>);

struct Shared {
    most: usize,
    /// A quarter of the places is out of reach for each single caller.
    most_each: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    each: HashMap<Identity, usize>,
    /// Since when that is so, nobody else was told.
    is_full: bool,
}

/// One of the places, until it is dropped.
pub(crate) struct Place {
    places: Places,
    identity: Identity,
}

impl Places {
    pub(crate) fn new(most: u32) -> Self {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Self(Arc::new(Shared { most, most_each: most - most / 4, taken: Mutex::default() }))
    }

    /// `None`: there is none for this caller. That is logged once, until there is one again.
    pub(crate) fn take(&self, identity: &Identity, from: &str) -> Option<Place> {
        let mut taken = self.taken();
        let own = taken.each.get(identity).copied().unwrap_or(0);
        let is_full = taken.all >= self.0.most || own >= self.0.most_each;
        let was_full = std::mem::replace(&mut taken.is_full, is_full);
        if is_full {
            if !was_full {
                let (open, most) = (taken.all, self.0.most);
                warn!(from, %identity, own, open, most, "turned a peer away, and will others: max_connections are open");
            }
            return None;
        }
        taken.all += 1;
        taken.each.insert(identity.clone(), own + 1);
        Some(Place { places: self.clone(), identity: identity.clone() })
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
        match taken.each.get_mut(&self.identity) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(taken.each.remove(&self.identity)),
        }
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

    #[test]
    fn nobody_takes_all_places() {
        let places = Places::new(8);
        let (anna, bob, eve) = (identity("anna"), identity("bob"), identity("eve"));
        let mut annas: Vec<_> = (0..6).map(|_| places.take(&anna, "").unwrap()).collect();
        assert!(places.take(&anna, "").is_none());
        let bobs: Vec<_> = (0..2).map(|_| places.take(&bob, "").unwrap()).collect();
        assert!(places.take(&bob, "").is_none() && places.take(&eve, "").is_none());
        annas.pop();
        let eves = places.take(&eve, "").unwrap();
        assert!(places.take(&anna, "").is_none());
        drop((annas, bobs, eves));
        assert!(places.taken().each.is_empty() && places.taken().all == 0);
    }

    #[test]
    fn few_places_are_for_anyone() {
        let places = Places::new(3);
        let anna = identity("anna");
        let taken: Vec<_> = (0..3).map(|_| places.take(&anna, "").unwrap()).collect();
        assert!(places.take(&anna, "").is_none());
        drop(taken);
    }
}
