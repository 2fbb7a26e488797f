//! The command line of `telexecd`. A flag goes before its environment variable, and that before the file.

mod health;
pub mod subcommand;

use std::path::PathBuf;

use clap::Parser;
use telexec_engine::ContainmentKind;

use crate::address::Listen;
use crate::args::subcommand::Subcommand;
use crate::config::{Config, ConfigError, LogFormat, RequiredContainment};
use crate::invalid::InvalidSetting;

const OTLP_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// The agent of telexec: runs commands on this machine for those who may ask, over gRPC
#[derive(Debug, Parser)]
#[command(
    name = "telexecd",
    version,
    after_help = "Every flag is also a key of the configuration file (with _ for -), and an environment \
variable TELEXECD_…; a flag goes before the environment, and that before the file.\n\n\
Examples:\n  \
telexecd --listen unix:///run/telexec/agent.sock\n  \
telexecd --listen tcp://0.0.0.0:7443 --tls-cert web1.pem --tls-key web1.key --client-ca ca.pem"
)]
pub struct Args {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", env = "TELEXECD_CONFIG")]
    config: Option<PathBuf>,
    /// Where to listen: unix:///path.sock, tcp://host:port, vsock://cid:port (or any for the cid) or systemd: (the sockets
    /// that systemd passes); may be repeated
    #[arg(long, value_name = "URI", env = "TELEXECD_LISTEN", value_delimiter = ',')]
    listen: Vec<String>,
    /// Where Prometheus may ask for metrics, by HTTP: tcp://host:port (plain on loopback addresses, else with the agent's
    /// certificates) or unix:///path.sock [default: nowhere]
    #[arg(long, value_name = "URI", env = "TELEXECD_METRICS_LISTEN")]
    metrics_listen: Option<String>,
    /// A collector of OpenTelemetry on this machine that spans are sent to, such as http://127.0.0.1:4317 [default:
    /// OTEL_EXPORTER_OTLP_ENDPOINT, or none]
    #[arg(long, value_name = "URL", env = "TELEXECD_OTLP_ENDPOINT")]
    otlp_endpoint: Option<String>,
    /// The agent's certificate chain, for tcp://
    #[arg(long, value_name = "PEM", env = "TELEXECD_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// The agent's private key
    #[arg(long, value_name = "PEM", env = "TELEXECD_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// The CAs whose certificates callers must present
    #[arg(long, value_name = "PEM", env = "TELEXECD_CLIENT_CA")]
    client_ca: Option<PathBuf>,
    /// Their revocation lists; like the certificates, read again on SIGHUP and when the file changes
    #[arg(long, value_name = "PEM", env = "TELEXECD_CLIENT_CRL")]
    client_crl: Option<PathBuf>,
    /// Who may do what (Cedar); like the certificates, read again on SIGHUP and when the file changes
    #[arg(long, value_name = "FILE", env = "TELEXECD_POLICY")]
    policy: Option<PathBuf>,
    /// Allow tcp:// without TLS, on loopback addresses only
    #[arg(long, env = "TELEXECD_INSECURE", num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "BOOL")]
    insecure: Option<bool>,
    /// Directory for the agent's own files [default: a temporary one]
    #[arg(long, value_name = "DIR", env = "TELEXECD_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// Keep processes together in just this way: cgroup-v2, cgroup-v1 or process-group [default: the best that works]
    #[arg(long, value_name = "KIND", env = "TELEXECD_CONTAINMENT")]
    containment: Option<ContainmentKind>,
    /// Do not start with less than this: cgroup
    #[arg(long, value_name = "KIND", env = "TELEXECD_REQUIRE_CONTAINMENT", hide_possible_values = true)]
    require_containment: Option<RequiredContainment>,
    /// What log lines look like [default: text]
    #[arg(long, value_name = "FORMAT", env = "TELEXECD_LOG_FORMAT")]
    log_format: Option<LogFormat>,
    /// error, warn, info, debug, trace, or filter directives [default: info]
    #[arg(long, value_name = "LEVEL", env = "TELEXECD_LOG_LEVEL")]
    log_level: Option<String>,
    /// Check the configuration, the certificates and the policy, then exit with 0 or 78
    #[arg(long, env = "TELEXECD_CHECK_CONFIG")]
    pub check_config: bool,
    /// What to do instead of serving
    #[command(subcommand)]
    pub subcommand: Option<Subcommand>,
}

impl Args {
    /// The configuration that the file, the environment and the flags come to.
    ///
    /// # Errors
    /// The file, or an address to listen on, cannot be used.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let mut config = match &self.config {
            Some(path) => Config::from_file(path)?,
            None => Config::default(),
        };
        if !self.listen.is_empty() {
            let listen = self
                .listen
                .iter()
                .map(|uri| uri.parse::<Listen>().map_err(|error| ConfigError::from(InvalidSetting(error))));
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
