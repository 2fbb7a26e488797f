//! Standard input of an execution.

use std::time::Duration;

use bytes::Bytes;
use telexec_client::Resuming;
use telexec_executor::{ExecutionId, Executor, ExecutorError, Input};
use tokio::time::{Instant, sleep};

/// A request has at most this much.
const PIECE_BYTES: usize = 256 * 1024;
/// Before a piece is written again whose connection was lost.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// Writes all of `data`, from `offset` on if that is known, and returns where it ends. While the connection is lost, a piece
/// is written again: the offset keeps the agent from writing it twice.
pub(crate) async fn write(
    executor: &Resuming,
    id: &ExecutionId,
    mut data: Bytes,
    close: bool,
    mut offset: Option<u64>,
) -> Result<u64, ExecutorError> {
    loop {
        let piece = data.split_to(data.len().min(PIECE_BYTES));
        let is_last = data.is_empty();
        let written = write_piece(executor, id, Input { data: piece, offset, close: close && is_last }).await?;
        if is_last {
            return Ok(written);
        }
        offset = Some(written);
    }
}

async fn write_piece(executor: &Resuming, id: &ExecutionId, input: Input) -> Result<u64, ExecutorError> {
    let end = Instant::now() + executor.resume().give_up_after;
    loop {
        let written = executor.write_input(id, input.clone()).await;
        let may_repeat = input.offset.is_some() && Instant::now() < end;
        match written {
            Err(ExecutorError::Lost { .. } | ExecutorError::Unreachable { .. }) if may_repeat => {
                sleep(RETRY_DELAY).await
            }
            written => return written,
        }
    }
}

/// Writes the input that a command was given, and its end. One that does not read it to the end may do so.
pub(crate) async fn feed(executor: &Resuming, id: &ExecutionId, input: Bytes) {
    if !input.is_empty() {
        // if the connection is lost for good, the output's end says so
        let _ = write(executor, id, input, true, Some(0)).await;
    }
}
