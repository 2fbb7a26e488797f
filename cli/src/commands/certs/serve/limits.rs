//! What the service bounds by source or by certificate: connections, lines of the log, renewals.

use std::hash::Hash;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::super::profile::Usage;
use crate::commands::source::source;

/// New connections of one source in a second, and at once: a fleet may be behind one address.
const CONNECTIONS_PER_SECOND: NonZeroU32 = NonZeroU32::new(10).unwrap();
const CONNECTIONS_AT_ONCE: NonZeroU32 = NonZeroU32::new(100).unwrap();
/// Refusals of one source that are logged at once, and after these.
const REFUSALS_AT_ONCE: NonZeroU32 = NonZeroU32::new(20).unwrap();
const REFUSAL_INTERVAL: Duration = Duration::from_secs(10);
/// Renewals of one name at once, and after these: each is an entry of the index until the certificate expires.
const RENEWALS_AT_ONCE: NonZeroU32 = NonZeroU32::new(10).unwrap();
const RENEWAL_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Keys to remember before those that are quiet are forgotten.
const MAX_KEYS: usize = 4096;

/// The limiters.
pub(super) struct Limits {
    connections: DefaultKeyedRateLimiter<IpAddr>,
    refusals: DefaultKeyedRateLimiter<IpAddr>,
    renewals: DefaultKeyedRateLimiter<(String, Usage)>,
}

impl Limits {
    pub(super) fn new() -> Self {
        let connections = Quota::per_second(CONNECTIONS_PER_SECOND).allow_burst(CONNECTIONS_AT_ONCE);
        Self {
            connections: RateLimiter::keyed(connections),
            refusals: RateLimiter::keyed(one_per(REFUSAL_INTERVAL).allow_burst(REFUSALS_AT_ONCE)),
            renewals: RateLimiter::keyed(one_per(RENEWAL_INTERVAL).allow_burst(RENEWALS_AT_ONCE)),
        }
    }

    /// Whether this address may connect again.
    pub(super) fn admits(&self, address: IpAddr) -> bool {
        is_within(&self.connections, &source(address))
    }

    /// Whether a refusal of this address is logged.
    pub(super) fn logs(&self, address: IpAddr) -> bool {
        is_within(&self.refusals, &source(address))
    }

    /// Whether a certificate for this may be renewed again.
    pub(super) fn renews(&self, name: &str, usage: Usage) -> bool {
        is_within(&self.renewals, &(name.to_owned(), usage))
    }
}

/// Only for an interval of zero there is no such quota.
fn one_per(interval: Duration) -> Quota {
    Quota::with_period(interval).unwrap_or_else(|| Quota::per_second(NonZeroU32::MIN))
}

fn is_within<K: Clone + Eq + Hash>(rate: &DefaultKeyedRateLimiter<K>, key: &K) -> bool {
    if rate.len() > MAX_KEYS {
        rate.retain_recent();
    }
    rate.check_key(key).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_does_not_use_up_what_others_have() {
        let limits = Limits::new();
        let [first, neighbour, other] =
            ["2001:db8::1", "2001:db8::2", "::ffff:192.0.2.1"].map(|ip| ip.parse().unwrap());
        let logged = (0..50).filter(|_| limits.logs(first)).count();
        assert!((20..25).contains(&logged) && !limits.logs(neighbour) && limits.logs(other), "{logged}");
        assert!((0..50).any(|_| !limits.renews("web1", Usage::Server)) && limits.renews("web1", Usage::Client));
    }
}
