//! Parsers for what users write on command lines and in files: targets, sets of hosts, durations, counts, pairs.

mod count;
mod environment;
mod fold;
mod forwarding;
mod location;
mod pair;

pub(crate) use telexec_config::{Destination, InvalidDestination, nodeset, parse_agent, parse_duration, parse_timeout};

pub(crate) use self::count::HostCount;
pub(crate) use self::environment::{EnvFile, Variable, parse_variable, read_env_file};
pub(crate) use self::fold::fold;
pub(crate) use self::forwarding::{Forwarding, parse_endpoint, parse_listen};
pub(crate) use self::location::{Location, last_name, parse_location};
pub(crate) use self::pair::parse_pair;
