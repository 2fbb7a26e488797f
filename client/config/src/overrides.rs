//! What goes before the configuration for one call.

use std::path::PathBuf;
use std::time::Duration;

use telexec_client::AccessToken;

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
    /// A file with a JSON Web Token.
    pub access_token_file: Option<PathBuf>,
    /// The token itself, which goes before the file.
    pub access_token: Option<AccessToken>,
    /// Timeout for connecting.
    pub connect_timeout: Option<Duration>,
    /// Replaces the port of the target.
    pub port: Option<u16>,
    /// How long to wait for an agent that is away.
    pub queue: Option<Duration>,
}

impl Overrides {
    /// What the environment says: `TELEXEC_CERT`, `TELEXEC_KEY`, `TELEXEC_CA`, `TELEXEC_SERVER_NAME`, `TELEXEC_ACCESS_TOKEN_FILE` and
    /// `TELEXEC_ACCESS_TOKEN`.
    pub fn from_environment() -> Self {
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        Self {
            cert: path("TELEXEC_CERT"),
            key: path("TELEXEC_KEY"),
            ca: path("TELEXEC_CA"),
            server_name: std::env::var("TELEXEC_SERVER_NAME").ok(),
            access_token_file: path("TELEXEC_ACCESS_TOKEN_FILE"),
            access_token: Self::access_token_from_environment(),
            ..Self::default()
        }
    }

    /// `TELEXEC_ACCESS_TOKEN`, unless `TELEXEC_ACCESS_TOKEN_FILE` names a file.
    pub fn access_token_from_environment() -> Option<AccessToken> {
        let text = |name| std::env::var(name).ok().filter(|text: &String| !text.is_empty());
        text("TELEXEC_ACCESS_TOKEN").filter(|_| text("TELEXEC_ACCESS_TOKEN_FILE").is_none()).map(AccessToken::Text)
    }
}
