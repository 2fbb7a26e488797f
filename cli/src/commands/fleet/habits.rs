//! Hints where a habit from Ansible, clush or kubectl selects no hosts, or is taken for something else.

use std::path::Path;

use super::hosts::HostResolver;
use crate::args::{FleetCommandArgs, HostArgs};
use crate::commands::program;
use crate::config::Config;
use crate::output::{Failure, exit};
use crate::syntax::nodeset::{self, Groups};

/// Flags that select hosts.
const HOST_FLAGS: [&str; 7] = ["-w", "-g", "-a", "--hosts", "--group", "--all", "--inventory"];
/// Subcommands of fleet.
const SUBCOMMANDS: [&str; 5] = ["attach", "info", "kill", "ping", "ps"];
/// Words that are subcommands elsewhere, and what to use instead.
const ELSEWHERE: &[(&[&str], &str)] = &[
    (&["log", "logs", "tail"], "telexec fleet attach ID prints the output of a run that was started with -d"),
    (&["wait"], "telexec fleet attach ID follows a run that was started with -d until it has ended"),
    (&["exec", "run"], "fleet has no subcommand that runs a program: telexec fleet -w HOSTS PROGRAM"),
    (&["check"], "telexec fleet --dry-run -w HOSTS PROGRAM checks whether the agents would run it"),
    (&["hosts", "list", "ls"], "telexec fleet --list-hosts -w HOSTS prints the hosts"),
];

/// How to select hosts, where none are. `command` is what they were to run.
pub(super) fn how_to_select(args: &HostArgs, command: Option<&FleetCommandArgs>, known: &HostResolver<'_>) -> String {
    let words = command.map_or(&[][..], |command| &command.command.argv);
    let first = words.first().map_or("", String::as_str);
    if command.is_some_and(|command| command.stdin) && Path::new(first).is_file() {
        return format!("-i sends standard input to the hosts; an inventory is --inventory {first}");
    }
    if let Some(hint) = elsewhere(first) {
        return hint;
    }
    if words.iter().any(|word| HOST_FLAGS.contains(&word.as_str())) {
        return "flags go before the program: telexec fleet -w HOSTS PROGRAM".to_owned();
    }
    if known.group(first).is_some() {
        return format!("{first} is a group, not a program: telexec fleet -w @{first} PROGRAM");
    }
    if is_host(first, known) {
        return format!("{first} is a host, not a program: telexec fleet -w {first} PROGRAM");
    }
    match args.inventory {
        Some(_) => "-a selects all hosts of the inventory, -w HOST,@GROUP some of them".to_owned(),
        None => "use -w 'web[01-32],@db', --hosts-file FILE, or -a for all configured targets".to_owned(),
    }
}

/// Why there are no hosts, if `-a` is misunderstood.
pub(super) fn why_empty(args: &HostArgs, config: &Config) -> Option<String> {
    if !args.all || args.inventory.is_some() || !config.targets.is_empty() {
        return None;
    }
    let groups = config.groups.keys().map(|name| format!("@{name}")).collect::<Vec<_>>().join(",");
    let groups = if groups.is_empty() { groups } else { format!("; for the hosts of its groups: -w {groups}") };
    Some(format!("-a selects the targets of the configuration, which has none{groups}"))
}

/// What to use instead of a program that no host has.
pub(super) fn missing_program(argv: &[String]) -> Option<String> {
    let first = argv.first()?.as_str();
    if SUBCOMMANDS.contains(&first) {
        return Some(format!("a subcommand is the word right after fleet: telexec fleet {first} -w HOSTS"));
    }
    if Path::new(first).is_file() && !first.contains('/') {
        return Some(format!("{first} is a file here: an inventory is --inventory {first}"));
    }
    elsewhere(first).or_else(|| program::hint(argv))
}

fn elsewhere(word: &str) -> Option<String> {
    ELSEWHERE.iter().find(|(words, _)| words.contains(&word)).map(|(_, hint)| (*hint).to_owned())
}

/// Refuses what would be taken for the name of a host, but is meant otherwise.
///
/// # Errors
/// A group without its @, or a pattern of Ansible's.
pub(super) fn check(set: &str, known: &HostResolver<'_>) -> Result<(), Failure> {
    let elements = nodeset::elements(set).map_err(|error| Failure::new(exit::USAGE, &error))?;
    for element in elements.into_iter().filter(|element| !element.starts_with('@')) {
        if known.group(element).is_some() && !is_host(element, known) {
            let text =
                format!("{element:?} is a group: its hosts are @{element}, and a host of that name tcp://{element}");
            return Err(Failure::message(exit::USAGE, text));
        }
        if let Some(hint) = for_pattern(element, known) {
            let text = format!("{element:?} is a pattern of Ansible's, not a set of hosts");
            return Err(Failure::message(exit::USAGE, text).hint(Some(hint)));
        }
    }
    Ok(())
}

/// Whether it names a host, even if a group has the same name.
fn is_host(name: &str, known: &HostResolver<'_>) -> bool {
    known.inventory.hosts.contains_key(name)
        || known.config.targets.contains_key(name)
        || nodeset::expand(&format!("@{name}"), known).is_ok_and(|hosts| hosts.iter().any(|host| host == name))
}

/// What to use instead of `web:db`, `web:!db` or `web:&prod`.
fn for_pattern(element: &str, known: &HostResolver<'_>) -> Option<String> {
    if element == "*" {
        return Some("-a selects all hosts".to_owned());
    }
    let parts: Vec<_> = element.split(':').collect();
    let is_marked = |part: &&str| part.starts_with(['!', '&']);
    let is_union = parts.len() > 1 && parts.iter().all(|part| known.group(part).is_some());
    if !is_union && !parts.iter().any(is_marked) {
        return None;
    }
    if parts.iter().any(|part| part.starts_with('&')) {
        return Some("hosts that are in two groups cannot be selected: use a group that has just these".to_owned());
    }
    let written = |name: &str| if known.group(name).is_some() { format!("@{name}") } else { name.to_owned() };
    let included: Vec<_> = parts.iter().filter(|part| !is_marked(part)).map(|part| written(part)).collect();
    let excluded: Vec<_> = parts.iter().filter_map(|part| part.strip_prefix('!')).map(written).collect();
    let flags = [("-w", included), ("-x", excluded)].into_iter().filter(|(_, sets)| !sets.is_empty());
    Some(format!(
        "use {}",
        flags.map(|(flag, sets)| format!("{flag} {}", sets.join(","))).collect::<Vec<_>>().join(" ")
    ))
}
