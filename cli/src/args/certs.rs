//! The command line of `telexec certs`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Example, for an agent on build-7 and a caller named alice:
  telexec certs init
  telexec certs issue build-7 --server
  telexec certs issue alice --client")]
pub(crate) struct CertsArgs {
    #[command(subcommand)]
    pub(crate) action: CertsAction,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum CertsAction {
    /// Create the CA: ca.pem and ca.key
    Init(CertsInitArgs),
    /// Issue a certificate and its key, signed by the CA
    Issue(CertsIssueArgs),
    /// Print the contents of certificates
    #[command(after_help = "\
Example:
  telexec certs show ~/.config/telexec/certs/ca.pem")]
    Show {
        /// PEM files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  telexec certs init --name 'our build machines'")]
pub(crate) struct CertsInitArgs {
    /// Directory for both files [default: ~/.config/telexec/certs]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Common name of the CA
    #[arg(long, value_name = "CN", default_value = "telexec CA")]
    pub(crate) name: String,
    /// Validity in days
    #[arg(long, value_name = "N", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36500))]
    pub(crate) days: u32,
    /// Replace an existing CA; certificates that it issued are no longer accepted
    #[arg(long)]
    pub(crate) force: bool,
}

/// Extended key usage. A certificate for both lets an agent's host call other agents.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct CertsUsage {
    /// For an agent: server authentication
    #[arg(long)]
    pub(crate) server: bool,
    /// For a caller: client authentication
    #[arg(long)]
    pub(crate) client: bool,
    /// For both; anyone who has the agent's key can then call agents as NAME
    #[arg(long)]
    pub(crate) both: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without --dns and --ip, NAME is used as the host name.

Examples:
  telexec certs issue build-7 --server
  telexec certs issue build-7 --server --dns build-7.example.org --ip 10.0.0.7
  telexec certs issue alice --client --uri spiffe://example.org/alice")]
pub(crate) struct CertsIssueArgs {
    /// Subject, and base name of the files
    pub(crate) name: String,
    /// Subject alternative host name; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) dns: Vec<String>,
    /// Subject alternative IP address; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) ip: Vec<IpAddr>,
    /// Subject alternative URI, such as spiffe://DOMAIN/PATH; may be repeated
    #[arg(long, value_name = "URI")]
    pub(crate) uri: Vec<String>,
    #[command(flatten)]
    pub(crate) usage: CertsUsage,
    /// Validity in days, at most that of the CA
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36500))]
    pub(crate) days: u32,
    /// Directory of the CA [default: ~/.config/telexec/certs]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Directory for the new files [default: the CA's]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Replace existing files
    #[arg(long)]
    pub(crate) force: bool,
}
