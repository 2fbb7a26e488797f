//! Whose records are retained, and whose the next new file would push out.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::config::AuditConfig;

/// An account of the files that are retained, by the bytes that were granted. Those are an upper bound of what is written,
/// so records are taken for pushed out too soon rather than too late.
pub(super) struct Retained {
    /// Of one file, in bytes.
    max_bytes: u64,
    /// How many files there are at most.
    keep: usize,
    /// For how long records of others are protected.
    period: Duration,
    /// From the oldest on.
    files: VecDeque<Account>,
}

/// One file.
struct Account {
    bytes: u64,
    /// Whose first record it has.
    first: String,
    /// The latest record of that identity, and of any other one.
    latest: (Instant, Option<Instant>),
}

impl Account {
    /// When somebody other than this identity wrote to it last.
    fn latest_of_others(&self, identity: &str) -> Option<Instant> {
        match (self.first == identity, self.latest) {
            (true, (_, others)) => others,
            (false, (first, others)) => Some(others.map_or(first, |others| others.max(first))),
        }
    }
}

impl Retained {
    /// Nothing is retained yet.
    pub(super) fn new(config: &AuditConfig) -> Self {
        Self { max_bytes: config.max_bytes, keep: config.keep, period: config.identity_period, files: VecDeque::new() }
    }

    /// Adds a record of so many bytes.
    pub(super) fn add(&mut self, identity: &str, bytes: u64) {
        let now = Instant::now();
        if self.is_full(bytes) {
            self.files.push_back(Account { bytes: 0, first: identity.to_owned(), latest: (now, None) });
            if self.files.len() > self.keep {
                self.files.pop_front();
            }
        }
        if let Some(file) = self.files.back_mut() {
            file.bytes = file.bytes.saturating_add(bytes);
            match file.first == identity {
                true => file.latest.0 = now,
                false => file.latest.1 = Some(now),
            }
        }
    }

    /// Whether nobody else has a protected record.
    pub(super) fn is_alone(&self, identity: &str) -> bool {
        self.files.iter().all(|file| self.protection(file, identity).is_none())
    }

    /// Whether a record of so many bytes pushes out no protected record of others.
    ///
    /// # Errors
    /// It would, for this time.
    pub(super) fn spares_others(&self, identity: &str, bytes: u64) -> Result<(), Duration> {
        let pushed_out = self.files.front().filter(|_| self.is_full(bytes) && self.files.len() >= self.keep);
        match pushed_out.and_then(|file| self.protection(file, identity)) {
            Some(remaining) => Err(remaining),
            None => Ok(()),
        }
    }

    /// Whether a record of so many bytes begins a new file.
    fn is_full(&self, bytes: u64) -> bool {
        self.files.back().is_none_or(|file| file.bytes.saturating_add(bytes) > self.max_bytes)
    }

    /// For how long a file is protected against an identity.
    fn protection(&self, file: &Account, identity: &str) -> Option<Duration> {
        let age = file.latest_of_others(identity)?.elapsed();
        self.period.checked_sub(age).filter(|remaining| !remaining.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retained(period: Duration) -> Retained {
        Retained::new(&AuditConfig { max_bytes: 100, keep: 3, identity_period: period, ..AuditConfig::default() })
    }

    #[test]
    fn who_is_alone_pushes_out_only_its_own_records() {
        let mut retained = retained(Duration::from_secs(3600));
        for _ in 0..100 {
            assert!(retained.is_alone("a") && retained.spares_others("a", 60).is_ok());
            retained.add("a", 60);
        }
        assert!(!retained.is_alone("b") && retained.spares_others("b", 60).is_err());
    }

    #[test]
    fn records_of_others_are_protected_until_the_period_is_over() {
        for (period, spared) in [(Duration::from_secs(3600), false), (Duration::from_nanos(1), true)] {
            let mut retained = retained(period);
            for identity in ["a", "b", "a", "a", "a"] {
                assert!(retained.spares_others("a", 60).is_ok());
                retained.add(identity, 40);
            }
            // the first file has two of a and b, the second two of a, the third one of a
            retained.add("a", 60);
            assert_eq!(retained.spares_others("a", 60).is_ok(), spared);
            assert_eq!(retained.is_alone("a"), spared);
        }
    }
}
