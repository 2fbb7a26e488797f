//! The command line of `telexecd`. A flag overrides its environment variable, and that the file.

mod audit;
mod health;
pub mod subcommand;

use std::path::{Path, PathBuf};

use clap::{ArgAction, Parser};
use telexec_engine::ContainmentKind;

use crate::address::ListenAddress;
use crate::args::subcommand::Subcommand;
use crate::config::{Config, ConfigError, KeeperMode, LogFormat, RequiredContainment};
use crate::invalid::InvalidSetting;

const OTLP_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// The telexec agent: runs commands on this machine for authorized callers, over gRPC
#[derive(Debug, Parser)]
#[command(
    name = "telexecd",
    version,
    disable_help_flag = true,
    after_help = "Every flag but --config and --check-config is also a key of the configuration file (with _ for -), and an environment \
variable TELEXECD_…; precedence: flag, environment, file.\n\n\
Examples:\n  \
telexecd --listen unix:///run/telexec/agent.sock\n  \
telexecd --listen tcp://0.0.0.0:7443 --tls-cert web1.pem --tls-key web1.key --client-ca ca.pem"
)]
pub struct Args {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", env = "TELEXECD_CONFIG", hide_env_values = true, global = true)]
    config: Option<PathBuf>,
    /// Address to listen on: unix:///path.sock, tcp://host:port, vsock://cid:port (`any` for any cid) or systemd: (the
    /// sockets that systemd passes); may be repeated
    #[arg(long, value_name = "URI", env = "TELEXECD_LISTEN", hide_env_values = true, value_delimiter = ',')]
    listen: Vec<String>,
    /// Address for Prometheus metrics over HTTP: tcp://host:port (plaintext on loopback addresses, otherwise with the agent's
    /// certificates) or unix:///path.sock [default: none]
    #[arg(long, value_name = "URI", env = "TELEXECD_METRICS_LISTEN", hide_env_values = true)]
    metrics_listen: Option<String>,
    /// OpenTelemetry collector on this machine to export spans to, such as http://127.0.0.1:4317 [default:
    /// OTEL_EXPORTER_OTLP_ENDPOINT, or none]
    #[arg(long, value_name = "URL", env = "TELEXECD_OTLP_ENDPOINT", hide_env_values = true)]
    otlp_endpoint: Option<String>,
    /// The agent's certificate chain, for tcp://
    #[arg(long, value_name = "PEM", env = "TELEXECD_TLS_CERT", hide_env_values = true)]
    tls_cert: Option<PathBuf>,
    /// The agent's private key
    #[arg(long, value_name = "PEM", env = "TELEXECD_TLS_KEY", hide_env_values = true)]
    tls_key: Option<PathBuf>,
    /// CA certificates that callers are verified against
    #[arg(long, value_name = "PEM", env = "TELEXECD_CLIENT_CA", hide_env_values = true)]
    client_ca: Option<PathBuf>,
    /// Revocation lists of these CAs; like the certificates, reloaded on SIGHUP and when the file changes
    #[arg(long, value_name = "PEM", env = "TELEXECD_CLIENT_CRL", hide_env_values = true)]
    client_crl: Option<PathBuf>,
    /// Policy: who may do what, in Cedar; like the certificates, reloaded on SIGHUP and when the file changes
    #[arg(long, value_name = "FILE", env = "TELEXECD_POLICY", hide_env_values = true)]
    policy: Option<PathBuf>,
    /// Allow tcp:// without TLS, on loopback addresses only
    #[arg(long, env = "TELEXECD_INSECURE", hide_env_values = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL")]
    insecure: Option<bool>,
    /// Directory for the agent's own files [default: a temporary one]
    #[arg(long, value_name = "DIR", env = "TELEXECD_STATE_DIR", hide_env_values = true)]
    state_dir: Option<PathBuf>,
    /// How to track the processes of a command: cgroup-v2, cgroup-v1 or process-group [default: the best that works]
    #[arg(long, value_name = "KIND", env = "TELEXECD_CONTAINMENT", hide_env_values = true)]
    containment: Option<ContainmentKind>,
    /// Refuse to start unless cgroups can contain commands; KIND is cgroup
    #[arg(
        long,
        value_name = "KIND",
        env = "TELEXECD_REQUIRE_CONTAINMENT",
        hide_env_values = true,
        hide_possible_values = true
    )]
    require_containment: Option<RequiredContainment>,
    /// Start the agent and all commands from a separate process, telexec-keeper, which restarts the agent if it crashes: on,
    /// off, or auto (on if root starts the agent and telexec-keeper is installed) [default: auto]
    #[arg(long, value_name = "WHEN", env = "TELEXECD_KEEPER", hide_env_values = true, hide_possible_values = true)]
    keeper: Option<KeeperMode>,
    /// Unprivileged user to run the agent as; the keeper stays root. Requires a keeper, root and cgroup v2 [default: the
    /// keeper's]
    #[arg(long, value_name = "USER", env = "TELEXECD_AGENT_USER", hide_env_values = true)]
    agent_user: Option<String>,
    /// Log format [default: text]
    #[arg(long, value_name = "FORMAT", env = "TELEXECD_LOG_FORMAT", hide_env_values = true)]
    log_format: Option<LogFormat>,
    /// Log level: error, warn, info, debug, trace or off; or filter directives, such as telexec_engine=debug,info
    /// [default: info]
    #[arg(long, value_name = "LEVEL", env = "TELEXECD_LOG_LEVEL", hide_env_values = true)]
    log_level: Option<String>,
    /// Check the configuration, the certificates and the policy, then exit with 0 or 78
    #[arg(long, env = "TELEXECD_CHECK_CONFIG", hide_env_values = true)]
    pub check_config: bool,
    /// Print help
    #[arg(short, long, global = true, action = ArgAction::HelpShort)]
    help: Option<bool>,
    /// A task other than serving
    #[command(subcommand)]
    pub subcommand: Option<Subcommand>,
}

