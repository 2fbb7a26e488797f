//! Hints where a habit from Ansible, clush or kubectl selects no hosts, or is taken for something else.

use std::net::IpAddr;
use std::path::Path;

use super::hosts::{Host, HostResolver};
use super::inventory::Inventory;
use crate::args::{FleetCommandArgs, HostArgs};
use crate::commands::program;
use crate::config::Config;
use crate::output::{Failure, exit};
use crate::syntax::Destination;
use crate::syntax::nodeset::{self, Groups};

/// How many groups are listed.
const MAX_GROUPS: usize = 12;
/// How many similar hosts are suggested, and how similar they are: from 0 to 1, as in Python's difflib.
const MAX_SIMILAR: usize = 3;
const MIN_SIMILARITY: f32 = 0.6;
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
    for element in elements {
        if let Some(group) = element.strip_prefix('@') {
            check_group(group, known)?;
            continue;
        }
        if known.group(element).is_some() && !is_host(element, known) {
            let text = format!(
                "{element:?} is a group: write @{element} for its hosts, or tcp://{element} for a host of that name"
            );
            return Err(Failure::message(exit::USAGE, text));
        }
        if let Some(hint) = for_pattern(element, known) {
            let text = format!("{element:?} is a pattern of Ansible's, not a set of hosts");
            return Err(Failure::message(exit::USAGE, text).hint(Some(hint)));
        }
        if known.has_inventory {
            let names = nodeset::expand(element, known).map_err(|error| Failure::new(exit::USAGE, &error))?;
            names.iter().try_for_each(|name| check_listed(name, known))?;
        }
    }
    Ok(())
}

fn check_group(name: &str, known: &HostResolver<'_>) -> Result<(), Failure> {
    if known.group(name).is_some() {
        return Ok(());
    }
    let names: Vec<String> = groups(known).take(MAX_GROUPS).map(|name| format!("@{name}")).collect();
    let more = if groups(known).nth(MAX_GROUPS).is_some() { ", ..." } else { "" };
    let hint = (!names.is_empty()).then(|| format!("groups: {}{more}", names.join(", ")));
    Err(Failure::message(exit::USAGE, format!("no group {name:?}")).hint(hint))
}

fn groups<'a>(known: &'a HostResolver<'_>) -> impl Iterator<Item = &'a String> {
    let configured = known.config.groups.keys().filter(|name| !known.inventory.groups.contains_key(*name));
    known.inventory.groups.keys().chain(configured)
}

/// Refuses a name that an inventory does not have: it would be looked up in DNS.
fn check_listed(name: &str, known: &HostResolver<'_>) -> Result<(), Failure> {
    let is_known = known.inventory.hosts.contains_key(name) || known.config.targets.contains_key(name);
    if is_known || name.parse::<IpAddr>().is_ok() || !matches!(name.parse(), Ok(Destination::Named(_))) {
        return Ok(());
    }
    let names: Vec<&str> = known.inventory.hosts.keys().map(String::as_str).collect();
    let begins = |host: &&&str| host.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
    let qualified: Vec<&str> = names.iter().filter(begins).take(MAX_SIMILAR).copied().collect();
    let similar = match qualified.is_empty() {
        true => similar::get_close_matches(name, &names, MAX_SIMILAR, MIN_SIMILARITY),
        false => qualified,
    };
    let similar = if similar.is_empty() { String::new() } else { format!("; similar: {}", similar.join(", ")) };
    let failure = Failure::message(exit::USAGE, format!("{name} is not in the inventory{similar}"));
    Err(failure.hint(Some(format!("a host that is not in it is written as an address: tcp://{name}"))))
}

/// The warning that commands run as other users than Ansible would run them.
pub(super) fn unused_users(hosts: &[Host], inventory: &Inventory) -> Option<String> {
    let user = |host: &Host| inventory.hosts.get(&host.name)?.user.clone();
    let users = hosts.iter().filter_map(|host| Some((host, user(host)?)));
    let mut unused = users.filter(|(host, user)| host.resolved.user.as_ref() != Some(user));
    let (host, user) = unused.next()?;
    let others = match unused.count() {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    let run_as = host.resolved.user.as_deref().unwrap_or("the agent's user");
    Some(format!(
        "ansible_user and ansible_become are not used: the inventory says {user:?} for {}{others}, but the command runs \
         as {run_as}; set the user with -l",
        host.name
    ))
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
    if element.contains(['*', '?']) && !element.contains("://") {
        return Some("use ranges, such as 'db[1-9]', or a group: @NAME".to_owned());
    }
    let parts: Vec<_> = element.split(':').collect();
    let is_marked = |part: &&str| part.starts_with(['!', '&']);
    let is_union = parts.len() > 1 && parts.iter().all(|part| known.group(part).is_some());
    if !is_union && !parts.iter().any(is_marked) {
        return None;
    }
    if parts.iter().any(|part| part.starts_with('&')) {
        return Some(
            "hosts that are in two groups at once cannot be selected: use a group of just these hosts".to_owned(),
        );
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
