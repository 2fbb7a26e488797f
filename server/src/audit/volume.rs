//! Limits how much of the log one identity may fill, so that it cannot rotate out the records of others.

use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::config::AuditConfig;
use super::retained::Retained;

/// With more identities than this, idle ones are removed.
const CLEANUP_SIZE: usize = 1024;

/// Counts the bytes of each identity's records.
pub(super) struct Volume(Option<Limits>);

struct Limits {
    /// For records with whole texts: half of the share.
    whole: DefaultKeyedRateLimiter<String>,
    all: DefaultKeyedRateLimiter<String>,
    /// Beyond its share an identity may write what rotates out no records of others; `None`: nothing.
    retained: Option<Mutex<Retained>>,
}

impl Volume {
    /// `ages`: of the last write to each existing file, by other identities.
    pub(super) fn new(config: &AuditConfig, ages: Vec<Duration>) -> Self {
        let bytes = config.max_bytes_per_identity.unwrap_or_else(|| share(config));
        let limiter = |bytes: u64| Some(RateLimiter::keyed(quota(bytes, config.identity_period)?));
        let retained = || match config.max_bytes_per_identity {
            Some(_) => None,
            None => Some(Mutex::new(Retained::new(config, bytes, ages))),
        };
        let limits = || Some(Limits { whole: limiter(bytes / 2)?, all: limiter(bytes)?, retained: retained() });
        Self(limits())
    }

    /// Takes room for a record with the whole text of a command, in bytes. False: a shortened record is to be written.
    pub(super) fn takes_whole(&self, identity: &str, bytes: u64) -> bool {
        self.0.as_ref().is_none_or(|limits| limits.take_whole(identity, bytes))
    }

    /// Takes room for any other record.
    ///
    /// # Errors
    /// There is none; for how long.
    pub(super) fn take(&self, identity: &str, bytes: u64) -> Result<(), Duration> {
        self.0.as_ref().map_or(Ok(()), |limits| limits.take(identity, bytes))
    }
}

impl Limits {
    fn take_whole(&self, identity: &str, bytes: u64) -> bool {
        let is_alone = || self.retained.as_ref().is_some_and(|retained| lock(retained).is_alone(identity));
        let takes =
            take(&self.whole, identity, bytes).is_ok() && take(&self.all, identity, bytes).is_ok() || is_alone();
        if takes {
            self.add(identity, bytes);
        }
        takes
    }

    fn take(&self, identity: &str, bytes: u64) -> Result<(), Duration> {
        let taken = take(&self.all, identity, bytes).or_else(|early| match &self.retained {
            Some(retained) => lock(retained).spares_others(identity, bytes).map_err(|later| later.min(early)),
            None => Err(early),
        });
        taken.inspect(|()| self.add(identity, bytes))
    }

    fn add(&self, identity: &str, bytes: u64) {
        if let Some(retained) = &self.retained {
            lock(retained).add(identity, bytes);
        }
    }
}

fn lock(retained: &Mutex<Retained>) -> MutexGuard<'_, Retained> {
    retained.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A quarter of what is retained; 0, no limit, if nothing is ever removed.
fn share(config: &AuditConfig) -> u64 {
    match config.keep {
        0 => 0,
        keep => config.max_bytes.saturating_mul(keep as u64 + 1) / 4,
    }
}

/// A burst of this many bytes, refilled in each period; `None`: unlimited.
fn quota(bytes: u64, period: Duration) -> Option<Quota> {
    let bytes = NonZeroU32::new(u32::try_from(bytes).unwrap_or(u32::MAX))?;
    // its resolution is a nanosecond
    let each = (period / bytes.get()).max(Duration::from_nanos(1));
    Some(Quota::with_period(each)?.allow_burst(bytes))
}

fn take(limiter: &DefaultKeyedRateLimiter<String>, identity: &str, bytes: u64) -> Result<(), Duration> {
    if limiter.len() > CLEANUP_SIZE {
        limiter.retain_recent();
    }
    let bytes = NonZeroU32::new(u32::try_from(bytes).unwrap_or(u32::MAX)).unwrap_or(NonZeroU32::MIN);
    match limiter.check_key_n(&identity.to_owned(), bytes) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(early)) => Err(early.wait_time_from(DefaultClock::default().now())),
        // more than is ever granted
        Err(_) => Err(Duration::from_secs(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_texts_take_half_and_each_identity_has_its_own() {
        let config = AuditConfig { max_bytes_per_identity: Some(1000), ..AuditConfig::default() };
        let volume = Volume::new(&config, Vec::new());
        assert!(volume.takes_whole("a", 400) && !volume.takes_whole("a", 400));
        assert!(volume.take("a", 500).is_ok());
        let wait = volume.take("a", 500).unwrap_err();
        assert!(wait > config.identity_period / 10 && wait <= config.identity_period, "{wait:?}");
        assert!(volume.take("a", 2000).is_err() && volume.takes_whole("b", 400));
    }

    #[test]
    fn what_is_never_removed_has_no_limit() {
        for (max_bytes, keep, limit) in [(0, 10, None), (1 << 20, 0, None), (1 << 20, 10, Some(0))] {
            let config = AuditConfig { max_bytes, keep, max_bytes_per_identity: limit, ..AuditConfig::default() };
            let volume = Volume::new(&config, Vec::new());
            assert!((0..100).all(|_| volume.takes_whole("a", 1 << 30) && volume.take("a", 1 << 30).is_ok()));
        }
    }
}
