//! Where commands run: `local`, an agent's address, or a configured name.

use std::fmt;
use std::str::FromStr;

use telexec_client::{InvalidTarget, Target};

/// `local`, an agent's address, or a configured name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Destination {
    Local,
    Agent(Target),
    Named(String),
}

impl FromStr for Destination {
    type Err = InvalidTarget;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "local" => Ok(Self::Local),
            name if is_name(name) => Ok(Self::Named(name.to_owned())),
            address => address.parse().map(Self::Agent),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Agent(target) => target.fmt(f),
            Self::Named(name) => f.write_str(name),
        }
    }
}

/// Names are distinct from all addresses.
fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// A target other than `local`, whose agent exists only within one process.
pub(crate) fn parse_agent(text: &str) -> Result<Destination, String> {
    match text.parse() {
        Ok(Destination::Local) => Err("\"local\" keeps no executions: use a running agent".to_owned()),
        destination => destination.map_err(|error| error.to_string()),
    }
}
