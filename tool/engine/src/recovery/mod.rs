//! What an engine takes over from those before it on the same state directory.

pub(crate) mod handover;
pub(crate) mod leftovers;
