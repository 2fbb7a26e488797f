//! `[USER@]HOST` and `ssh://[USER@]HOST[:PORT]`.

use std::net::Ipv6Addr;

use crate::syntax::Destination;

/// Whom a command line names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) user: Option<String>,
    pub(super) name: String,
    pub(super) port: Option<u16>,
}

impl Host {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let parsed = match text.strip_prefix("ssh://") {
            Some(rest) => Self::of_uri(rest.strip_suffix('/').unwrap_or(rest))?,
            None => {
                let (user, name) = user(text);
                Self { user, name: name.to_owned(), port: None }
            }
        };
        let is_empty = parsed.name.is_empty() || parsed.user.as_ref().is_some_and(String::is_empty);
        match is_empty || parsed.name.starts_with('-') {
            true => Err(format!("{text:?} is not a host: expected [USER@]HOST")),
            false => Ok(parsed),
        }
    }

    fn of_uri(text: &str) -> Result<Self, String> {
        let (user, address) = user(text);
        let (name, number) = match address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((name, rest)) => (name, rest.strip_prefix(':')),
            None => address.split_once(':').map_or((address, None), |(name, number)| (name, Some(number))),
        };
        let number = number.filter(|number| !number.is_empty()).map(port).transpose()?;
        Ok(Self { user, name: name.to_owned(), port: number })
    }
}

/// The user before the last @, unless that is part of an address such as unix:///tmp/a@b.
fn user(text: &str) -> (Option<String>, &str) {
    match text.rsplit_once('@') {
        Some((user, host)) if !user.contains("://") => (Some(user.to_owned()), host),
        _ => (None, text),
    }
}

pub(super) fn port(text: &str) -> Result<u16, String> {
    text.parse().ok().filter(|port| *port > 0).ok_or_else(|| format!("{text:?} is not a port"))
}

/// The target that has this name. An IPv6 address is written without brackets, as ssh takes it.
pub(super) fn target(name: &str) -> Result<Destination, String> {
    match name.parse::<Ipv6Addr>() {
        Ok(_) => Ok(Destination::Host(name.to_owned())),
        Err(_) => name.parse::<Destination>().map_err(|error| error.to_string()),
    }
}
