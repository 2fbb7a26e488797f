//! Commands that are run to their end.

use bytes::Bytes;
use futures_util::StreamExt;
use telexec_client::Resuming;
use telexec_executor::{Command, Event, Execution, ExecutionId, Executor, Exited, OutputStream};

use crate::failure::Failure;
use crate::input::feed;
use crate::process::Process;

/// A command that has ended, with all its output.
pub(crate) struct Gathered {
    pub(crate) id: ExecutionId,
    pub(crate) exited: Exited,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// Runs a command to its end. Dropping this ends it.
pub(crate) async fn run(
    process: &'static Process,
    executor: Resuming,
    command: Command,
    input: Bytes,
) -> Result<Gathered, Failure> {
    // is dropped last
    let _settling = Settling { process, executor: executor.clone() };
    let execution = executor.execute(command).await?;
    let id = execution.id().clone();
    let feeding = feed(&executor, &id, input);
    let gathering = gather(execution);
    tokio::pin!(feeding, gathering);
    tokio::select! {
        gathered = &mut gathering => return gathered,
        () = &mut feeding => {}
    }
    gathering.await
}

async fn gather(mut execution: Execution) -> Result<Gathered, Failure> {
    let (id, mut stdout, mut stderr) = (execution.id().clone(), Vec::new(), Vec::new());
    while let Some(event) = execution.next().await {
        match event? {
            Event::Output(output) => match output.stream {
                OutputStream::Stdout => stdout.extend_from_slice(&output.data),
                OutputStream::Stderr => stderr.extend_from_slice(&output.data),
            },
            Event::Exited(exited) => return Ok(Gathered { id, exited, stdout, stderr }),
            Event::Gap(position) => return Err(Failure::gap(position)),
            Event::Started(_) | Event::Promoted => {}
        }
    }
    Err(Failure::new("Lost", "the agent did not report how the command ended"))
}

/// Dropping it keeps this process until the agent was asked to end what was dropped before it.
pub(crate) struct Settling {
    pub(crate) process: &'static Process,
    pub(crate) executor: Resuming,
}

impl Drop for Settling {
    fn drop(&mut self) {
        let executor = self.executor.clone();
        self.process.spawn_last(async move { executor.settled().await });
    }
}
