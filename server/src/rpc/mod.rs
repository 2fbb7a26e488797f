//! The services: from the wire to the caller's executor and back.

pub(crate) mod agent_service;
pub(crate) mod execution_service;
mod interact;
mod run;
