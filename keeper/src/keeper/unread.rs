//! What commands write while no agent reads it: until the next one serves, output pipes that fill are enlarged.

use std::time::{Duration, Instant};

use super::Keeper;
use crate::capacity;
use crate::given::Given;

/// From the end of an agent until pipes are looked at; doubled from one look to the next.
const MIN_DELAY: Duration = Duration::from_millis(20);
const MAX_DELAY: Duration = Duration::from_secs(1);

/// When pipes are looked at next.
#[derive(Clone, Copy)]
pub(super) struct Unread {
    pub(super) at: Instant,
    delay: Duration,
}

impl Unread {
    pub(super) fn begin() -> Self {
        capacity::enable(true);
        Self::after(MIN_DELAY)
    }

    fn after(delay: Duration) -> Self {
        Self { at: Instant::now() + delay, delay }
    }
}

impl Keeper {
    /// An agent serves.
    pub(super) fn is_read(&mut self) {
        capacity::enable(false);
        self.unread = None;
    }

    pub(super) fn enlarge_pipes(&mut self, unread: Unread) {
        // nothing is begun that could hold up execve(2)
        if self.reexec_by.is_none() {
            self.children.all_held().for_each(Given::enlarge_if_filling);
        }
        self.unread = Some(Unread::after((2 * unread.delay).min(MAX_DELAY)));
    }
}
