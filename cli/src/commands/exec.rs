//! `telexec exec`: runs one command, with its output and exit code, or starts it in the background.

use std::io::{self, IsTerminal};
use std::time::Duration;

use futures_util::StreamExt;
use telexec_client::Agent;
use telexec_executor::{
    Command, CommandBuilder, Event, Execution, ExecutionId, ExecutorError, OnDisconnect, TerminalSize,
    asked_named_command,
};

use super::receipt::ReceiptFile;
use super::{approvals, program};
use crate::args::ExecArgs;
use crate::config::Config;
use crate::connect::{self, Link, call_failure, with_agent};
use crate::follow::{AttachHint, FollowEnd, InputPosition, Interaction, OutputMode, StdinOptions, follow};
use crate::output::{self, Failure, exit, json, print_message};
use crate::syntax::Destination;
use crate::terminal;

/// How long a command with a chosen ID may take to be in the background; one that another call started never says so.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) async fn run(mut args: ExecArgs) -> Result<u8, Failure> {
    check(&args)?;
    args.connect.queue = args.queue.queue;
    apply_configured_user(&mut args)?;
    if args.detach && args.connect.queue.is_some() {
        return enqueue(&args).await;
    }
    let receipt = args.receipt_file.as_deref().map(ReceiptFile::create).transpose()?;
    let mut running = None;
    let work = async |agent: &Agent| execute(&args, agent, &mut running).await;
    let done = with_agent(&args.agent.target, &args.connect, work).await;
    let saved = receipt.map(|file| file.save(&args.agent.target, running.as_ref(), done.as_ref().ok()));
    match (done, running) {
        (Ok(ending), Some(id)) if !args.detach => {
            let code = ending.report(&args.agent.target, &attach_hint(&args, &id));
            if let FollowEnd::Exited { exited, .. } = &ending
                && exit::is_timeout_of_agent(exited, args.timeout)
            {
                print_message(&format!(
                    "{}: this timeout is set by the agent's configuration or policy",
                    args.agent.target
                ));
            }
            // success requires the receipt that was asked for
            Ok(if code == 0 && saved == Some(false) { exit::LOST } else { code })
        }
        (Ok(_), _) => Ok(0),
        (Err(failure), Some(id)) if args.survives_disconnect() => {
            Err(failure.hint(Some(format!("the command may still be running: {}", attach_hint(&args, &id)))))
        }
        (Err(failure), Some(_)) if failure.is_lost => Err(failure.hint(Some(end_after_loss(args.reconnect.reconnect)))),
        (Err(failure), _) if failure.code == exit::NOT_FOUND => {
            let argv = &args.command.argv;
            let several = program::several_targets(&args.agent.target, argv, &Config::load()?);
            Err(failure.hint(several.or_else(|| program::hint(argv))))
        }
        (Err(failure), None) if failure.code == exit::REFUSED && asked_named_command(&args.command.argv).is_some() => {
            let list =
                format!("`telexec commands {}` lists the named commands and their parameters", args.agent.target);
            Err(failure.hint(Some(list)))
        }
        (Err(failure), _) => Err(failure),
    }
}

/// Leaves the command in the queue of an agent that may be away.
async fn enqueue(args: &ExecArgs) -> Result<u8, Failure> {
    let target = &args.agent.target;
    let resolved = Config::load()?.resolve(target, &args.connect)?;
    let size = args.tty.then(terminal::size).transpose().map_err(|error| Failure::new(exit::REFUSED, &error))?;
    let id = connect::enqueue(&resolved, &command(args, size)?).await;
    let id = id.map_err(|error| call_failure(exit::of_error(&error), target, &error))?;
    let line = match args.json {
        true => format!("{}\n", serde_json::json!({ "event": "queued", "execution_id": id.as_str() })),
        false => format!("{id}\n"),
    };
    output::print(line.as_bytes()).map(|()| 0)
}

