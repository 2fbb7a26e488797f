//! HTTP/2: connections of callers, and the limits on messages before a service sees them.

pub(crate) mod body;
pub(crate) mod connection;
mod fields;
mod loss;
mod message;
pub(crate) mod preface;
pub(crate) mod turns;
