//! Dynamic completion of arguments: the names of targets and groups.

use std::ffi::OsStr;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};

use crate::config::Config;

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
        let groups = groups.into_keys().chain(["all".to_owned()]).map(|name| format!("@{name}"));
        let names = groups.chain(targets.into_keys());
        with_prefix(OsStr::new(typed), names.map(|name| format!("{before}{name}")))
    })
}

/// Completes the name of a group.
pub(crate) fn groups() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| with_prefix(typed, Config::load().unwrap_or_default().groups.into_keys()))
}

fn with_prefix(typed: &OsStr, names: impl Iterator<Item = String>) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    names.filter(|name| name.starts_with(&*typed)).map(CompletionCandidate::new).collect()
}
