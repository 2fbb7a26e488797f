//! Runs the command, with a terminal or without.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use clap::{Args, FromArgMatches};
use glob::Pattern;
use telexec_client::{Agent, Dial, Endpoint};
use telexec_executor::{ExecutorError, USER_SHELL};

use super::background;
use super::line::{Forward, Line, LogLevel, Session, Settings, Tty};
use super::{host, subsystem};
use crate::args::ExecArgs;
use crate::commands::forward::{Running, Wanted};
use crate::commands::{connect, exec, run_single_threaded};
use crate::connect::{call_failure, with_agent};
use crate::output::{Failure, exit, print_message};
use crate::syntax::{Forwarding, parse_endpoint, parse_listen};

/// Port 22 is what ssh and its callers mean by "the default".
const SSH_PORT: u16 = 22;
/// How often a connection without a command is tried.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// Before it is tried again when it failed.
const RETRY_DELAY: Duration = Duration::from_millis(500);

pub(super) fn command(line: &Line) -> Result<u8, Failure> {
    refuse(&line.settings)?;
    if line.settings.session == Some(Session::Subsystem) && !subsystem::is_known(line.command.as_deref()) {
        let name = line.command.as_deref().unwrap_or_default();
        return Err(Failure::message(exit::LOST, format!("-s {name}: the only subsystem is sftp")));
    }
    let args = connection(line)?;
    let level = args.connect.log_level;
    let settings = &line.settings;
    if let Some(address) = &settings.stdio_forward {
        let to = parse_endpoint(address).map_err(|error| invalid('W', address, &error))?;
        let to = Dial::with_user(to, args.user.as_deref());
        let joined = run_single_threaded(level, connect::join(&args.agent.target, &args.connect, to));
        return joined.map_err(of_transport);
    }
    let wanted = settings.forwards.iter().map(wanted).collect::<Result<Vec<_>, _>>()?;
    let plan = Plan { is_background: settings.background, wanted, are_needed: settings.forwards_are_needed };
    match settings.session {
        Some(Session::Nothing) => run_single_threaded(level, hold(args, plan)),
        Some(Session::Subsystem) => run_single_threaded(level, subsystem::sftp(settings, args)),
        _ => run_single_threaded(level, follow(with_command(line, args)?, plan)),
    }
}

/// What is done beside the command.
struct Plan {
    is_background: bool,
    wanted: Vec<Wanted>,
    /// If one of these cannot be had, nothing is done.
    are_needed: bool,
}

fn wanted(Forward { kind, specification }: &Forward) -> Result<Wanted, Failure> {
    let wanted = match kind {
        'L' => specification.parse().map(Wanted::Local),
        'R' => specification.parse().map(Wanted::Remote),
        _ => parse_listen(specification).map(Wanted::Dynamic),
    };
    wanted.map_err(|error| invalid(*kind, specification, &error))
}

/// What fails before there is a command has ssh's code for that.
fn of_transport(mut failure: Failure) -> Failure {
    failure.code = exit::LOST;
    failure
}

fn invalid(flag: char, value: &str, error: &str) -> Failure {
    Failure::message(exit::LOST, format!("-{flag} {value}: {error}"))
}

/// What is not served.
pub(super) fn refuse(settings: &Settings) -> Result<(), Failure> {
    let what = if let Some(proxy) = &settings.proxy {
        format!("{proxy}: jump hosts and proxy commands are not supported: telexec connects to the agent itself")
    } else if let Some(tunnel) = &settings.tunnel {
        format!("-w {tunnel}: tunnels are not supported")
    } else {
        return Ok(());
    };
    Err(Failure::message(exit::LOST, what))
}

/// What a call of `telexec exec` has, with the host and how to connect.
pub(super) fn connection(line: &Line) -> Result<ExecArgs, Failure> {
    let settings = &line.settings;
    let usage = |error: String| Failure::message(exit::LOST, error);
    // reads the environment
    let definition = ExecArgs::augment_args(clap::Command::new("telexec ssh").no_binary_name(true));
    let matches = definition.try_get_matches_from(["local", "true"]);
    let args = matches.and_then(|matches| ExecArgs::from_arg_matches(&matches));
    let mut args = args.map_err(|error| usage(error.to_string().trim_end().to_owned()))?;
    let host = settings.host_name.as_ref().unwrap_or(&line.host);
    args.agent.target = host::target(host).map_err(usage)?;
    args.command.argv.clear();
    args.user = settings.user.clone();
    args.connect.port = settings.port.filter(|port| *port != SSH_PORT);
    args.connect.connect_timeout = settings.connect_timeout;
    exec::apply_configured_user(&mut args)?;
    Ok(args)
}

