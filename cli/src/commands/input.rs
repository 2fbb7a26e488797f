//! `telexec input`: sends input to an execution.

use bytes::Bytes;
use telexec_client::RemoteExecutor;
use telexec_executor::{ExecutionId, Executor, ExecutorError, Input};

use super::find::find_by_prefix;
use crate::args::InputArgs;
use crate::connect::{Session, call_failure};
use crate::output::{Failure, exit};
use crate::terminal::stdin;

/// The command does not accept input.
const FAILED: u8 = 1;

pub(crate) async fn run(args: InputArgs) -> Result<u8, Failure> {
    let session = Session::open(&args.agent.target, &args.connect).await?;
    let mut input = InputSender { executor: session.agent.executor(), id: args.execution.id.clone(), args: &args };
    match &args.text {
        Some(text) => input.send_text(text).await?,
        None => input.send_stdin().await?,
    }
    session.close().await.map(|()| 0)
}

struct InputSender<'a> {
    executor: RemoteExecutor,
    id: ExecutionId,
    args: &'a InputArgs,
}

impl InputSender<'_> {
    async fn send_text(&mut self, text: &str) -> Result<(), Failure> {
        let end = if self.args.no_newline { "" } else { "\n" };
        self.send(format!("{text}{end}").into(), self.args.close).await
    }

    async fn send_stdin(&mut self) -> Result<(), Failure> {
        let unreadable = |error| Failure::new(exit::LOST, &error).context("cannot read standard input");
        let mut chunks = stdin::read().map_err(unreadable)?;
        while let Some(chunk) = chunks.recv().await.transpose().map_err(unreadable)? {
            self.send(chunk, false).await?;
        }
        match self.args.close {
            true => self.send(Bytes::new(), true).await,
            false => Ok(()),
        }
    }

    async fn send(&mut self, data: Bytes, close: bool) -> Result<(), Failure> {
        let input = Input { data, offset: None, close };
        let sent = match self.executor.write_input(&self.id, input.clone()).await {
            Err(error @ ExecutorError::NotFound(_)) => {
                let target = &self.args.agent.target;
                self.id = find_by_prefix(&self.executor, target, &self.id, &error, ExecutionId::is_uuid).await?.id;
                self.executor.write_input(&self.id, input).await
            }
            sent => sent,
        };
        sent.map(|_| ()).map_err(|error| {
            let failed = matches!(error, ExecutorError::FailedPrecondition { .. });
            call_failure(if failed { FAILED } else { exit::of_error(&error) }, &self.args.agent.target, &error)
        })
    }
}
