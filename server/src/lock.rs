//! Locks that outlive a panic: code that panics while holding one leaves nothing half done behind it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic of another holder.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
