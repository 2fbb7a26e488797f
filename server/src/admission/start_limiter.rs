//! Limits how often each caller may start a command.

use std::num::NonZeroU32;
use std::sync::Arc;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota};
use telexec_executor::ExecutorError;
use telexec_executor::text::counted;

use crate::identity::Identity;

/// A rate limiter per identity; clones share it.
#[derive(Clone)]
pub(crate) struct StartLimiter {
    limit: Option<(NonZeroU32, Arc<DefaultKeyedRateLimiter<String>>)>,
}

/// With more identities than this, idle ones are removed before each check.
const CLEANUP_SIZE: usize = 1024;

impl StartLimiter {
    /// `a_second` starts per second, and as many in a burst; `None`: no limit.
    pub(crate) fn new(a_second: Option<NonZeroU32>) -> Self {
        let limiter = |limit| (limit, Arc::new(DefaultKeyedRateLimiter::hashmap(Quota::per_second(limit))));
        Self { limit: a_second.map(limiter) }
    }

    /// Counts a start.
    ///
    /// # Errors
    /// [`ExecutorError::Exhausted`]: the limit is reached; says when to retry.
    pub(crate) fn count(&self, identity: &Identity) -> Result<(), ExecutorError> {
        let Some((limit, starts)) = &self.limit else { return Ok(()) };
        if starts.len() > CLEANUP_SIZE {
            starts.retain_recent();
        }
        starts.check_key(&identity.as_str().to_owned()).map_err(|early| ExecutorError::Exhausted {
            reason: format!(
                "rate limit: {identity} may start {} per second (max_starts_per_second); nothing ran, try again",
                counted(limit.get().into(), "command")
            ),
            retry_after: Some(early.wait_time_from(DefaultClock::default().now())),
        })
    }
}
