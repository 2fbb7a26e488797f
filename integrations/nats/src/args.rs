//! The command line.

use std::path::PathBuf;

use clap::Parser;
use telexec_client::Target;
use telexec_nats_client::subjects::token;

/// Runs commands from a NATS JetStream work queue on an agent that cannot be dialled
///
/// Requests are taken from telexec.run.NAME, and from telexec.run.label:LABEL for each label. The events of an execution
/// are published to telexec.out.ID, its end last. Requests about executions that run are answered on telexec.ctl.NAME.
#[derive(Debug, Parser)]
#[command(name = "telexec-nats", version, after_help = AFTER)]
pub(crate) struct Args {
    /// NATS server: nats://HOST:PORT, or tls://HOST:PORT; several, separated by commas, are of one cluster
    #[arg(long, value_name = "URL", env = "TELEXEC_NATS_URL")]
    pub(crate) url: String,

    /// The agent: unix:///PATH, HOST:PORT or vsock://CID:PORT
    #[arg(long, value_name = "TARGET", default_value = "unix:///run/telexec/agent.sock", env = "TELEXEC_NATS_TARGET")]
    pub(crate) target: Target,

    /// Name of the agent in subjects: letters, digits, - and _ [default: its host name, to the first dot]
    #[arg(long, value_name = "NAME", value_parser = token)]
    pub(crate) name: Option<String>,

    /// Also take requests for this label, which any agent with it may take; may be repeated
    #[arg(long = "label", value_name = "LABEL", value_parser = token)]
    pub(crate) labels: Vec<String>,

    /// Requests that are run at the same time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) concurrency: u16,

    /// NATS credentials: a file with a JWT and its nkey seed
    #[arg(long, value_name = "FILE", env = "TELEXEC_NATS_CREDS")]
    pub(crate) creds: Option<PathBuf>,

    /// NATS nkey: a file with a seed
    #[arg(long, value_name = "FILE", conflicts_with = "creds")]
    pub(crate) nkey: Option<PathBuf>,

    /// PEM file with the CA certificates that the NATS server is verified against [default: the system's]
    #[arg(long, value_name = "PEM")]
    pub(crate) nats_ca: Option<PathBuf>,

    /// PEM file with the certificate chain that is shown to the NATS server
    #[arg(long, value_name = "PEM", requires = "nats_key")]
    pub(crate) nats_cert: Option<PathBuf>,

    /// PEM file with its private key
    #[arg(long, value_name = "PEM", requires = "nats_cert")]
    pub(crate) nats_key: Option<PathBuf>,

    /// PEM file with the certificate chain that is shown to the agent, for a target over TCP
    #[arg(long, value_name = "PEM", requires = "key", requires = "ca")]
    pub(crate) cert: Option<PathBuf>,

    /// PEM file with its private key
    #[arg(long, value_name = "PEM", requires = "cert")]
    pub(crate) key: Option<PathBuf>,

    /// PEM file with the CA certificates that the agent is verified against
    #[arg(long, value_name = "PEM", requires = "cert")]
    pub(crate) ca: Option<PathBuf>,

    /// Accept what is signed with this nkey (U...); with CERT:KEY the agent is called with that certificate for it, so that
    /// its policy and audit log have the caller's identity. May be repeated. Without any, whoever the NATS server lets
    /// publish may run commands
    #[arg(long = "caller", value_name = "NKEY[=CERT:KEY]")]
    pub(crate) callers: Vec<String>,
}

const AFTER: &str = "\
Examples:
  telexec-nats --url nats://nats.example.org
  telexec-nats --url tls://nats.example.org --creds agent.creds --label web
  telexec-nats --url nats://nats.example.org --caller UAHF2CWQ...";
