//! Runs a command on an agent as if it ran here: `cargo run --example execute -- TARGET TEXT [SECONDS]`.
//!
//! TARGET is `unix:///PATH`, or `HOST:PORT` with the files in TELEXEC_CERT, TELEXEC_KEY and TELEXEC_CA. Ctrl-C, or SECONDS
//! later, ends the command and all that it started. The same in other languages is beside this file.

use std::env;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use telexec_client::{Agent, ConnectOptions, TlsOptions};
use telexec_executor::{Command, Event, Execution, Executor, ExecutorError, ExitCause, Exited, OutputStream};

type Error = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(code) => code.into(),
        Err(error) => {
            eprintln!("execute: {error}");
            match error.downcast_ref() {
                Some(ExecutorError::DeadlineExceeded) => 124,
                Some(ExecutorError::Unreachable { .. } | ExecutorError::Lost { .. }) => 255,
                _ => 125,
            }
            .into()
        }
    }
}

async fn run() -> Result<u8, Error> {
    let mut arguments = env::args().skip(1);
    let (target, text) = arguments.next().zip(arguments.next()).ok_or("usage: execute TARGET TEXT [SECONDS]")?;
    let mut command = Command::shell(text);
    if let Some(seconds) = arguments.next() {
        // the agent keeps it too: the command ends also if this program is gone by then
        command = command.deadline(Instant::now() + Duration::from_secs(seconds.parse()?));
    }
    let options = ConnectOptions { tls: tls(), ..ConnectOptions::default() };
    let agent = Agent::connect(&target.parse()?, options).await.map_err(ExecutorError::from)?;
    let execution = agent.executor().execute(command.build()?).await?;
    let code = tokio::select! {
        code = follow(execution) => code?,
        // the execution is dropped, which cancels the call
        _ = tokio::signal::ctrl_c() => 130,
    };
    if code == 130 {
        let _ = agent.ping().await; // its answer means that the cancel was heard
    }
    Ok(code)
}

fn tls() -> Option<TlsOptions> {
    let file = |name| env::var_os(name);
    let files = TlsOptions::new(file("TELEXEC_CERT")?, file("TELEXEC_KEY")?, file("TELEXEC_CA")?);
    Some(TlsOptions { server_name: env::var("TELEXEC_SERVER_NAME").ok(), ..files })
}

async fn follow(mut execution: Execution) -> Result<u8, Error> {
    while let Some(event) = execution.next().await {
        match event? {
            Event::Output(output) => match output.stream {
                OutputStream::Stdout => std::io::stdout().write_all(&output.data)?,
                OutputStream::Stderr => std::io::stderr().write_all(&output.data)?,
            },
            Event::Exited(exited) => {
                std::io::stdout().flush()?;
                return Ok(exit_code(&exited));
            }
            // it neither goes to the background nor is attached to
            Event::Started(_) | Event::Promoted | Event::Gap(_) => {}
        }
    }
    Err("the agent reported no end".into())
}

/// As shells have it, and timeout(1).
fn exit_code(exited: &Exited) -> u8 {
    match (exited.cause, exited.signal) {
        (ExitCause::Exited(code), _) => code,
        (ExitCause::TimedOut | ExitCause::DeadlineExceeded, _) => 124,
        (ExitCause::Signaled | ExitCause::OutOfMemory, Some(signal)) => {
            u8::try_from(128 + signal.number()).unwrap_or(255)
        }
        (ExitCause::Signaled | ExitCause::OutOfMemory, None) => 255,
        (ExitCause::Cancelled | ExitCause::Shutdown, _) => 255,
    }
}
