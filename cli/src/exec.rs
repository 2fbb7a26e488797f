//! `telexec exec`: one command, its output, its exit code.

use std::io::Read;

use bytes::Bytes;
use futures_util::StreamExt;
use telexec_tool::{Command, Event, Execution, Executor, Exited, OutputStream, ResourceLimits};

use crate::args::{Destination, ExecArgs};
use crate::connect::{Session, call_failure};
use crate::failure::{Failure, say};
use crate::output::Output;
use crate::signals::Signals;
use crate::{exit, json};

/// Input travels within the request, which an agent takes up to 4 MiB of.
const MAX_STDIN_BYTES: usize = 3 * 1024 * 1024;

pub(crate) async fn run(args: ExecArgs) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    let mut session = None;
    let ended = tokio::select! {
        ended = execute(&args, &mut session) => ended,
        // this drops the execution
        code = signals.exit_code() => Err(Failure::silent(code)),
    };
    if let Some(session) = session {
        match &ended {
            Ok(_) => session.close().await?,
            Err(_) => session.abandon().await?,
        }
    }
    let exited = ended?;
    if let Some(remark) = exit::remark(&exited) {
        say(&format!("{}: {remark}", args.target));
    }
    Ok(exit::of_exit(&exited))
}

async fn execute(args: &ExecArgs, session: &mut Option<Session>) -> Result<Exited, Failure> {
    let command = command(args).await?;
    let session = session.insert(Session::open(&args.target, &args.connect).await?);
    let execution = session.agent.executor().execute(command).await;
    let execution = execution.map_err(|error| call_failure(exit::of_error(&error), &args.target, &error))?;
    follow(execution, args).await
}

/// Writes the events as they come. Any error gives the execution up.
async fn follow(mut execution: Execution, args: &ExecArgs) -> Result<Exited, Failure> {
    let mut output = Output::start()?;
    while let Some(event) = execution.next().await {
        let event = event.map_err(|error| call_failure(exit::of_lost(&error), &args.target, &error))?;
        if args.json {
            let line = json::line(&event).map_err(|error| Failure::new(exit::LOST, &error))?;
            output.write(OutputStream::Stdout, line.into()).await?;
        }
        match event {
            Event::Started(_) => {}
            Event::Output(chunk) if !args.json => output.write(chunk.stream, chunk.data).await?,
            Event::Output(_) | Event::Gap(_) | Event::Promoted => {}
            Event::Exited(exited) => {
                output.finish().await?;
                return Ok(exited);
            }
        }
    }
    Err(Failure::text(exit::LOST, format!("{}: the agent did not tell how the command ended", args.target)))
}

async fn command(args: &ExecArgs) -> Result<Command, Failure> {
    let mut builder = match &args.command {
        Some(text) => Command::shell(text).login(args.login),
        None => Command::argv(args.argv.iter().cloned()),
    };
    if let Some(shell) = &args.shell {
        builder = builder.shell(shell);
    }
    if let Some(user) = &args.user {
        builder = builder.user(user);
    }
    if let Some(directory) = &args.workdir {
        builder = builder.working_directory(directory_for(&args.target, directory)?);
    }
    if let Some(timeout) = args.timeout {
        builder = builder.timeout(timeout);
    }
    if let Some(grace) = args.kill_grace {
        builder = builder.kill_grace(grace);
    }
    if args.stdin {
        builder = builder.stdin(stdin().await?);
    }
    builder
        .envs(args.env.iter().cloned())
        .limits(ResourceLimits { memory_bytes: args.memory, max_processes: args.max_processes, cpus: args.cpus })
        .build()
        .map_err(|error| Failure::new(exit::REFUSED, &error).during(&args.target))
}

/// Only with `local` is it clear what a path is relative to.
fn directory_for(target: &Destination, directory: &str) -> Result<String, Failure> {
    match target {
        Destination::Agent(_) => Ok(directory.to_owned()),
        Destination::Local => std::path::absolute(directory)
            .map(|path| path.to_string_lossy().into_owned())
            .map_err(|error| Failure::new(exit::REFUSED, &error).during(directory)),
    }
}

async fn stdin() -> Result<Bytes, Failure> {
    let read = tokio::task::spawn_blocking(|| {
        let mut data = Vec::new();
        std::io::stdin().lock().take(MAX_STDIN_BYTES as u64 + 1).read_to_end(&mut data).map(|_| data)
    });
    match read.await {
        Ok(Ok(data)) if data.len() <= MAX_STDIN_BYTES => Ok(data.into()),
        Ok(Ok(_)) => Err(Failure::text(exit::REFUSED, "standard input has more than 3 MiB: nothing was run")
            .advice(Some("bring the data there another way, and let the command read it"))),
        Ok(Err(error)) => Err(Failure::new(exit::REFUSED, &error).during("cannot read standard input")),
        Err(error) => Err(Failure::new(exit::REFUSED, &error).during("cannot read standard input")),
    }
}
