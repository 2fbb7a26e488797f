//! Tracks whose records are in which file, and so whose the next rotation would delete.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::config::AuditConfig;

/// A model of the retained files, by the bytes granted. These are an upper bound of what is written, so records are assumed
/// to be deleted too soon rather than too late.
pub(super) struct Retained {
    /// The size of a file in bytes.
    max_bytes: u64,
    /// The maximum number of files.
    keep: usize,
    /// How many files shares may still fill while a record is protected.
    reserve: usize,
    /// For how long records of others are protected.
    period: Duration,
    /// Oldest first.
    files: VecDeque<Account>,
}

/// One file.
struct Account {
    bytes: u64,
    /// The identity of its first record; empty for a file from before the start.
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
    /// Only files are retained that were written to so long ago, by whomever; each identity has a share of so many bytes.
    pub(super) fn new(config: &AuditConfig, share: u64, ages: Vec<Duration>) -> Self {
        let AuditConfig { max_bytes, keep, identity_period: period, .. } = *config;
        let reserve = usize::try_from(share.div_ceil(max_bytes.max(1))).unwrap_or(usize::MAX).min(keep);
        let now = Instant::now();
        // what is older than the clock can express is not protected
        let known = ages.into_iter().filter_map(|age| Some((now.checked_sub(age)?, None)));
        let files = known.map(|latest| Account { bytes: max_bytes, first: String::new(), latest }).collect();
        Self { max_bytes, keep, reserve, period, files }
    }

    /// Adds a record of this size.
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

    /// Whether no other identity has a protected record.
    pub(super) fn is_alone(&self, identity: &str) -> bool {
        self.files.iter().all(|file| self.protection(file, identity).is_none())
    }

    /// Whether a record of this size, with what shares may still fill, would delete no protected record of others.
    ///
    /// # Errors
    /// It would; for how long.
    pub(super) fn spares_others(&self, identity: &str, bytes: u64) -> Result<(), Duration> {
        let coming = usize::from(self.is_full(bytes)) + self.reserve;
        let pushed_out = (self.files.len() + coming).saturating_sub(self.keep);
        match self.files.iter().take(pushed_out).filter_map(|file| self.protection(file, identity)).max() {
            Some(remaining) => Err(remaining),
            None => Ok(()),
        }
    }

    /// Whether a record of this size begins a new file.
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

    const HOUR: Duration = Duration::from_secs(3600);

    /// A share is one of four files.
    fn retained(period: Duration, ages: &[Duration]) -> Retained {
        let config = AuditConfig { max_bytes: 100, keep: 4, identity_period: period, ..AuditConfig::default() };
        Retained::new(&config, 100, ages.to_vec())
    }

    #[test]
    fn who_is_alone_pushes_out_only_its_own_records() {
        let mut retained = retained(HOUR, &[]);
        for _ in 0..100 {
            assert!(retained.is_alone("a") && retained.spares_others("a", 60).is_ok());
            retained.add("a", 60);
        }
        assert!(!retained.is_alone("b") && retained.spares_others("b", 60).is_err());
    }

    #[test]
    fn records_of_others_are_protected_until_the_period_is_over() {
        for (period, spared) in [(HOUR, false), (Duration::from_nanos(1), true)] {
            let mut retained = retained(period, &[]);
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

    #[test]
    fn files_from_before_are_of_others() {
        let ages = [HOUR * 2, HOUR / 2, Duration::ZERO];
        let mut retained = retained(HOUR, &ages);
        // the first is too old to be protected, and makes room; then comes the second
        assert!(!retained.is_alone("a") && retained.spares_others("a", 60).is_ok());
        retained.add("a", 60);
        assert!(retained.spares_others("a", 60).is_err_and(|wait| wait < HOUR));
    }
}
