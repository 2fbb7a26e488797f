//! How much of the spool each identity has.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use crate::SpoolLimits;
use crate::lock::lock;

/// Bytes that are on disk or about to be, of each owner that has any.
#[derive(Debug, Default)]
pub(super) struct Used(Mutex<Bytes>);

#[derive(Debug, Default)]
struct Bytes {
    all: u64,
    by_owner: HashMap<String, u64>,
}

/// There is no room for more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    pub(crate) reason: &'static str,
    /// Whose ended executions are to be given up for it, the first one's first. An owner never has any given up of those that have less
    /// than it has itself.
    pub(crate) owners: Vec<String>,
}

const OWN: &str =
    "running commands of the identity hold all that one identity may have of the spool (spool_bytes_per_identity)";
const ALL: &str = "running commands hold all of the spool (spool_total_bytes)";

impl Used {
    fn bytes(&self) -> MutexGuard<'_, Bytes> {
        lock(&self.0)
    }

    pub(super) fn add(&self, owner: &str, bytes: u64) {
        self.bytes().add(owner, bytes);
    }

    pub(super) fn give_back(&self, owner: &str, bytes: u64) {
        let mut used = self.bytes();
        used.all = used.all.saturating_sub(bytes);
        if let Some(own) = used.by_owner.get_mut(owner) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                used.by_owner.remove(owner);
            }
        }
    }

    /// Reserves this many bytes, or as many as there are, and then says what is in the way of the others.
    pub(super) fn reserve(&self, owner: &str, bytes: u64, limits: &SpoolLimits) -> (u64, Option<Full>) {
        let mut used = self.bytes();
        let reserved = bytes.min(used.room(owner, limits));
        used.add(owner, reserved);
        (reserved, used.full(owner, bytes - reserved, limits))
    }

    /// What is in the way of this many bytes of an owner.
    pub(super) fn full(&self, owner: &str, bytes: u64, limits: &SpoolLimits) -> Option<Full> {
        self.bytes().full(owner, bytes, limits)
    }

    /// There is no room outside of the spool.
    pub(super) fn no_room(&self, owner: &str, reason: &'static str) -> Full {
        self.bytes().give_up_for(owner, reason)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let used = self.bytes();
        used.all == 0 && used.by_owner.is_empty()
    }
}

impl Bytes {
    fn add(&mut self, owner: &str, bytes: u64) {
        self.all = self.all.saturating_add(bytes);
        match self.by_owner.get_mut(owner) {
            Some(own) => *own = own.saturating_add(bytes),
            None if bytes > 0 => drop(self.by_owner.insert(owner.to_owned(), bytes)),
            None => {}
        }
    }

    fn of(&self, owner: &str) -> u64 {
        self.by_owner.get(owner).copied().unwrap_or_default()
    }

    fn give_up_for(&self, owner: &str, reason: &'static str) -> Full {
        let own = self.of(owner);
        let is_victim = |(other, bytes): &(&String, &u64)| **bytes >= own || *other == owner;
        let mut owners: Vec<_> = self.by_owner.iter().filter(is_victim).collect();
        owners.sort_unstable_by(|(one, of_one), (other, of_other)| of_other.cmp(of_one).then_with(|| one.cmp(other)));
        Full { reason, owners: owners.into_iter().map(|(owner, _)| owner.clone()).collect() }
    }

    fn room(&self, owner: &str, limits: &SpoolLimits) -> u64 {
        limits.total.saturating_sub(self.all).min(limits.identity.saturating_sub(self.of(owner)))
    }

    fn full(&self, owner: &str, bytes: u64, limits: &SpoolLimits) -> Option<Full> {
        if self.room(owner, limits) >= bytes {
            return None;
        }
        let own_room = limits.identity.saturating_sub(self.of(owner));
        Some(match own_room < limits.total.saturating_sub(self.all) {
            true => Full { reason: OWN, owners: vec![owner.to_owned()] },
            false => self.give_up_for(owner, ALL),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: SpoolLimits = SpoolLimits { execution: 1000, identity: 600, total: 1000 };

    #[test]
    fn no_owner_takes_all_and_those_with_most_give_up_first() {
        let used = Used::default();
        let owners = |full: Option<Full>| full.map(|full| full.owners.join(" "));
        let reserve = |owner, bytes| {
            let (reserved, full) = used.reserve(owner, bytes, &LIMITS);
            (reserved, owners(full))
        };
        assert_eq!(reserve("a", 600), (600, None));
        let full = used.full("a", 1, &LIMITS).unwrap();
        assert_eq!((full.reason, full.owners), (OWN, vec!["a".to_owned()]));
        assert_eq!(reserve("b", 100), (100, None));
        assert_eq!(reserve("c", 400), (300, Some("a c".into())));
        let full = |owner| owners(used.full(owner, 1, &LIMITS));
        assert_eq!([full("b"), full("c"), full("d")].map(Option::unwrap), ["a c b", "a c", "a c b"]);
        used.give_back("a", 600);
        assert_eq!(full("c"), None);
        used.give_back("b", 100);
        used.give_back("c", 300);
        assert!(used.is_empty());
    }
}
