//! What must not be used in a fork of the process that made it.

use std::mem;

use pyo3::PyResult;

use crate::failure::Failure;

/// What belongs to the process that made it. In a fork it is neither used nor dropped: the threads that it needs do not
/// exist there, and a lock may be held forever.
pub(crate) struct Owned<T> {
    pid: u32,
    value: Option<T>,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { pid: std::process::id(), value: Some(value) }
    }

    /// # Errors
    /// This is a fork.
    pub(crate) fn get(&self) -> PyResult<&T> {
        match &self.value {
            Some(value) if self.pid == std::process::id() => Ok(value),
            _ => Err(Failure::forked(self.pid).into()),
        }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            mem::forget(self.value.take());
        }
    }
}
