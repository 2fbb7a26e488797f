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
    /// Make the authority: ca.pem and ca.key
    Init(CertsInitArgs),
    /// Make a certificate and its key, signed by the authority
    Issue(CertsIssueArgs),
    /// Print what certificates say
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
    /// The authority's name
    #[arg(long, value_name = "CN", default_value = "telexec CA")]
    pub(crate) name: String,
    /// Days that it is valid
    #[arg(long, value_name = "N", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36500))]
    pub(crate) days: u32,
    /// Replace an authority; what it issued is worth nothing then
    #[arg(long)]
    pub(crate) force: bool,
}

/// Who shows the certificate. What is for both lets an agent's host call other agents.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct CertsSide {
    /// For an agent
    #[arg(long)]
    pub(crate) server: bool,
    /// For a caller
    #[arg(long)]
    pub(crate) client: bool,
    /// For both: whoever has the agent's key may then call as NAME
    #[arg(long)]
    pub(crate) both: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without --dns and --ip, the certificate is for NAME itself.

Examples:
  telexec certs issue build-7 --server
  telexec certs issue build-7 --server --dns build-7.example.org --ip 10.0.0.7
  telexec certs issue alice --client --uri spiffe://example.org/alice")]
pub(crate) struct CertsIssueArgs {
    /// Who it is for; also the name of the files
    pub(crate) name: String,
    /// A host name that it is for; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) dns: Vec<String>,
    /// An IP address that it is for; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) ip: Vec<IpAddr>,
    /// A URI that it is for, such as spiffe://DOMAIN/PATH; may be repeated
    #[arg(long, value_name = "URI")]
    pub(crate) uri: Vec<String>,
    #[command(flatten)]
    pub(crate) side: CertsSide,
    /// Days that it is valid, at most as long as the authority
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36500))]
    pub(crate) days: u32,
    /// Directory of the authority [default: ~/.config/telexec/certs]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Directory for the new files [default: the authority's]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Replace files of that name
    #[arg(long)]
    pub(crate) force: bool,
}
