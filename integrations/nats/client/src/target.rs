//! Addresses of agents behind a NATS server, in the syntax for users.

use std::fmt;
use std::str::FromStr;

use async_nats::ServerAddr;

use crate::subjects::{label_address, token};

/// `nats://SERVER/AGENT`, or `nats://SERVER/label:LABEL` for whichever agent has that label; SERVER is a host, perhaps with
/// a port (4222 otherwise). With `nats+tls://` nothing is sent without TLS.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NatsTarget {
    /// Refuse a server without TLS. A server that requires it gets it in any case.
    pub tls: bool,
    /// `HOST` or `HOST:PORT`.
    pub server: String,
    /// The agent.
    pub address: Address,
}

/// An agent, or any one of several.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// The one with this name.
    Agent(String),
    /// Any with this label.
    Label(String),
}

/// A text that is not a [`NatsTarget`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidNatsTarget(String);

impl NatsTarget {
    /// Whether a text is meant as one.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with("nats://") || text.starts_with("nats+tls://")
    }

    /// The server's URL, as the library for NATS takes it.
    pub fn url(&self) -> String {
        let scheme = if self.tls { "tls" } else { "nats" };
        format!("{scheme}://{}", self.server)
    }

    /// This agent on the same server.
    pub fn of_agent(&self, name: &str) -> Self {
        Self { address: Address::Agent(name.to_owned()), ..self.clone() }
    }
}

impl Address {
    /// As the last part of subjects.
    pub fn subject(&self) -> String {
        match self {
            Self::Agent(name) => name.clone(),
            Self::Label(label) => label_address(label),
        }
    }
}

impl FromStr for NatsTarget {
    type Err = InvalidNatsTarget;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "expected nats://SERVER/AGENT, or nats://SERVER/label:LABEL";
        let invalid = |reason: String| InvalidNatsTarget(format!("{reason}: {FORM}"));
        let (tls, rest) = match text.split_once("://") {
            Some(("nats", rest)) => (false, rest),
            Some(("nats+tls", rest)) => (true, rest),
            _ => return Err(invalid(format!("{text:?} is no address behind a NATS server"))),
        };
        let (server, address) = rest.split_once('/').ok_or_else(|| invalid("the agent is missing".to_owned()))?;
        if server.contains('@') {
            // it would be in lists of processes, messages and records
            return Err(InvalidNatsTarget(
                "a NATS target has no user or password: set TELEXEC_NATS_USER and TELEXEC_NATS_PASSWORD".to_owned(),
            ));
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:[]".contains(&byte);
        let is_host = !server.is_empty() && server.bytes().all(is_plain);
        if !is_host || format!("nats://{server}").parse::<ServerAddr>().is_err() {
            return Err(invalid(format!("{server:?} is not a host, or a host and a port")));
        }
        let (what, name) = match address.strip_prefix("label:") {
            Some(label) => ("label", label),
            None => ("agent's name", address),
        };
        let name = token(name).map_err(|error| invalid(format!("{name:?}: {what} {error}")))?;
        let address = if what == "label" { Address::Label(name) } else { Address::Agent(name) };
        Ok(Self { tls, server: server.to_owned(), address })
    }
}

impl fmt::Display for NatsTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "nats+tls" } else { "nats" };
        write!(f, "{scheme}://{}/{}", self.server, self.address.subject())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_read_back() {
        for text in [
            "nats://localhost/web1",
            "nats://nats.example.org:4222/web-1_a",
            "nats+tls://[::1]:4222/web1",
            "nats://10.0.0.7/label:web",
        ] {
            assert_eq!(text.parse::<NatsTarget>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_target_says_why() {
        for (text, why) in [
            ("nats://localhost", "the agent is missing"),
            ("nats:///web1", "is not a host"),
            ("nats://a b/web1", "is not a host"),
            ("nats://h:x/web1", "is not a host"),
            ("nats://h/", "agent's name must be 1 to 64"),
            ("nats://h/a.b", "agent's name must be 1 to 64"),
            ("nats://h/*", "agent's name must be"),
            ("nats://h/label:", "label must be"),
            ("nats://me:secret@h/web1", "TELEXEC_NATS_USER"),
        ] {
            let error = text.parse::<NatsTarget>().unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("secret"), "{text}: {error}");
        }
    }
}
