//! Addresses to listen on, in the syntax of the configuration.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

const FORMS: &str = "expected unix:///path.sock, tcp://host:port, vsock://cid:port or systemd:";

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum ListenAddress {
    /// `unix:///path.sock`
    Unix(PathBuf),
    /// `tcp://host:port`
    Tcp(String),
    /// `vsock://cid:port`
    Vsock {
        /// A context id of this machine; `None`: `any`.
        cid: Option<u32>,
        /// 0: a free port.
        port: u32,
    },
    /// `systemd:`, the sockets that systemd passes; see systemd.socket(5).
    Systemd,
}

impl ListenAddress {
    /// The system chooses its port.
    fn has_free_port(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ends_with(":0"),
            Self::Vsock { port, .. } => *port == 0,
            Self::Unix(_) | Self::Systemd => false,
        }
    }
}

/// One that can be bound once only, and is to be bound twice.
pub(crate) fn repeated<'a>(all: impl IntoIterator<Item = &'a ListenAddress>) -> Option<&'a ListenAddress> {
    let mut seen = Vec::new();
    all.into_iter().filter(|listen| !listen.has_free_port()).find(|listen| {
        let is_repeated = seen.contains(listen);
        seen.push(*listen);
        is_repeated
    })
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(uri: &str) -> Result<Self, Self::Err> {
        let invalid = |reason: &str| Err(format!("{uri}: {reason}"));
        if uri == "systemd:" {
            return Ok(Self::Systemd);
        }
        match uri.split_once("://") {
            Some(("unix", path)) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(("unix", _)) => invalid("the path must be absolute, as in unix:///run/telexec/agent.sock"),
            Some(("tcp", address)) => match address.rsplit_once(':') {
                Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(Self::Tcp(address.into())),
                _ => invalid("expected a host and a port, as in tcp://0.0.0.0:7443"),
            },
            Some(("vsock", address)) => match parse_vsock(address) {
                Some((cid, port)) => Ok(Self::Vsock { cid, port }),
                None => invalid("expected a context id or any, and a port, as in vsock://any:7443"),
            },
            Some(("systemd", _)) => invalid("expected systemd: alone, for all sockets that are passed"),
            _ => invalid(FORMS),
        }
    }
}

impl TryFrom<String> for ListenAddress {
    type Error = String;

    fn try_from(uri: String) -> Result<Self, Self::Error> {
        uri.parse()
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp://{address}"),
            Self::Vsock { cid: Some(cid), port } => write!(f, "vsock://{cid}:{port}"),
            Self::Vsock { cid: None, port } => write!(f, "vsock://any:{port}"),
            Self::Systemd => f.write_str("systemd:"),
        }
    }
}

/// Parses `cid:port`; a context id of `None` stands for `any`.
fn parse_vsock(address: &str) -> Option<(Option<u32>, u32)> {
    let (cid, port) = address.split_once(':')?;
    let number = |text: &str| text.parse().ok().filter(|number| *number != u32::MAX);
    let cid = if cid == "any" { None } else { Some(number(cid)?) };
    Some((cid, number(port)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for uri in [
            "unix:///a.sock",
            "tcp://127.0.0.1:0",
            "tcp://[::1]:7443",
            "tcp://host.example:1",
            "vsock://any:0",
            "vsock://3:4294967294",
            "systemd:",
        ] {
            assert_eq!(uri.parse::<ListenAddress>().unwrap().to_string(), uri);
        }
        for uri in [
            "",
            "unix://a.sock",
            "/a.sock",
            "tcp://",
            "tcp://host",
            "tcp://:1",
            "tcp://host:99999",
            "http://a:1",
            "vsock://",
            "vsock://any",
            "vsock://:1",
            "vsock://host:1",
            "vsock://-1:1",
            "vsock://3:x",
            "vsock://3:4294967295",
            "vsock://4294967295:1",
            "systemd",
            "systemd://x",
            "systemd:x",
        ] {
            assert!(uri.parse::<ListenAddress>().unwrap_err().starts_with(uri), "{uri}");
        }
    }
}
