//! What is left of an execution's output after its end.

use bytes::Bytes;
use telexec_executor::OutputStream;

use super::spool::Stored;

/// The output of an ended execution.
#[derive(Debug, PartialEq)]
pub(crate) struct Printed {
    /// Bytes of both streams.
    pub(crate) end: u64,
    /// The last of them.
    pub(crate) tail: Vec<Chunk>,
    /// Those on disk.
    pub(crate) stored: Option<Stored>,
}

/// A piece of output.
#[derive(Debug, PartialEq)]
pub(crate) struct Chunk {
    pub(crate) stream: OutputStream,
    pub(crate) position: u64,
    pub(crate) data: Bytes,
}
