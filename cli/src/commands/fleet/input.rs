//! Standard input for many hosts: read once into a file, from which it is sent to each host at its own speed.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use telexec_executor::{ExecutionId, ExecutorError};
use tokio::sync::watch;

use crate::connect::Link;
use crate::terminal::stdin;

/// Bytes sent to a host at once.
const PIECE_BYTES: usize = 64 * 1024;

/// The file, and how much of it is written.
#[derive(Clone, Debug)]
pub(crate) struct SharedInput {
    file: Arc<File>,
    read: watch::Receiver<Read>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Read {
    bytes: u64,
    ended: bool,
}

impl SharedInput {
    /// Starts reading. An error ends the input.
    pub(crate) fn start() -> io::Result<Self> {
        let mut file = tempfile::tempfile()?;
        let shared = Arc::new(file.try_clone()?);
        let mut chunks = stdin::read()?;
        let (sender, read) = watch::channel(Read::default());
        tokio::spawn(async move {
            while let Some(Ok(chunk)) = chunks.recv().await {
                if let Err(error) = file.write_all(&chunk) {
                    crate::output::print_message(&format!("cannot store standard input: {error}"));
                    break;
                }
                sender.send_modify(|read| read.bytes += chunk.len() as u64);
            }
            sender.send_modify(|read| read.ended = true);
        });
        Ok(Self { file: shared, read })
    }

    /// Sends the input to an execution, as far as it accepts it.
    pub(crate) async fn feed(mut self, link: &Link, id: &ExecutionId) -> Result<(), ExecutorError> {
        let mut offset = 0;
        loop {
            let Ok(read) = self.read.wait_for(|read| read.bytes > offset || read.ended).await.map(|read| *read) else {
                return Ok(());
            };
            let data = self.piece(offset, read.bytes).map_err(|error| ExecutorError::Internal(error.to_string()))?;
            let close = read.ended && offset + data.len() as u64 == read.bytes;
            offset = link.write(id, data, close, offset).await?;
            if close {
                return Ok(());
            }
        }
    }

    fn piece(&self, from: u64, to: u64) -> io::Result<Bytes> {
        let length = usize::try_from(to - from).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let mut piece = vec![0; length];
        self.file.read_exact_at(&mut piece, from)?;
        Ok(piece.into())
    }
}
