//! Standard input for many: read once into a file, from which each host gets it at its own pace.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use telexec_client::RemoteExecutor;
use telexec_executor::{ExecutionId, Executor, ExecutorError, Input};
use tokio::sync::watch;

use crate::terminal::stdin;

/// So much goes to a host at once.
const PIECE_BYTES: usize = 64 * 1024;

/// What was read, and what is read.
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
    /// Begins to read. What cannot be read or kept ends the input.
    pub(crate) fn start() -> io::Result<Self> {
        let mut file = tempfile::tempfile()?;
        let shared = Arc::new(file.try_clone()?);
        let mut chunks = stdin::read()?;
        let (sender, read) = watch::channel(Read::default());
        tokio::spawn(async move {
            while let Some(Ok(chunk)) = chunks.recv().await {
                if let Err(error) = file.write_all(&chunk) {
                    crate::output::say(&format!("cannot store standard input: {error}"));
                    break;
                }
                sender.send_modify(|read| read.bytes += chunk.len() as u64);
            }
            sender.send_modify(|read| read.ended = true);
        });
        Ok(Self { file: shared, read })
    }

    /// Sends all of it to an execution, as far as that takes it.
    pub(crate) async fn feed(mut self, executor: &RemoteExecutor, id: &ExecutionId) -> Result<(), ExecutorError> {
        let mut offset = 0;
        loop {
            let Ok(read) = self.read.wait_for(|read| read.bytes > offset || read.ended).await.map(|read| *read) else {
                return Ok(());
            };
            let data = self.piece(offset, read.bytes).map_err(|error| ExecutorError::Internal(error.to_string()))?;
            let close = read.ended && offset + data.len() as u64 == read.bytes;
            offset = executor.write_input(id, Input { data, offset: Some(offset), close }).await?;
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
