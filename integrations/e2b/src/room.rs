//! How much memory may be taken by requests that have arrived and were not acted on yet, and by answers that were not read.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::failure::{Code, Failure};

/// Of all sandboxes together.
const MAX_BYTES: usize = 256 * 1024 * 1024;
/// Of one of them, and of the control plane.
const MAX_OWN_BYTES: usize = 64 * 1024 * 1024;
/// Of each request not counted: what most have goes on whatever others send.
const SMALL_BYTES: usize = 64 * 1024;

static ALL: Semaphore = Semaphore::const_new(MAX_BYTES);

/// Of one sandbox.
#[derive(Clone)]
pub(crate) struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_OWN_BYTES)))
    }
}

impl Room {
    pub(crate) fn hold(&self) -> Held {
        Held { room: self.clone(), bytes: 0 }
    }
}

/// What one request takes of it, until it is dropped.
pub(crate) struct Held {
    room: Room,
    bytes: usize,
}

impl Held {
    /// That it takes so much now.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<(), Failure> {
        let bytes = bytes.saturating_sub(SMALL_BYTES);
        if let Some(more) = bytes.checked_sub(self.bytes) {
            self.take(more)?;
        } else {
            self.give(self.bytes - bytes);
        }
        self.bytes = bytes;
        Ok(())
    }

    fn take(&self, bytes: usize) -> Result<(), Failure> {
        let full = || Failure::new(Code::ResourceExhausted, "too much is being sent at once: try again later");
        let permits = u32::try_from(bytes).map_err(|_| full())?;
        let own = self.room.0.try_acquire_many(permits).map_err(|_| full())?;
        ALL.try_acquire_many(permits).map_err(|_| full())?.forget();
        own.forget();
        Ok(())
    }

    fn give(&self, bytes: usize) {
        ALL.add_permits(bytes);
        self.room.0.add_permits(bytes);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sandbox_has_a_part_of_all() {
        let (one, other) = (Room::default(), Room::default());
        let mut held = one.hold();
        held.resize(MAX_OWN_BYTES + SMALL_BYTES).unwrap();
        let mut second = one.hold();
        second.resize(SMALL_BYTES).unwrap();
        assert_eq!(second.resize(SMALL_BYTES + 1).unwrap_err().code, Code::ResourceExhausted);
        other.hold().resize(MAX_OWN_BYTES).unwrap();
        held.resize(SMALL_BYTES + 1).unwrap();
        second.resize(MAX_OWN_BYTES + SMALL_BYTES - 1).unwrap();
        drop(held);
        second.resize(MAX_OWN_BYTES + SMALL_BYTES).unwrap();
        drop(second);
        assert_eq!((one.0.available_permits(), other.0.available_permits()), (MAX_OWN_BYTES, MAX_OWN_BYTES));
        assert_eq!(ALL.available_permits(), MAX_BYTES);
    }
}
