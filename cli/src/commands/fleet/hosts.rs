//! Selects hosts from the command line, files, the configuration, an inventory and DNS.

use std::collections::HashSet;
use std::io::Read;
use std::net::Ipv6Addr;
use std::path::Path;

use telexec_client::Target;

use super::inventory::{Inventory, InventoryHost};
use super::{dns, habits, inventory};
use crate::args::{FleetCommandArgs, HostArgs, ParallelArgs};
use crate::config::{Config, ConnectArgs, ResolvedTarget};
use crate::connect::{check_own_certificate, labelled};
use crate::output::{self, Failure, exit};
use crate::syntax::nodeset::Groups;
use crate::syntax::{Destination, InvalidDestination, fold, nodeset};

/// Flow control window per host. All of them together must fit into memory.
const WINDOW_BYTES: u32 = 256 * 1024;

/// A selected host.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// As given by the user.
    pub(crate) name: String,
    /// The address or configured name.
    pub(crate) destination: Destination,
    /// The name in its certificate, if it is not the address.
    pub(crate) server_name: Option<String>,
    pub(crate) resolved: ResolvedTarget,
}

/// The name that a host's certificate must be of. A flag takes precedence over all others.
#[derive(Debug, Default)]
pub(crate) struct ServerName {
    /// Takes precedence over the configuration.
    pub(crate) given: Option<String>,
    /// Otherwise, unless the configuration has one.
    pub(crate) implied: Option<String>,
}

/// Resolves the names of hosts.
pub(crate) struct HostResolver<'a> {
    pub(crate) config: &'a Config,
    pub(crate) connect: &'a ConnectArgs,
    pub(crate) inventory: Inventory,
    pub(crate) has_inventory: bool,
    port: u16,
}

impl<'a> HostResolver<'a> {
    pub(crate) fn new(config: &'a Config, connect: &'a ConnectArgs, port: Option<u16>) -> Self {
        let port = port.unwrap_or(config.default_port());
        Self { config, connect, inventory: Inventory::default(), has_inventory: false, port }
    }

    /// `server_name` is the name in its certificate, if DNS says it.
    ///
    /// # Errors
    /// The name is invalid, or its credentials are incomplete.
    fn host(&self, name: String, server_name: Option<String>) -> Result<Host, Failure> {
        if name.contains(char::is_control) {
            return Err(Failure::message(exit::USAGE, format!("{name:?} is not a host name")));
        }
        if let Some(listed) = self.inventory.hosts.get(&name) {
            return self.listed_host(name, listed);
        }
        let destination = self.destination(&name, self.port)?;
        self.host_at(name, destination, ServerName { implied: server_name, ..ServerName::default() })
    }

    /// A host of the inventory. Its certificate must be of its name there, unless the inventory names another, or the
    /// configuration knows the target.
    fn listed_host(&self, name: String, listed: &InventoryHost) -> Result<Host, Failure> {
        let is_target = |name: &String| self.config.targets.contains_key(name);
        let address = listed.target.as_ref().or_else(|| listed.address.as_ref().filter(|_| !is_target(&name)));
        let destination = self.destination(address.unwrap_or(&name), listed.port.unwrap_or(self.port))?;
        let named = matches!(&destination, Destination::Named(_));
        let implied = address.filter(|_| !named).map(|_| name.clone());
        self.host_at(name, destination, ServerName { given: listed.server_name.clone(), implied })
    }

