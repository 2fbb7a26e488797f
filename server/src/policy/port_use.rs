//! The attributes of a forward in policies.

use std::fmt;
use std::net::IpAddr;

use cedar_policy::RestrictedExpression as Value;

/// What is to be done with an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortUse {
    pub(crate) action: PortAction,
    pub(crate) endpoint: Endpoint,
    /// Of a Unix socket the name of the user who uses it; `None`: it is TCP, or there is no such user.
    pub(crate) user: Option<String>,
}

/// The actions of forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortAction {
    /// To connect to it.
    Forward,
    /// To listen on it.
    Listen,
}

/// Where to connect to, or to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Tcp {
        /// A name in lower case, or an address in its usual form.
        host: String,
        port: u16,
    },
    /// An absolute path in its shortest form.
    Unix(String),
}

impl PortAction {
    /// Its name in policies.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Forward => "Forward",
            Self::Listen => "Listen",
        }
    }
}

impl Endpoint {
    /// Whether only this machine reaches what listens there.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Self::Tcp { host, .. } => {
                host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
            }
            Self::Unix(_) => true,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => f.write_str(path),
        }
    }
}

impl PortUse {
    /// What applies to it.
    pub(super) fn context(&self) -> Vec<(String, Value)> {
        let text = |name: &str, value: &str| (name.to_owned(), Value::new_string(value.to_owned()));
        let mut context = match &self.endpoint {
            Endpoint::Tcp { host, port } => {
                vec![text("host", host), ("port".to_owned(), Value::new_long(i64::from(*port)))]
            }
            Endpoint::Unix(path) => vec![text("unix_path", path)],
        };
        context.extend(self.user.as_deref().map(|user| text("user", user)));
        context
    }

    /// Why an attribute of the context is missing.
    pub(super) fn why_missing(&self, attribute: &str) -> &'static str {
        match (&self.endpoint, attribute) {
            (Endpoint::Tcp { .. }, _) => "it is a TCP port, not a Unix socket",
            (Endpoint::Unix(_), "user") => "there is no such user",
            (Endpoint::Unix(_), _) => "it is a Unix socket, not a TCP port",
        }
    }
}
