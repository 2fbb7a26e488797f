//! What goes before the configuration for one call.

use std::path::PathBuf;
use std::time::Duration;

/// Settings of one call; an empty path or name is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// PEM: the client's certificate.
    pub cert: Option<PathBuf>,
    /// PEM: its private key.
    pub key: Option<PathBuf>,
    /// PEM: the CA that must have issued the agent's certificate.
    pub ca: Option<PathBuf>,
    /// The name in the agent's certificate.
    pub server_name: Option<String>,
    /// Timeout for connecting.
    pub connect_timeout: Option<Duration>,
    /// Replaces the port of the target.
    pub port: Option<u16>,
    /// How long to wait for an agent that is away.
    pub queue: Option<Duration>,
}

impl Overrides {
    /// What the environment says: `TELEXEC_CERT`, `TELEXEC_KEY`, `TELEXEC_CA` and `TELEXEC_SERVER_NAME`.
    pub fn from_environment() -> Self {
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        let server_name = std::env::var("TELEXEC_SERVER_NAME").ok();
        Self {
            cert: path("TELEXEC_CERT"),
            key: path("TELEXEC_KEY"),
            ca: path("TELEXEC_CA"),
            server_name,
            ..Self::default()
        }
    }
}
