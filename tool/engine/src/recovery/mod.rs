//! What an engine takes over from those before it: by the state directory, and by its keeper.

pub(crate) mod handed_over;
pub(crate) mod handover;
pub(crate) mod leftovers;
pub(crate) mod unfinished;
