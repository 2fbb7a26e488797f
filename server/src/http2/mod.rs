//! HTTP/2 to a caller: its connection, and what a message may be before a service sees it.

pub(crate) mod body;
pub(crate) mod connection;
mod fields;
mod message;
pub(crate) mod preface;
