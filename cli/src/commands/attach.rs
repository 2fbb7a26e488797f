//! `telexec attach`: follows an execution that was started before.

use std::io::{self, IsTerminal};

use bytes::Bytes;
use telexec_client::Agent;
use telexec_executor::{Attach, ExecutionInfo, ExecutorError, OnDisconnect, TerminalSize};

use super::find::find_started;
use crate::args::AttachArgs;
use crate::connect::{Link, call_failure, with_agent};
use crate::follow::{AttachHint, FollowEnd, InputPosition, Interaction, OutputMode, StdinOptions, follow};
use crate::output::{Failure, exit, print_message_async, with_causes};
use crate::terminal;

pub(crate) async fn run(mut args: AttachArgs) -> Result<u8, Failure> {
    args.connect.queue = args.queue.queue;
    let (target, connect) = (args.agent.target.clone(), args.connect.clone());
    let mut attached = false;
    let ending = with_agent(&target, &connect, async |agent| attach(&mut args, agent, &mut attached).await).await;
    let ends_after = args.kill_on_disconnect.then_some(args.reconnect.reconnect);
    let interactive = args.stdin;
    let again = AttachHint { target: &target, id: &args.execution.id, interactive, ends_after, connect: &connect };
    let keeps_running = attached && !args.kill_on_disconnect;
    match ending {
        Ok(ending) => Ok(ending.report(&target, &again)),
        Err(failure) if failure.code == exit::INTERRUPTED && keeps_running => {
            Err(failure.hint(Some(format!("{target}: the command keeps running: {again}"))))
        }
        Err(failure) => Err(failure),
    }
}

async fn attach(args: &mut AttachArgs, agent: &Agent, attached: &mut bool) -> Result<FollowEnd, Failure> {
    let link = args.reconnect.link(agent, &args.agent.target);
    let (target, id) = (&args.agent.target, &args.execution.id);
    let info = find_started(&*link.executor, target, id, args.connect.queue).await?;
    args.execution.id = info.id.clone();
    let args = &*args;
    let failed = |error: ExecutorError| call_failure(exit::of_error(&error), &args.agent.target, &error);
    let on_disconnect = if args.kill_on_disconnect { OnDisconnect::Kill } else { OnDisconnect::Detach };
    let position = if args.no_history { info.position } else { args.from };
    let execution = link
        .executor
        .attach(&args.execution.id, Attach { on_disconnect, ..Attach::position(position) })
        .await
        .map_err(failed)?;
    *attached = true;
    if !args.stdin && info.exited.is_none() && io::stdin().is_terminal() && io::stderr().is_terminal() {
        print_message_async(format!("{}: output only; use -i to type", args.agent.target)).await;
    }
    let raw = args.stdin && is_interactive(&info);
    let mode = OutputMode { target: &args.agent.target, json: args.json, raw };
    follow(execution, mode, link.outages.clone(), interact(args, &link, raw)).await
}

async fn interact(args: &AttachArgs, link: &Link, raw: bool) -> Result<FollowEnd, Failure> {
    if !args.stdin || !takes_input(args, link).await? {
        return std::future::pending().await;
    }
    let window = if raw { redraw(args, link).await } else { None };
    let keys = raw.then(|| args.detach_keys.clone());
    let interaction = Interaction { target: &args.agent.target, link, id: &args.execution.id };
    let position = InputPosition::End { last: None };
    interaction.run(Some(StdinOptions { position, raw, keys, warn_unread: true }), window).await
}

/// Whether keys typed here go to a terminal there.
fn is_interactive(info: &ExecutionInfo) -> bool {
    info.terminal && info.exited.is_none() && io::stdin().is_terminal()
}

/// Checks with an empty write, while the output is followed, because it may block on another writer.
async fn takes_input(args: &AttachArgs, link: &Link) -> Result<bool, Failure> {
    match link.write(&args.execution.id, Bytes::new(), false, 0).await {
        Ok(_) => Ok(true),
        Err(error @ ExecutorError::FailedPrecondition { .. }) => {
            print_message_async(format!("{}: input is not forwarded: {}", args.agent.target, with_causes(&error)))
                .await;
            Ok(false)
        }
        // the event stream reports how it ended
        Err(ExecutorError::NotFound(_) | ExecutorError::ShuttingDown) => Ok(false),
        Err(error) => Err(call_failure(exit::of_lost(&error), &args.agent.target, &error)),
    }
}

/// Sets a size that differs from the window's, which is set next: full-screen programs redraw only when their size
/// changes.
async fn redraw(args: &AttachArgs, link: &Link) -> Option<TerminalSize> {
    let size = terminal::size().ok()?;
    let rows = if size.rows() > 1 { size.rows() - 1 } else { 2 };
    let other = TerminalSize::new(size.columns().into(), rows.into()).ok()?;
    let _ = link.executor.resize(&args.execution.id, other).await;
    Some(other)
}