impl Args {
    /// The configuration file, which alone defines roles.
    pub fn file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// The configuration: the file, overridden by the environment, overridden by the flags.
    ///
    /// # Errors
    /// The file, or an address to listen on, cannot be used.
    pub fn config(&self) -> Result<Config, ConfigError> {
        self.config_with(self.file())
    }

    /// The same with another file.
    ///
    /// # Errors
    /// As [`Args::config`].
    pub(crate) fn config_with(&self, file: Option<&Path>) -> Result<Config, ConfigError> {
        let mut config = match file {
            Some(path) => Config::from_file(path)?,
            None => Config::default(),
        };
        if !self.listen.is_empty() {
            let listen = self
                .listen
                .iter()
                .map(|uri| uri.parse::<ListenAddress>().map_err(|error| ConfigError::from(InvalidSetting(error))));
            config.listen = listen.collect::<Result<_, _>>()?;
        }
        if let Some(uri) = &self.metrics_listen {
            config.metrics_listen = Some(uri.parse().map_err(|error| ConfigError::from(InvalidSetting(error)))?);
        }
        replace_some(&mut config.otlp_endpoint, &self.otlp_endpoint);
        if config.otlp_endpoint.is_none() {
            // what programs have in common
            config.otlp_endpoint = std::env::var(OTLP_ENDPOINT).ok().filter(|endpoint| !endpoint.is_empty());
        }
        config.insecure = self.insecure.unwrap_or(config.insecure);
        replace_some(&mut config.tls_cert, &self.tls_cert);
        replace_some(&mut config.tls_key, &self.tls_key);
        replace_some(&mut config.client_ca, &self.client_ca);
        replace_some(&mut config.client_crl, &self.client_crl);
        replace_some(&mut config.policy, &self.policy);
        replace_some(&mut config.state_dir, &self.state_dir);
        config.containment = self.containment.or(config.containment);
        config.require_containment = self.require_containment.or(config.require_containment);
        config.keeper = self.keeper.unwrap_or(config.keeper);
        replace_some(&mut config.agent_user, &self.agent_user);
        config.log_format = self.log_format.unwrap_or(config.log_format);
        if let Some(level) = &self.log_level {
            config.log_level.clone_from(level);
        }
        Ok(config)
    }
}

fn replace_some<T: Clone>(value: &mut Option<T>, by: &Option<T>) {
    if by.is_some() {
        value.clone_from(by);
    }
}
