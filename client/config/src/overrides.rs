//! What goes before the configuration for one call.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use telexec_client::AccessToken;

use crate::Credentials;

/// Settings of one call, which go before the environment and the configuration; an empty path or name is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// PEM: the client's certificate.
    pub cert: Option<PathBuf>,
    /// PEM: its private key.
    pub key: Option<PathBuf>,
    /// PEM: the CA that must have issued the agent's certificate.
    pub ca: Option<PathBuf>,
    /// The name in the agent's certificate, or its SPIFFE ID; `{host}` is the target's name, or else its host.
    pub server_name: Option<String>,
    /// A file with an access token.
    pub access_token_file: Option<PathBuf>,
    /// The socket of the SPIFFE Workload API that certificates are from.
    pub spiffe_socket: Option<String>,
    /// The SPIFFE ID to use, if it issues several.
    pub spiffe_id: Option<String>,
    /// Timeout for connecting.
    pub connect_timeout: Option<Duration>,
    /// Replaces the port of the target.
    pub port: Option<u16>,
    /// How long to wait for an agent that is away.
    pub queue: Option<Duration>,
}

impl Overrides {
    /// The credentials among them.
    pub(crate) fn credentials(&self) -> Credentials {
        let path = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Credentials {
            cert: path(&self.cert),
            key: path(&self.key),
            ca: path(&self.ca),
            server_name: text(&self.server_name),
            access_token_file: path(&self.access_token_file),
            spiffe_socket: text(&self.spiffe_socket),
            spiffe_id: text(&self.spiffe_id),
            access_token: None,
        }
    }
}

/// What the environment says: `TELEXEC_CERT`, `TELEXEC_KEY`, `TELEXEC_CA`, `TELEXEC_SERVER_NAME`, `TELEXEC_SPIFFE_SOCKET`,
/// `TELEXEC_SPIFFE_ID`, and `TELEXEC_ACCESS_TOKEN_FILE` or else `TELEXEC_ACCESS_TOKEN`.
pub(crate) fn from_environment() -> Credentials {
    let variable = |name: &str| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
    let path = |name| variable(name).map(PathBuf::from);
    let text = |name| variable(name).and_then(|text| text.into_string().ok());
    let access_token_file = path("TELEXEC_ACCESS_TOKEN_FILE");
    Credentials {
        cert: path("TELEXEC_CERT"),
        key: path("TELEXEC_KEY"),
        ca: path("TELEXEC_CA"),
        server_name: text("TELEXEC_SERVER_NAME"),
        spiffe_socket: text("TELEXEC_SPIFFE_SOCKET"),
        spiffe_id: text("TELEXEC_SPIFFE_ID"),
        access_token: text("TELEXEC_ACCESS_TOKEN").filter(|_| access_token_file.is_none()).map(AccessToken::Text),
        access_token_file,
    }
}
