//! What commands write while no agent reads it: until the next one serves, pipes that fill are enlarged.

use std::time::{Duration, Instant};

use super::Keeper;
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
        Self::after(MIN_DELAY)
    }

    fn after(delay: Duration) -> Self {
        Self { at: Instant::now() + delay, delay }
    }
}

impl Keeper {
    pub(super) fn make_room(&mut self, unread: Unread) {
        // a thread that a pipe holds up would hold up execve(2)
        if self.reexec_by.is_none() {
            self.children.all_held().for_each(Given::make_room);
        }
        self.unread = Some(Unread::after((2 * unread.delay).min(MAX_DELAY)));
    }
}