fn with_command(line: &Line, mut args: ExecArgs) -> Result<ExecArgs, Failure> {
    let settings = &line.settings;
    args.command.text = line.command.clone();
    args.command.shell = line.command.as_ref().map(|_| USER_SHELL.to_owned());
    args.command.env.extend(settings.environment.iter().cloned());
    args.command.env.extend(sent(&settings.send_environment));
    args.stdin = !settings.no_stdin;
    args.tty = match settings.tty {
        Some(Tty::Never) => false,
        Some(Tty::Always) => true,
        Some(Tty::Wanted) => is_terminal_here(settings),
        Some(Tty::Auto) | None => line.command.is_none() && is_terminal_here(settings),
    };
    Ok(args)
}

fn is_terminal_here(settings: &Settings) -> bool {
    let is_terminal = !settings.no_stdin && io::stdin().is_terminal();
    if !is_terminal && settings.log_level.is_none_or(|level| level > LogLevel::Errors) {
        print_message("no terminal is allocated, since standard input is not one");
    }
    is_terminal
}

/// The caller's variables that match one of the patterns, and none with a minus.
fn sent(patterns: &[String]) -> impl Iterator<Item = (String, String)> {
    let (removed, wanted): (Vec<_>, Vec<_>) = patterns.iter().map(String::as_str).partition(|one| one.starts_with('-'));
    let compiled = |patterns: Vec<&str>| {
        let patterns = patterns.into_iter().map(|pattern| Pattern::new(pattern.trim_start_matches('-')));
        patterns.filter_map(Result::ok).collect::<Vec<_>>()
    };
    let (removed, wanted) = (compiled(removed), compiled(wanted));
    let variables = std::env::vars_os();
    let variables = variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let any = |patterns: &[Pattern], name: &str| patterns.iter().any(|pattern| pattern.matches(name));
    variables.filter(move |(name, _)| any(&wanted, name) && !any(&removed, name))
}

async fn follow(args: ExecArgs, plan: Plan) -> Result<u8, Failure> {
    let mut running = None;
    let work = async |agent: &Agent| {
        let _forwards = forward(agent, &args, &plan).await?;
        if plan.is_background {
            connected(agent, &args, true).await?;
        }
        exec::execute(&args, agent, &mut running).await
    };
    let ending = with_agent(&args.agent.target, &args.connect, work).await?;
    Ok(running.map_or(0, |id| ending.report(&args.agent.target, &exec::attach_hint(&args, &id))))
}

/// Makes sure that the agent answers this caller, before the process goes to the background.
async fn connected(agent: &Agent, args: &ExecArgs, is_background: bool) -> Result<(), Failure> {
    let answer = agent.ping().await;
    answer.map_err(|error| call_failure(exit::of_error(&error), &args.agent.target, &error))?;
    if is_background { background::connected() } else { Ok(()) }
}

/// As ssh: what cannot be listened on is said, and the rest goes on, unless it is said that it must not.
async fn forward(agent: &Agent, args: &ExecArgs, plan: &Plan) -> Result<Running, Failure> {
    let (forwards, user) = (agent.forwards(), args.user.clone());
    let mut running = Running::new(&forwards, &args.agent.target, user, args.reconnect.reconnect);
    for wanted in &plan.wanted {
        match (running.start(wanted).await, wanted) {
            (
                Ok(Endpoint::Tcp { port, .. }),
                Wanted::Remote(Forwarding { listen: Endpoint::Tcp { port: 0, .. }, to }),
            ) => {
                print_message(&format!("Allocated port {port} for remote forward to {to}"));
            }
            (Ok(_), _) => {}
            (Err(failure), _) if plan.are_needed => return Err(of_transport(failure)),
            (Err(failure), _) => failure.print(),
        }
    }
    Ok(running)
}

/// Returns an error when the agent could not be reached for as long as a lost connection is tried again.
async fn reached(agent: &Agent, args: &ExecArgs) -> Result<(), Failure> {
    let since = Instant::now();
    loop {
        let Err(error) = agent.ping().await else { return Ok(()) };
        let may_end = matches!(error, ExecutorError::Lost { .. } | ExecutorError::Unreachable { .. });
        if !may_end || since.elapsed() >= args.reconnect.reconnect {
            return Err(call_failure(exit::of_error(&error), &args.agent.target, &error));
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// -N: until a signal ends it, or the agent is gone.
async fn hold(args: ExecArgs, plan: Plan) -> Result<u8, Failure> {
    let work = async |agent: &Agent| {
        let mut forwards = forward(agent, &args, &plan).await?;
        connected(agent, &args, plan.is_background).await?;
        loop {
            tokio::select! {
                ended = forwards.ended() => ended.map_err(of_transport)?,
                () = tokio::time::sleep(PING_INTERVAL) => reached(agent, &args).await.map_err(of_transport)?,
            }
        }
    };
    with_agent(&args.agent.target, &args.connect, work).await
}
