//! The flags that override the configuration for one call.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tracing_subscriber::filter::LevelFilter;

use crate::syntax::parse_timeout;

#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectArgs {
    /// Client certificate
    #[arg(long, value_name = "PEM", env = "TELEXEC_CERT", hide_env_values = true)]
    pub(crate) cert: Option<PathBuf>,
    /// Private key of the client certificate
    #[arg(long, value_name = "PEM", env = "TELEXEC_KEY", hide_env_values = true)]
    pub(crate) key: Option<PathBuf>,
    /// CA that must have issued the agent's certificate
    #[arg(long, value_name = "PEM", env = "TELEXEC_CA", hide_env_values = true)]
    pub(crate) ca: Option<PathBuf>,
    /// Host name expected in the agent's certificate [default: the target's host]
    #[arg(long, value_name = "NAME", env = "TELEXEC_SERVER_NAME", hide_env_values = true)]
    pub(crate) server_name: Option<String>,
    /// Connection timeout [default: 10s]
    #[arg(long, value_name = "DUR", value_parser = parse_timeout)]
    pub(crate) connect_timeout: Option<Duration>,
    /// Level of the log on standard error: off, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", env = "TELEXEC_LOG_LEVEL", hide_env_values = true, default_value = "error")]
    pub(crate) log_level: LevelFilter,
}
