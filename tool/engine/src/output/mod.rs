//! What commands print: from their pipes to those who read it, in memory and on disk.

mod in_memory;
pub(crate) mod printed;
pub(crate) mod pump;
pub(crate) mod spool;
pub(crate) mod transcript;