/// What becomes of a command whose connection did not come back within this time.
fn end_after_loss(grace: Duration) -> String {
    let when = match grace.is_zero() {
        true => "as soon as".to_owned(),
        false => format!("{} after", humantime::format_duration(grace)),
    };
    format!(
        "if the agent still runs, it ends the command {when} it notices the loss; --on-disconnect=detach prevents that"
    )
}

pub(super) fn attach_hint<'a>(args: &'a ExecArgs, id: &'a ExecutionId) -> AttachHint<'a> {
    let ends_after = (!args.survives_disconnect()).then_some(args.reconnect.reconnect);
    AttachHint { target: &args.agent.target, id, interactive: args.stdin, ends_after, connect: &args.connect }
}

/// Checks what clap cannot.
fn check(args: &ExecArgs) -> Result<(), Failure> {
    if matches!(args.agent.target, Destination::Local) && (args.survives_disconnect() || args.yield_after.is_some()) {
        return Err(Failure::message(
            exit::USAGE,
            "local: the agent ends with this process, so nothing can run in the background",
        )
        .hint(Some("to run a command in the background, use the target of a permanent agent")));
    }
    let shows_receipt = args.receipt_file.is_some() || args.json || args.id.is_some();
    if args.receipt && !shows_receipt && !args.detach && args.yield_after.is_none() {
        return Err(Failure::message(
            exit::USAGE,
            "--receipt: neither the receipt nor the execution's ID would be shown",
        )
        .hint(Some("use --receipt-file FILE, or --receipt with --json, --id or -d")));
    }
    if args.wants_receipt() && matches!(args.agent.target, Destination::Local) {
        return Err(Failure::message(
            exit::USAGE,
            "local: receipts are signed by agents that keep running, with a key",
        ));
    }
    if !args.command.is_given() && !args.stdin {
        return Err(Failure::message(exit::USAGE, "no program given: -t alone starts none")
            .hint(Some("use -it for a login shell, or give a program or -c TEXT")));
    }
    if args.interactive() && !io::stdin().is_terminal() {
        return Err(Failure::message(exit::USAGE, "-i with -t needs a terminal, but standard input is not one")
            .hint(Some("omit -t to forward standard input as is, or -i to forward none")));
    }
    Ok(())
}

/// Uses the configured user if no flag sets one.
pub(crate) fn apply_configured_user(args: &mut ExecArgs) -> Result<(), Failure> {
    if args.user.is_none() && !args.command.is_named() {
        args.user = Config::load()?.resolve(&args.agent.target, &args.connect)?.user;
    }
    Ok(())
}

/// Starts the command, stores its ID in `running`, and follows it.
pub(super) async fn execute(
    args: &ExecArgs,
    agent: &Agent,
    running: &mut Option<ExecutionId>,
) -> Result<FollowEnd, Failure> {
    let size = args.tty.then(terminal::size).transpose().map_err(|error| Failure::new(exit::REFUSED, &error))?;
    let link = args.reconnect.link(agent, &args.agent.target);
    let is_repeat = args.detach && is_known(args, &link).await;
    let command = command(args, size)?;
    let execution = match (link.executor.execute(command.clone()).await, args.wait_approval) {
        (Err(ExecutorError::ApprovalRequired { approval_id, .. }), Some(limit)) => {
            approvals::wait(agent, &args.agent.target, &approval_id, limit).await?;
            link.executor.execute(command).await
        }
        (execution, _) => execution,
    };
    let execution = execution.map_err(|error| {
        let waits = matches!(error, ExecutorError::ApprovalRequired { .. }) && args.wait_approval.is_none();
        let failure = call_failure(exit::of_error(&error), &args.agent.target, &error);
        failure.hint(waits.then_some("with --wait-approval DUR, telexec exec waits for that"))
    })?;
    let id = running.insert(execution.id().clone());
    if args.detach {
        return detach(args, execution, is_repeat).await;
    }
    // with -tt of ssh standard input may be anything
    let raw = args.interactive() && io::stdin().is_terminal();
    let mode = OutputMode { target: &args.agent.target, json: args.json, raw };
    let keys = (raw && args.survives_disconnect()).then(|| args.detach_keys.clone());
    let feed = args.stdin.then_some(StdinOptions { position: InputPosition::At(0), raw, keys, warn_unread: false });
    let interaction = Interaction { target: &args.agent.target, link: &link, id };
    follow(execution, mode, link.outages.clone(), interaction.run(feed, size)).await
}

