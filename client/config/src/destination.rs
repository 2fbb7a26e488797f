//! Where commands run: `local`, an agent's address, or a name.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use telexec_client::{InvalidTarget, Target};
#[cfg(feature = "nats")]
use telexec_nats_client::{InvalidNatsTarget, NatsTarget};

/// `local`, an agent's address, or a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// In this process.
    Local,
    /// At this address.
    Agent(Target),
    /// An agent that is reached by way of a NATS server.
    #[cfg(feature = "nats")]
    Nats(NatsTarget),
    /// A configured target, or else a host at the default port.
    Named(String),
    /// A host at the default port, written such that it is no name: `tcp://web1` or `[::1]`.
    Host(String),
}

/// A text that is not a [`Destination`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDestination {
    /// A path.
    #[error("a Unix socket is written unix://{0}")]
    Path(String),
    /// A user before the host.
    #[error("the user is a flag: -l {user} {host}")]
    User {
        /// The user.
        user: String,
        /// The host.
        host: String,
    },
    /// A set of hosts.
    #[error("{0:?} is not a host; for several hosts: telexec fleet -w {quoted} PROGRAM", quoted = quoted(.0))]
    Several(String),
    /// A wrong address.
    #[error(transparent)]
    Address(#[from] InvalidTarget),
    /// A wrong address of one behind a NATS server.
    #[cfg(feature = "nats")]
    #[error(transparent)]
    Nats(#[from] InvalidNatsTarget),
}

impl FromStr for Destination {
    type Err = InvalidDestination;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "local" => Ok(Self::Local),
            name if is_name(name) => Ok(Self::Named(name.to_owned())),
            #[cfg(feature = "nats")]
            address if NatsTarget::is_meant(address) => Ok(Self::Nats(address.parse()?)),
            address => match host(address) {
                Some(host) => Ok(Self::Host(host.to_owned())),
                None => address.parse().map(Self::Agent).map_err(|error| InvalidDestination::new(address, error)),
            },
        }
    }
}

impl InvalidDestination {
    /// Recognizes what is written so elsewhere: a path, a user before the host, and a set of hosts.
    fn new(text: &str, error: InvalidTarget) -> Self {
        match text.split_once('@') {
            _ if text.starts_with('/') => Self::Path(text.to_owned()),
            _ if text.starts_with('@') || text.contains(',') => Self::Several(text.to_owned()),
            Some((user, host)) if is_name(user) && host.parse::<Destination>().is_ok() => {
                Self::User { user: user.to_owned(), host: host.to_owned() }
            }
            _ => Self::Address(error),
        }
    }
}

/// As a shell takes it.
fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"@,._:/-".contains(&byte);
    match shlex::try_quote(text) {
        Ok(quoted) if !text.bytes().all(is_plain) => quoted.into_owned(),
        _ => text.to_owned(),
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Agent(target) => target.fmt(f),
            #[cfg(feature = "nats")]
            Self::Nats(target) => target.fmt(f),
            Self::Named(name) => f.write_str(name),
            Self::Host(host) if host.contains(':') => write!(f, "[{host}]"),
            Self::Host(host) => write!(f, "tcp://{host}"),
        }
    }
}

/// Names are distinct from all addresses with a port.
fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// The host of an address without a port.
fn host(address: &str) -> Option<&str> {
    let rest = address.strip_prefix("tcp://");
    match rest.unwrap_or(address).strip_prefix('[') {
        Some(ipv6) => ipv6.strip_suffix(']').filter(|ipv6| ipv6.parse::<Ipv6Addr>().is_ok()),
        None => rest.filter(|host| is_name(host)),
    }
}

/// A target other than `local`, whose agent exists only within one process.
///
/// # Errors
/// What is wrong with it.
pub fn parse_agent(text: &str) -> Result<Destination, String> {
    match text.parse() {
        Ok(Destination::Local) => Err("\"local\" keeps no executions: use a running agent".to_owned()),
        destination => destination.map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_read_back() {
        for (text, expected) in [
            ("local", Destination::Local),
            ("web1", Destination::Named("web1".into())),
            ("10.0.0.7", Destination::Named("10.0.0.7".into())),
            ("tcp://web1", Destination::Host("web1".into())),
            ("[::1]", Destination::Host("::1".into())),
            ("tcp://web1:1", Destination::Agent("web1:1".parse().unwrap())),
            ("unix:///run/a.sock", Destination::Agent(Target::Unix("/run/a.sock".into()))),
            #[cfg(feature = "nats")]
            ("nats://h/web1", Destination::Nats("nats://h/web1".parse().unwrap())),
        ] {
            assert_eq!(text.parse(), Ok(expected.clone()), "{text}");
            assert_eq!(expected.to_string(), text);
        }
    }

    #[test]
    fn what_is_written_otherwise_elsewhere_is_explained() {
        for (text, why) in [
            ("/run/telexec/agent.sock", "unix:///run/telexec/agent.sock"),
            ("root@web1", "-l root web1"),
            ("root@web1:22", "-l root web1:22"),
            ("@web", "is not a host"),
            ("web1,web2", "telexec fleet -w web1,web2 PROGRAM"),
            ("ssh://web1", "unknown scheme"),
        ] {
            let error = text.parse::<Destination>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
