//! Dynamic completion of arguments: names of targets and groups, IDs of executions, signals.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::sync::OnceLock;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use telexec_executor::{ExecutionInfo, Signal};

use crate::config::Config;
use crate::output::{command_text, printable, state};

/// Finds the executions of the agent that the line names. Set by who answers completions: what connects is above the
/// command line.
pub(crate) static FIND_EXECUTIONS: OnceLock<fn() -> Vec<ExecutionInfo>> = OnceLock::new();

/// Finds the groups of the inventory that the line names. Set as [`FIND_EXECUTIONS`] is.
pub(crate) static FIND_GROUPS: OnceLock<fn() -> Vec<String>> = OnceLock::new();

/// Completes a TARGET: `local` and the configured targets.
pub(crate) fn targets() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let names = Config::load().unwrap_or_default().targets.into_keys();
        with_prefix(typed, std::iter::once("local".to_owned()).chain(names))
    })
}

/// Completes a set of hosts after its last comma: targets, and groups with an @.
pub(crate) fn hosts() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let Some(typed) = typed.to_str() else { return Vec::new() };
        let (before, _) = typed.rsplit_once(',').map_or(("", typed), |(before, last)| (before, last));
        let before = if before.is_empty() { String::new() } else { format!("{before},") };
        let Config { targets, groups, .. } = Config::load().unwrap_or_default();
        let groups: BTreeSet<String> =
            groups.into_keys().chain(["all".to_owned()]).chain(groups_of_inventory()).collect();
        let names = groups.into_iter().map(|name| format!("@{name}")).chain(targets.into_keys());
        with_prefix(OsStr::new(typed), names.map(|name| format!("{before}{name}")))
    })
}

/// Completes the name of a group.
pub(crate) fn groups() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let groups: BTreeSet<String> =
            Config::load().unwrap_or_default().groups.into_keys().chain(groups_of_inventory()).collect();
        with_prefix(typed, groups.into_iter())
    })
}

fn groups_of_inventory() -> Vec<String> {
    FIND_GROUPS.get().map(|find| find()).unwrap_or_default()
}

/// Completes the ID of an execution on the agent that the command line names.
pub(crate) fn executions() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let typed = typed.to_string_lossy();
        let found = FIND_EXECUTIONS
            .get()
            .map(|find| find())
            .unwrap_or_default()
            .into_iter()
            .filter(|info| info.id.as_str().starts_with(&*typed));
        let candidate = |info| {
            let help = format!("{}: {}", state(&info), printable(&command_text(&info)));
            CompletionCandidate::new(info.id.to_string()).help(Some(help.into()))
        };
        found.map(candidate).collect()
    })
}

/// Completes the name of a signal, in either case, with or without SIG.
pub(crate) fn signals() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let typed = typed.to_string_lossy().to_ascii_uppercase();
        let names = (1..=64).filter_map(Signal::from_number).map(|signal| signal.to_string());
        let names = names.filter(|name| name.starts_with("SIG"));
        let short = |name: String| name.strip_prefix("SIG").map(str::to_owned).unwrap_or(name);
        let is_long = typed.starts_with("SIG");
        with_prefix(OsStr::new(&typed), names.map(|name| if is_long { name } else { short(name) }))
    })
}

fn with_prefix(typed: &OsStr, names: impl Iterator<Item = String>) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    names.filter(|name| name.starts_with(&*typed)).map(CompletionCandidate::new).collect()
}
