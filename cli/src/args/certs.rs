//! The command line of `telexec certs`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use telexec_enrollment::EnrollArgs;

use crate::syntax::parse_timeout;

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
    /// List the certificates that the CA has issued
    List(CertsListArgs),
    /// Renew certificates: new ones for the same names and keys
    Renew(CertsRenewArgs),
    /// Revoke certificates, and write the revocation list: crl.pem
    Revoke(CertsRevokeArgs),
    /// Write the revocation list again, before it is out of date
    Crl(CertsCrlArgs),
    /// Make a one-time token, by which a machine gets a certificate
    Token(CertsTokenArgs),
    /// Issue certificates to machines with a token, and renew those of machines that have one
    Serve(CertsServeArgs),
    /// Get a certificate by a token, or renew it, on the machine where it is used
    Enroll(CertsEnrollArgs),
    /// Print the contents of certificates and revocation lists
    #[command(after_help = "\
Example:
  telexec certs show ~/.config/telexec/certs/ca.pem
  telexec certs show /etc/telexec/crl.pem")]
    Show {
        /// PEM files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

/// Default validity of the CA.
pub(crate) const CA_DAYS: u32 = 3650;

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
    #[arg(long, value_name = "N", default_value_t = CA_DAYS, value_parser = clap::value_parser!(u32).range(1..=36500))]
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

/// The names in a certificate.
#[derive(Debug, Args)]
pub(crate) struct CertsNames {
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
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without --dns and --ip, NAME is used as the host name.

Examples:
  telexec certs issue build-7 --server
  telexec certs issue build-7 --server --dns build-7.example.org --ip 10.0.0.7
  telexec certs issue alice --client --uri spiffe://example.org/alice")]
pub(crate) struct CertsIssueArgs {
    #[command(flatten)]
    pub(crate) names: CertsNames,
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

#[derive(Debug, Args)]
#[command(after_help = "\
STATUS is valid, renewed (there is a newer one), expired or revoked.

Examples:
  telexec certs list
  telexec certs list --json | jq -r 'select(.status == \"valid\") | .name'")]
pub(crate) struct CertsListArgs {
    /// List also those that have been renewed
    #[arg(long)]
    pub(crate) all: bool,
    /// Print one JSON object per certificate
    #[arg(long)]
    pub(crate) json: bool,
    /// Directory of the CA [default: ~/.config/telexec/certs]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    group = clap::ArgGroup::new("which").required(true).args(["selectors", "all", "ca"]),
    after_help = "\
A renewed certificate is for the same key, so nothing secret is copied to the
machine that has it. The previous one stays valid until its end.

Examples:
  telexec certs renew web1
  telexec certs renew --all --within 30d
  telexec certs renew alice --new-key"
)]
pub(crate) struct CertsRenewArgs {
    /// Names, or serial numbers
    #[arg(value_name = "NAME|SERIAL")]
    pub(crate) selectors: Vec<String>,
    /// All that have neither expired nor been revoked
    #[arg(long, conflicts_with = "selectors")]
    pub(crate) all: bool,
    /// The CA itself: a new ca.pem for the same ca.key
    #[arg(long, conflicts_with_all = ["selectors", "all", "within", "new_key", "out"])]
    pub(crate) ca: bool,
    /// Only those that expire within this time
    #[arg(long, value_name = "DUR", value_parser = parse_timeout)]
    pub(crate) within: Option<Duration>,
    /// Make new keys too
    #[arg(long)]
    pub(crate) new_key: bool,
    /// Validity in days, at most that of the CA [default: as before; of the CA 3650]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=36500))]
    pub(crate) days: Option<u32>,
    /// Directory of the CA [default: ~/.config/telexec/certs]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Directory for the files [default: the CA's]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A name revokes all certificates that were issued for it, and its tokens. Agents
refuse them, on open connections too, once they have the new list (client_crl).

Examples:
  telexec certs revoke alice
  telexec certs revoke --reason key-compromise alice
  telexec certs revoke 4f:0a:... --dir ca")]
pub(crate) struct CertsRevokeArgs {
    /// Names, or serial numbers
    #[arg(value_name = "NAME|SERIAL", required = true)]
    pub(crate) selectors: Vec<String>,
    /// Why, for the revocation list; agents refuse the certificate whatever it is
    #[arg(long)]
    pub(crate) reason: Option<RevokeReason>,
    /// Directory of the CA [default: ~/.config/telexec/certs]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

/// The reasons of RFC 5280 that a CA has for certificates of machines and persons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RevokeReason {
    KeyCompromise,
    AffiliationChanged,
    Superseded,
    CessationOfOperation,
    PrivilegeWithdrawn,
}

#[derive(Debug, Args)]
#[command(after_help = "\
`certs renew` and `certs revoke` write it too, for 90 days.

Example:
  telexec certs crl --days 365")]
pub(crate) struct CertsCrlArgs {
    /// Days until the next one is to be written; agents use an older list too, and warn of it
    #[arg(long, value_name = "N", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=36500))]
    pub(crate) days: u32,
    /// Directory of the CA [default: ~/.config/telexec/certs]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The machine that gets the token makes its own key: `telexecd enroll` for an agent,
`telexec certs enroll` for a caller. A token serves one machine.

Examples:
  telexec certs token web1 --server --dns web1.example.org --out web1.token
  telexec certs token alice --client --ttl 1d --out alice.token")]
pub(crate) struct CertsTokenArgs {
    #[command(flatten)]
    pub(crate) names: CertsNames,
    #[command(flatten)]
    pub(crate) usage: CertsUsage,
    /// Validity of the certificate in days, at most that of the CA
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36500))]
    pub(crate) days: u32,
    /// How long the token can be used
    #[arg(long, value_name = "DUR", default_value = "1h", value_parser = parse_timeout)]
    pub(crate) ttl: Duration,
    /// File for the token [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long)]
    pub(crate) force: bool,
    /// Directory of the CA [default: ~/.config/telexec/certs]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Machines call it with `telexecd enroll` and `telexec certs enroll`. Each request is a
line on standard error. Renewal needs no token, but a certificate that is valid and
not revoked.

Examples:
  telexec certs serve
  telexec certs serve --dir ca2 --trust ca    # while ca2 takes the place of ca")]
pub(crate) struct CertsServeArgs {
    /// Address to listen on
    #[arg(long, value_name = "URI", default_value = "tcp://0.0.0.0:7444", value_parser = parse_listen)]
    pub(crate) listen: String,
    /// Directory of another CA that machines are to trust, and whose certificates are renewed; may be repeated
    #[arg(long, value_name = "DIR")]
    pub(crate) trust: Vec<PathBuf>,
    /// Directory of the CA [default: ~/.config/telexec/certs]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The key is made here and stays here. `telexecd enroll` is the same for agents.

Examples:
  telexec certs enroll --server ca1 --token-file alice.token
  telexec certs enroll --server ca1 --renew
  telexec certs enroll --csr --name alice")]
pub(crate) struct CertsEnrollArgs {
    #[command(flatten)]
    pub(crate) enroll: EnrollArgs,
    /// Directory for the files [default: ~/.config/telexec/certs]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

/// `tcp://ADDRESS:PORT` without the scheme.
fn parse_listen(text: &str) -> Result<String, String> {
    let address = text.strip_prefix("tcp://").unwrap_or(text);
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    port.map(|_| address.to_owned()).ok_or_else(|| "expected ADDRESS:PORT, such as 0.0.0.0:7444".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::args::Cli;

    #[test]
    fn which_side_it_is_for_has_to_be_said() {
        let sides = |line: &[&str]| {
            let line = ["telexec", "certs", "issue", "a"].iter().chain(line);
            Cli::try_parse_from(line).map(drop).map_err(|error| error.to_string())
        };
        for side in ["--server", "--client", "--both"] {
            assert!(sides(&[side]).is_ok(), "{side}");
        }
        assert!(sides(&[]).unwrap_err().contains("<--server|--client|--both>"));
        assert!(sides(&["--server", "--client"]).is_err());
    }
}
