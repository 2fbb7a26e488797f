//! `telexec completions`, and answering the scripts that it prints.
//!
//! The scripts call this program, with a variable in its environment, so they are never outdated.

use std::time::Duration;

use clap::{ArgMatches, CommandFactory, FromArgMatches};
use clap_complete::CompleteEnv;
use clap_complete::env::Shells;
use telexec_executor::{ExecutionInfo, ListQuery};
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::find::list;
use super::fleet;
use crate::args::{Cli, CompletionShell, FIND_EXECUTIONS, FIND_GROUPS};
use crate::config::{Config, ConnectArgs, Route};
use crate::connect::Session;
use crate::output::{self, Failure, exit};
use crate::syntax::Destination;

/// How long to wait for an agent, while somebody waits for the completion.
const AGENT_TIMEOUT: Duration = Duration::from_millis(1500);
/// Set by the scripts.
const VARIABLE: &str = "TELEXEC_COMPLETE";

/// Answers a completion script and exits; returns if this is not such a call.
pub(crate) fn complete() {
    FIND_EXECUTIONS.get_or_init(|| executions_of_line);
    FIND_GROUPS.get_or_init(|| groups_of_line);
    CompleteEnv::with_factory(Cli::command).var(VARIABLE).complete();
}

/// The executions of the agent that the line to complete names; none if that does not answer soon.
fn executions_of_line() -> Vec<ExecutionInfo> {
    let Some((target, args)) = named_agent() else { return Vec::new() };
    let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return Vec::new() };
    let found = runtime.block_on(async { timeout(AGENT_TIMEOUT, executions(&target, &args)).await });
    // a lookup of a name may take longer
    runtime.shutdown_background();
    found.ok().flatten().unwrap_or_default()
}

async fn executions(target: &Destination, args: &ConnectArgs) -> Option<Vec<ExecutionInfo>> {
    let resolved = Config::load().ok()?.resolve(target, args).ok()?;
    // an agent in this process has none
    if matches!(resolved.route, Route::Local) {
        return None;
    }
    let session = Session::connect(&resolved).await.ok()?;
    list(&session.agent.executor(), ListQuery { include_exited: true, ..ListQuery::default() }).await.ok()
}

/// The groups of the inventory that the line names, if it is a file: a command is not run by a key press.
fn groups_of_line() -> Vec<String> {
    let Some(source) = named_inventory() else { return Vec::new() };
    fleet::groups_of(&source)
}

fn named_inventory() -> Option<String> {
    let matches = matches_of_line()?;
    let (_, mut matches) = matches.subcommand()?;
    if let Some((_, action)) = matches.subcommand() {
        matches = action;
    }
    matches.try_get_one::<String>("inventory").ok()?.cloned()
}

/// The line, which the script gives after `--`.
fn matches_of_line() -> Option<ArgMatches> {
    // an empty word, before anything is typed, would make the line invalid
    let line = std::env::args_os().skip_while(|word| word != "--").skip(1).filter(|word| !word.is_empty());
    Cli::command().ignore_errors(true).try_get_matches_from(line).ok()
}

/// The TARGET and the connection settings of the line.
fn named_agent() -> Option<(Destination, ConnectArgs)> {
    let matches = matches_of_line()?;
    let (_, matches) = matches.subcommand()?;
    let target = matches.try_get_one::<Destination>("target").ok()??.clone();
    Some((target, ConnectArgs::from_arg_matches(matches).ok()?))
}

/// Prints the completion script of a shell.
pub(crate) fn print(shell: CompletionShell) -> Result<(), Failure> {
    let name = match shell {
        CompletionShell::Bash => "bash",
        CompletionShell::Elvish => "elvish",
        CompletionShell::Fish => "fish",
        CompletionShell::Powershell => "powershell",
        CompletionShell::Zsh => "zsh",
    };
    let shells = Shells::builtins();
    let mut script = Vec::new();
    if let Some(shell) = shells.completer(name) {
        let written = shell.write_registration(VARIABLE, "telexec", "telexec", "telexec", &mut script);
        written.map_err(|error| Failure::new(exit::LOST, &error))?;
    }
    output::print(&script)
}
