//! The gRPC services: wire types in, calls of the caller's executor, wire types out.

pub(crate) mod agent_service;
pub(crate) mod execution_service;
pub(crate) mod health_service;
mod interact;
mod run;
