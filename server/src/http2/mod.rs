//! HTTP/2: connections of callers, and the limits on messages before a service sees them.

pub(crate) mod admission;
pub(crate) mod body;
mod callers;
pub(crate) mod connection;
mod fields;
mod loss;
mod message;
pub(crate) mod preface;
pub(crate) mod turns;