/// Whether there is an execution with the chosen ID already.
async fn is_known(args: &ExecArgs, link: &Link) -> bool {
    match &args.id {
        Some(id) => link.executor.get(id).await.is_ok(),
        None => false,
    }
}

/// Waits until the command is in the background, and prints its ID. The agent reports that only to the call that starts the
/// command: a repeat with the same ID is answered only by one that was asked for in the same way, so no caller matters to it.
async fn detach(args: &ExecArgs, mut execution: Execution, is_repeat: bool) -> Result<FollowEnd, Failure> {
    let line = match args.json {
        true => json::line(&Event::Started(execution.started().clone())),
        false => Ok(format!("{}\n", execution.id())),
    };
    let in_background = async {
        while let Some(event) = execution.next().await {
            event.map_err(|error| call_failure(exit::of_lost(&error), &args.agent.target, &error))?;
        }
        Ok::<_, Failure>(())
    };
    match (is_repeat, &args.id) {
        (true, _) => {}
        // another call may have started it meanwhile
        (false, Some(_)) => tokio::time::timeout(BACKGROUND_TIMEOUT, in_background).await.unwrap_or(Ok(()))?,
        (false, None) => in_background.await?,
    }
    output::print(line.map_err(|error| Failure::new(exit::LOST, &error))?.as_bytes()).map(|()| FollowEnd::Promoted)
}

/// The command that the flags describe.
pub(crate) fn command(args: &ExecArgs, size: Option<TerminalSize>) -> Result<Command, Failure> {
    let mut builder = args.command.builder();
    if let Some(user) = &args.user {
        builder = builder.user(user);
    }
    if let Some(directory) = &args.workdir {
        builder = builder.working_directory(directory_for(&args.agent.target, directory)?);
    }
    if let Some(timeout) = args.timeout {
        builder = builder.timeout(timeout);
    }
    if let Some(size) = size {
        builder = on_terminal(builder, size, args);
    }
    in_background(builder, args)
        .accepts_input(args.stdin)
        .receipt(args.wants_receipt())
        .build()
        .map_err(|error| Failure::new(exit::REFUSED, &error).context(&args.agent.target))
}

/// Requests a terminal of the same type as this one, unless TERM is set explicitly.
fn on_terminal(builder: CommandBuilder, size: TerminalSize, args: &ExecArgs) -> CommandBuilder {
    let builder = builder.terminal(size);
    let is_set = args.command.environment().any(|(name, _)| name == "TERM");
    match std::env::var("TERM") {
        Ok(kind) if !is_set && !kind.is_empty() => builder.env("TERM", kind),
        _ => builder,
    }
}

fn in_background(mut builder: CommandBuilder, args: &ExecArgs) -> CommandBuilder {
    if let Some(id) = &args.id {
        builder = builder.execution_id(id.clone());
    }
    if let Some(delay) = args.yield_after.or(args.detach.then_some(Duration::ZERO)) {
        builder = builder.yield_after(delay);
    }
    if args.survives_disconnect() {
        builder = builder.on_disconnect(OnDisconnect::Detach);
    }
    builder
}

/// Relative paths are only unambiguous for `local`.
fn directory_for(target: &Destination, directory: &str) -> Result<String, Failure> {
    match target {
        Destination::Agent(_) | Destination::Nats(_) | Destination::Named(_) | Destination::Host(_) => {
            Ok(directory.to_owned())
        }
        Destination::Local => std::path::absolute(directory)
            .map(|path| path.to_string_lossy().into_owned())
            .map_err(|error| Failure::new(exit::REFUSED, &error).context(directory)),
    }
}
