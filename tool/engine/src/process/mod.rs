//! Processes: making, finding, signalling and reaping them.

pub(crate) mod children;
pub(crate) mod control;
pub(crate) mod environ;
pub(crate) mod keeper;
mod kept_child;
pub(crate) mod own;
pub(crate) mod reaper;
pub(crate) mod requirements;
pub(crate) mod responding;
pub(crate) mod scanner;
pub(crate) mod signaller;
pub(crate) mod table;
pub(crate) mod vfork;
