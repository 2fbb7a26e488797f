//! The flags that override the configuration for one call.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use telexec_config::Overrides;
use tracing_subscriber::filter::LevelFilter;

use crate::syntax::parse_timeout;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectArgs {
    /// Client certificate
    #[arg(long, hide_short_help = true, value_name = "PEM", env = "TELEXEC_CERT", hide_env_values = true)]
    #[arg(value_parser = file())]
    pub(crate) cert: Option<PathBuf>,
    /// Private key of the client certificate
    #[arg(long, hide_short_help = true, value_name = "PEM", env = "TELEXEC_KEY", hide_env_values = true)]
    #[arg(value_parser = file())]
    pub(crate) key: Option<PathBuf>,
    /// CA that must have issued the agent's certificate
    #[arg(long, hide_short_help = true, value_name = "PEM", env = "TELEXEC_CA", hide_env_values = true)]
    #[arg(value_parser = file())]
    pub(crate) ca: Option<PathBuf>,
    /// Name in the agent's certificate, or its SPIFFE ID; {host} is the target's name or host [default: the host]
    #[arg(long, hide_short_help = true, value_name = "NAME", env = "TELEXEC_SERVER_NAME", hide_env_values = true)]
    pub(crate) server_name: Option<String>,
    /// File with an access token to send instead of a certificate; or set TELEXEC_ACCESS_TOKEN to the token
    #[arg(
        long,
        hide_short_help = true,
        value_name = "FILE",
        env = "TELEXEC_ACCESS_TOKEN_FILE",
        hide_env_values = true
    )]
    #[arg(value_parser = file())]
    pub(crate) access_token_file: Option<PathBuf>,
    /// Socket of the SPIFFE Workload API to get certificates from, such as unix:///run/spire/agent/public/api.sock
    #[arg(long, hide_short_help = true, value_name = "URI", env = "TELEXEC_SPIFFE_SOCKET", hide_env_values = true)]
    pub(crate) spiffe_socket: Option<String>,
    /// SPIFFE ID to use, if the Workload API issues several [default: the first]
    #[arg(long, hide_short_help = true, value_name = "ID", env = "TELEXEC_SPIFFE_ID", hide_env_values = true)]
    pub(crate) spiffe_id: Option<String>,
    /// Connection timeout [default: 10s]
    #[arg(long, hide_short_help = true, value_name = "DUR", value_parser = parse_timeout)]
    pub(crate) connect_timeout: Option<Duration>,
    /// Log on standard error: off, error, warn, info, debug, trace
    #[arg(long, hide_short_help = true, value_name = "LEVEL", env = "TELEXEC_LOG_LEVEL", hide_env_values = true)]
    #[arg(default_value = "error")]
    pub(crate) log_level: LevelFilter,
    /// Replaces the port of the target; set by `telexec ssh -p` alone.
    #[arg(skip)]
    pub(crate) port: Option<u16>,
    /// How long to wait for an agent that is away; set by the commands that can.
    #[arg(skip)]
    pub(crate) queue: Option<Duration>,
}

impl From<&ConnectArgs> for Overrides {
    fn from(args: &ConnectArgs) -> Self {
        let ConnectArgs { cert, key, ca, server_name, access_token_file, spiffe_socket, spiffe_id, .. } = args.clone();
        let ConnectArgs { connect_timeout, port, queue, .. } = *args;
        // a variable that clap has read comes after the flags
        let is_flag = |value: &OsStr, variable: &str| std::env::var_os(variable).as_deref() != Some(value);
        let path = |path: Option<PathBuf>, variable| path.filter(|path| is_flag(path.as_os_str(), variable));
        let text = |text: Option<String>, variable| text.filter(|text| is_flag(OsStr::new(text), variable));
        Self {
            cert: path(cert, "TELEXEC_CERT"),
            key: path(key, "TELEXEC_KEY"),
            ca: path(ca, "TELEXEC_CA"),
            server_name: text(server_name, "TELEXEC_SERVER_NAME"),
            access_token_file: path(access_token_file, "TELEXEC_ACCESS_TOKEN_FILE"),
            spiffe_socket: text(spiffe_socket, "TELEXEC_SPIFFE_SOCKET"),
            spiffe_id: text(spiffe_id, "TELEXEC_SPIFFE_ID"),
            connect_timeout,
            port,
            queue,
        }
    }
}

/// A path. It may be empty, since a variable that is set to nothing is as good as unset.
fn file() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

impl ConnectArgs {
    /// The flags that say how to connect, as they were given, without those that are in the environment.
    pub(crate) fn given(&self) -> impl Iterator<Item = String> {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.to_string_lossy().into_owned());
        let flags = [
            ("--cert", "TELEXEC_CERT", path(&self.cert)),
            ("--key", "TELEXEC_KEY", path(&self.key)),
            ("--ca", "TELEXEC_CA", path(&self.ca)),
            ("--server-name", "TELEXEC_SERVER_NAME", self.server_name.clone()),
            ("--access-token-file", "TELEXEC_ACCESS_TOKEN_FILE", path(&self.access_token_file)),
            ("--spiffe-socket", "TELEXEC_SPIFFE_SOCKET", self.spiffe_socket.clone()),
            ("--spiffe-id", "TELEXEC_SPIFFE_ID", self.spiffe_id.clone()),
        ];
        let given = flags.into_iter().filter_map(|(flag, variable, value)| {
            let value = value.filter(|value| std::env::var(variable).ok().as_ref() != Some(value))?;
            Some([flag.to_owned(), value])
        });
        given.flatten()
    }
}
