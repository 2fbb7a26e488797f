//! `telexec attach`: follows an execution that was started before.

use std::io::{self, IsTerminal};

use bytes::Bytes;
use telexec_client::{Agent, RemoteExecutor};
use telexec_executor::{Attach, ExecutionInfo, Executor, ExecutorError, Input, OnDisconnect, TerminalSize};

use crate::args::AttachArgs;
use crate::connect::{call_failure, with_agent};
use crate::follow::{FollowEnd, Interaction, OutputMode, StdinOptions, follow};
use crate::output::{Failure, exit, print_message_async};
use crate::terminal;

pub(crate) async fn run(args: AttachArgs) -> Result<u8, Failure> {
    let ending = with_agent(&args.target, &args.connect, async |agent| attach(&args, agent).await).await?;
    Ok(ending.report(&args.target, &args.id))
}

async fn attach(args: &AttachArgs, agent: &Agent) -> Result<FollowEnd, Failure> {
    let executor = agent.executor();
    let failed = |error: ExecutorError| call_failure(exit::of_error(&error), &args.target, &error);
    let info = executor.get(&args.id).await.map_err(failed)?;
    let on_disconnect = if args.kill_on_disconnect { OnDisconnect::Kill } else { OnDisconnect::Detach };
    let position = if args.no_history { info.position } else { args.from };
    let execution = executor.attach(&args.id, Attach { position, on_disconnect }).await.map_err(failed)?;

    let raw = args.stdin && is_interactive(&info);
    let mode = OutputMode { target: &args.target, json: args.json, raw };
    follow(execution, mode, interact(args, &executor, raw)).await
}

async fn interact(args: &AttachArgs, executor: &RemoteExecutor, raw: bool) -> Result<FollowEnd, Failure> {
    if !args.stdin || !takes_input(args, executor).await? {
        return std::future::pending().await;
    }
    let window = if raw { redraw(args, executor).await } else { None };
    let keys = raw.then(|| args.detach_keys.clone());
    let interaction = Interaction { target: &args.target, executor, id: &args.id };
    interaction.run(Some(StdinOptions { offset: None, raw, keys, warn_unread: true }), window).await
}

/// Whether keys typed here go to a terminal there.
fn is_interactive(info: &ExecutionInfo) -> bool {
    info.terminal && info.exited.is_none() && io::stdin().is_terminal()
}

/// Checks with an empty write, while the output is followed, because it may block on another writer.
async fn takes_input(args: &AttachArgs, executor: &RemoteExecutor) -> Result<bool, Failure> {
    let nothing = Input { data: Bytes::new(), offset: Some(0), close: false };
    match executor.write_input(&args.id, nothing).await {
        Ok(_) => Ok(true),
        Err(error @ ExecutorError::FailedPrecondition { .. }) => {
            print_message_async(format!("{}: input is not forwarded: {error}", args.target)).await;
            Ok(false)
        }
        // the event stream reports how it ended
        Err(ExecutorError::NotFound(_) | ExecutorError::ShuttingDown) => Ok(false),
        Err(error) => Err(call_failure(exit::of_lost(&error), &args.target, &error)),
    }
}

/// Sets a size that differs from the window's, which is set next: full-screen programs redraw only when their size
/// changes.
async fn redraw(args: &AttachArgs, executor: &RemoteExecutor) -> Option<TerminalSize> {
    let size = terminal::size().ok()?;
    let rows = if size.rows() > 1 { size.rows() - 1 } else { 2 };
    let other = TerminalSize::new(size.columns().into(), rows.into()).ok()?;
    let _ = executor.resize(&args.id, other).await;
    Some(other)
}