    /// A configured target, or an address. Hosts without a port have this one.
    fn destination(&self, text: &str, port: u16) -> Result<Destination, Failure> {
        let wrong = |reason: &dyn std::fmt::Display| Failure::message(exit::USAGE, format!("{text:?}: {reason}"));
        if text.parse::<Ipv6Addr>().is_ok() {
            return Ok(Destination::Agent(Target::Tcp { host: text.to_owned(), port }));
        }
        match text.parse() {
            Ok(Destination::Local) => Err(wrong(&"not available in fleet; use `telexec exec local`")),
            Ok(Destination::Named(host)) if !self.config.targets.contains_key(&host) => {
                Ok(Destination::Agent(Target::Tcp { host, port }))
            }
            Ok(Destination::Host(host)) => Ok(Destination::Agent(Target::Tcp { host, port })),
            Ok(destination) => Ok(destination),
            // here -w and -u are other flags than those of exec
            Err(InvalidDestination::Path(_)) => {
                Err(wrong(&"not a host")
                    .hint(Some("-w selects hosts; the working directory of the command is --workdir")))
            }
            Err(InvalidDestination::User { user, host }) => {
                Err(wrong(&format_args!("the user is a flag: -l {user} -w {host}")))
            }
            Err(InvalidDestination::Several(_)) => Err(wrong(&"not a host")),
            Err(InvalidDestination::Address(error)) => Err(wrong(&error)),
            Err(InvalidDestination::Nats(error)) => Err(wrong(&error)),
        }
    }

    /// # Errors
    /// The name is unknown, or its credentials are incomplete, or not for a caller.
    pub(crate) fn host_at(
        &self,
        name: String,
        destination: Destination,
        server_name: ServerName,
    ) -> Result<Host, Failure> {
        let mut resolved = self.config.resolve(&destination, self.connect)?;
        check_own_certificate(self.config, &resolved)?;
        resolved.options.stream_window_bytes = WINDOW_BYTES;
        let mut effective = None;
        if let Some(tls) = &mut resolved.options.tls {
            let given = server_name.given.filter(|_| self.connect.server_name.is_none());
            let named = given.or(tls.server_name.take());
            tls.server_name = match (named, server_name.implied) {
                (Some(named), Some(host)) => Some(named.replace("{host}", &host)),
                (named, implied) => named.or(implied),
            };
            effective.clone_from(&tls.server_name);
        }
        Ok(Host { name, destination, server_name: effective, resolved })
    }
}

impl Groups for HostResolver<'_> {
    fn group(&self, name: &str) -> Option<Vec<String>> {
        self.inventory.groups.get(name).cloned().or_else(|| self.config.group(name))
    }
}

impl HostArgs {
    /// Whether any flag names hosts, or where they are listed.
    pub(crate) fn is_given(&self) -> bool {
        self.selects() || self.inventory.is_some()
    }

    /// Whether hosts are selected. An inventory alone selects none: all of its hosts are too many for a mistake.
    fn selects(&self) -> bool {
        !self.hosts.is_empty() || !self.group.is_empty() || self.all || self.hosts_file.is_some()
    }

    /// Whether standard input is the list of hosts.
    pub(crate) fn reads_stdin(&self) -> bool {
        self.hosts_file.as_deref() == Some(Path::new("-"))
    }
}

impl ParallelArgs {
    /// `-t` is a short form of `--connect-timeout`.
    pub(crate) fn apply_connect_timeout(&self, connect: &mut ConnectArgs) {
        connect.connect_timeout = connect.connect_timeout.or(self.connect_wait);
    }
}

/// The selected hosts, at least one; `command` is what they are to run.
///
/// # Errors
/// They cannot be determined, or there are none.
pub(crate) async fn find(
    args: &HostArgs,
    command: Option<&FleetCommandArgs>,
    connect: &ConnectArgs,
    config: &Config,
) -> Result<Vec<Host>, Failure> {
    let mut resolver = HostResolver::new(config, connect, args.port);
    if let Some(source) = &args.inventory {
        resolver.inventory = inventory::load(source).await?;
        resolver.has_inventory = true;
    }
    if !args.selects() {
        let hint = habits::how_to_select(args, command, &resolver);
        return Err(Failure::message(exit::USAGE, "no hosts given").hint(Some(hint)));
    }
    let given = expand(&sets(args)?, &resolver).await?;
    let excluded: HashSet<String> = expand(&args.exclude, &resolver).await?.into_iter().map(|(name, _)| name).collect();
    let mut seen = HashSet::new();
    let mut chosen: Vec<_> =
        given.into_iter().filter(|(name, _)| !excluded.contains(name) && seen.insert(name.clone())).collect();
    if let Some(source) = args.inventory.as_ref().filter(|_| resolver.inventory.hosts.is_empty() && chosen.is_empty()) {
        return Err(Failure::message(exit::USAGE, format!("the inventory {source} has no hosts")));
    }
    if chosen.is_empty() {
        let failure = Failure::message(exit::USAGE, "no hosts left: the set is empty");
        return Err(failure.hint(habits::why_empty(args, config)));
    }
    pick(&mut chosen, args.pick);
    let hosts = chosen.into_iter().map(|(name, server_name)| resolver.host(name, server_name));
    let hosts = hosts.collect::<Result<Vec<_>, _>>()?;
    let without_user = command.is_some_and(|command| command.user.is_none());
    if let Some(warning) = habits::unused_users(&hosts, &resolver.inventory).filter(|_| without_user) {
        output::print_message(&warning);
    }
    Ok(hosts)
}

