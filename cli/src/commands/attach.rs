//! `telexec attach`: an execution that runs already, or ran, followed as `exec` would.

use std::io::{self, IsTerminal};

use bytes::Bytes;
use telexec_client::{Agent, RemoteExecutor};
use telexec_executor::{Attach, ExecutionInfo, Executor, ExecutorError, Input, OnDisconnect, TerminalSize};

use crate::args::AttachArgs;
use crate::connect::{call_failure, with_agent};
use crate::follow::{Ending, Feed, Interaction, Shown, follow};
use crate::output::{Failure, exit, say_meanwhile};
use crate::terminal;

pub(crate) async fn run(args: AttachArgs) -> Result<u8, Failure> {
    let ending = with_agent(&args.target, &args.connect, async |agent| attach(&args, agent).await).await?;
    Ok(ending.conclude(&args.target, &args.id))
}

async fn attach(args: &AttachArgs, agent: &Agent) -> Result<Ending, Failure> {
    let executor = agent.executor();
    let failed = |error: ExecutorError| call_failure(exit::of_error(&error), &args.target, &error);
    let info = executor.get(&args.id).await.map_err(failed)?;
    let on_disconnect = if args.kill_on_disconnect { OnDisconnect::Kill } else { OnDisconnect::Detach };
    let position = if args.no_history { info.position } else { args.from };
    let execution = executor.attach(&args.id, Attach { position, on_disconnect }).await.map_err(failed)?;

    let raw = args.stdin && is_interactive(&info);
    let shown = Shown { target: &args.target, json: args.json, raw };
    follow(execution, shown, interact(args, &executor, raw)).await
}

async fn interact(args: &AttachArgs, executor: &RemoteExecutor, raw: bool) -> Result<Ending, Failure> {
    if !args.stdin || !takes_input(args, executor).await? {
        return std::future::pending().await;
    }
    let window = if raw { redraw(args, executor).await } else { None };
    let keys = raw.then(|| args.detach_keys.clone());
    let interaction = Interaction { target: &args.target, executor, id: &args.id };
    interaction.run(Some(Feed { offset: None, raw, keys, tell_unread: true }), window).await
}

/// Someone types here what goes to a terminal there.
fn is_interactive(info: &ExecutionInfo) -> bool {
    info.terminal && info.exited.is_none() && io::stdin().is_terminal()
}

/// Asks by writing nothing, while the output is followed: one who writes already may have to wait.
async fn takes_input(args: &AttachArgs, executor: &RemoteExecutor) -> Result<bool, Failure> {
    let nothing = Input { data: Bytes::new(), offset: Some(0), close: false };
    match executor.write_input(&args.id, nothing).await {
        Ok(_) => Ok(true),
        Err(error @ ExecutorError::FailedPrecondition { .. }) => {
            say_meanwhile(format!("{}: input is not forwarded: {error}", args.target)).await;
            Ok(false)
        }
        // its stream tells what became of it
        Err(ExecutorError::NotFound(_) | ExecutorError::ShuttingDown) => Ok(false),
        Err(error) => Err(call_failure(exit::of_lost(&error), &args.target, &error)),
    }
}

/// Sets another size than the window's, which is set next: a program that fills the screen draws it again when its size
/// changes, and only then.
async fn redraw(args: &AttachArgs, executor: &RemoteExecutor) -> Option<TerminalSize> {
    let size = terminal::size().ok()?;
    let rows = if size.rows() > 1 { size.rows() - 1 } else { 2 };
    let other = TerminalSize::new(size.columns().into(), rows.into()).ok()?;
    let _ = executor.resize(&args.id, other).await;
    Some(other)
}
