//! `telexec input`: sends input to an execution.

use bytes::Bytes;
use telexec_client::RemoteExecutor;
use telexec_executor::{Executor, ExecutorError, Input};

use crate::args::InputArgs;
use crate::connect::{Session, call_failure};
use crate::output::{Failure, exit};
use crate::terminal::stdin;

/// The command does not accept input, or does not exist.
const FAILED: u8 = 1;

pub(crate) async fn run(args: InputArgs) -> Result<u8, Failure> {
    let session = Session::open(&args.target, &args.connect).await?;
    let executor = session.agent.executor();
    match &args.text {
        Some(text) => send_text(&args, &executor, text).await?,
        None => send_stdin(&args, &executor).await?,
    }
    session.close().await.map(|()| 0)
}

async fn send_text(args: &InputArgs, executor: &RemoteExecutor, text: &str) -> Result<(), Failure> {
    let end = if args.no_newline { "" } else { "\n" };
    send(args, executor, format!("{text}{end}").into(), args.close).await
}

async fn send_stdin(args: &InputArgs, executor: &RemoteExecutor) -> Result<(), Failure> {
    let unreadable = |error| Failure::new(exit::LOST, &error).context("cannot read standard input");
    let mut chunks = stdin::read().map_err(unreadable)?;
    while let Some(chunk) = chunks.recv().await.transpose().map_err(unreadable)? {
        send(args, executor, chunk, false).await?;
    }
    match args.close {
        true => send(args, executor, Bytes::new(), true).await,
        false => Ok(()),
    }
}

async fn send(args: &InputArgs, executor: &RemoteExecutor, data: Bytes, close: bool) -> Result<(), Failure> {
    let sent = executor.write_input(&args.id, Input { data, offset: None, close }).await;
    sent.map(|_| ()).map_err(|error| {
        let failed = matches!(error, ExecutorError::NotFound(_) | ExecutorError::FailedPrecondition { .. });
        call_failure(if failed { FAILED } else { exit::LOST }, &args.target, &error)
    })
}