/// The sets from the command line and from files.
fn sets(args: &HostArgs) -> Result<Vec<String>, Failure> {
    let mut sets = args.hosts.clone();
    sets.extend(args.group.iter().map(|group| format!("@{group}")));
    if args.all {
        sets.push("@all".to_owned());
    }
    if let Some(path) = &args.hosts_file {
        sets.extend(read_hosts_file(path)?);
    }
    Ok(sets)
}

fn read_hosts_file(path: &Path) -> Result<Vec<String>, Failure> {
    let mut text = String::new();
    let read = match path == Path::new("-") {
        true => std::io::stdin().lock().read_to_string(&mut text).map(|_| ()),
        false => std::fs::read_to_string(path).map(|read| text = read),
    };
    read.map_err(|error| Failure::new(exit::USAGE, &error).context(format_args!("cannot read {}", path.display())))?;
    let lines = text.lines().map(|line| line.split_once('#').map_or(line, |(line, _)| line).trim());
    Ok(lines.filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// Expands sets to names, with the names in certificates if DNS provides them.
async fn expand(sets: &[String], resolver: &HostResolver<'_>) -> Result<Vec<(String, Option<String>)>, Failure> {
    let mut hosts = Vec::new();
    let timeout = resolver.config.default_connect_timeout(resolver.connect);
    for set in sets {
        habits::check(set, resolver)?;
        for name in nodeset::expand(set, resolver).map_err(|error| Failure::new(exit::USAGE, &error))? {
            if let Some(agents) = labelled(&name, resolver.config, timeout).await? {
                if agents.is_empty() {
                    return Err(Failure::message(exit::USAGE, format!("{name}: no agent has this label")));
                }
                hosts.extend(agents.into_iter().map(|agent| (agent, None)));
                continue;
            }
            match dns::lookup(&name).await {
                Some(found) => {
                    let found = found.map_err(|error| Failure::message(exit::LOST, format!("{name}: {error}")))?;
                    hosts.extend(found.addresses.into_iter().map(|address| (address, found.server_name.clone())));
                }
                None => hosts.push((name, None)),
            }
        }
        if hosts.len() > nodeset::MAX_HOSTS {
            return Err(Failure::message(exit::USAGE, format!("more than {} hosts", nodeset::MAX_HOSTS)));
        }
    }
    Ok(hosts)
}

/// Keeps `count` random hosts, in their order.
fn pick<T>(hosts: &mut Vec<T>, count: Option<usize>) {
    let Some(count) = count.filter(|count| *count < hosts.len()) else { return };
    let picked: HashSet<usize> = fastrand::choose_multiple(0..hosts.len(), count).into_iter().collect();
    let mut number = 0;
    hosts.retain(|_| {
        number += 1;
        picked.contains(&(number - 1))
    });
}

/// Prints the hosts, for `--list-hosts`.
pub(crate) fn list(hosts: &[Host], folded: bool) -> Result<(), Failure> {
    let names = hosts.iter().map(|host| host.name.as_str());
    let text = match folded {
        true => format!("{}\n", fold(names)),
        false => names.map(|name| format!("{name}\n")).collect(),
    };
    output::print(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_are_picked_in_their_order() {
        for count in 1..12 {
            let mut hosts: Vec<usize> = (0..10).collect();
            pick(&mut hosts, Some(count));
            assert_eq!(hosts.len(), count.min(10));
            assert!(hosts.is_sorted());
        }
    }
}
