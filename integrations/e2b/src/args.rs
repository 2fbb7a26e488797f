//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;
use telexec_client::Target;
use telexec_executor::parse_size;

use crate::home;

/// Lets the unmodified SDKs of E2B run commands, terminals and files on telexec's agents
///
/// It answers E2B's control plane and, for the sandboxes that it has given out, the protocols of envd. A sandbox is a target:
/// creating one takes a free target, killing it ends all that runs there and frees it.
#[derive(Debug, Parser)]
#[command(name = "telexec-e2b", version, after_help = AFTER)]
pub(crate) struct Args {
    /// Where to listen: tcp://ADDRESS:PORT or unix:///PATH
    #[arg(long, value_name = "ADDRESS", env = "TELEXEC_E2B_LISTEN", default_value = "tcp://127.0.0.1:3000")]
    pub(crate) listen: Listen,

    /// An agent whose machine is a sandbox: unix:///PATH, HOST:PORT or vsock://CID:PORT; may be repeated
    #[arg(long = "target", value_name = "TARGET", required_unless_present = "templates")]
    pub(crate) targets: Vec<Target>,

    /// Give this target to sandboxes of this template only; may be repeated. A template that is not named here takes the
    /// targets that no template names
    #[arg(long = "template", value_name = "NAME=TARGET", value_parser = template)]
    pub(crate) templates: Vec<(String, Target)>,

    /// File with the API keys that are accepted, one a line. Without it only loopback and Unix sockets can be listened on
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// PEM file with the certificate chain to serve TLS with
    #[arg(long, value_name = "PEM", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// PEM file with its private key
    #[arg(long, value_name = "PEM", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Owns its sandboxes: another gateway of the same targets must have another name, and this one the same after a restart
    /// [default: the host name and where it listens]
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) name: Option<String>,

    /// User of commands and files that name none [default: the agent's]
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,

    /// Home directory of every sandbox, which is EMPTIED before and after each: it must be empty, or not there, when a target is
    /// used for the first time. Needs --state-dir [default: a directory for each sandbox, below telexec-e2b in the user's home]
    #[arg(long, value_name = "PATH", value_parser = home::emptied, requires = "state_dir")]
    pub(crate) home: Option<String>,

    /// Directory on the targets for who has taken them, the same for all gateways of a target; not below --home
    /// [default, without --home: .telexec-e2b in the home of the agent's user]
    #[arg(long, value_name = "PATH", value_parser = absolute)]
    pub(crate) state_dir: Option<String>,

    /// The longest time that a sandbox may ask for
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = positive)]
    pub(crate) max_timeout: Duration,

    /// How long a paused sandbox keeps its target
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = positive)]
    pub(crate) max_pause: Duration,

    /// Bytes of a file that is uploaded, once it is unpacked
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = parse_size)]
    pub(crate) max_file_size: u64,

    /// PEM file with the certificate chain that is shown to agents, for targets over TCP
    #[arg(long, value_name = "PEM", requires = "key", requires = "ca")]
    pub(crate) cert: Option<PathBuf>,

    /// PEM file with its private key
    #[arg(long, value_name = "PEM", requires = "cert")]
    pub(crate) key: Option<PathBuf>,

    /// PEM file with the CA certificates that agents are verified against
    #[arg(long, value_name = "PEM", requires = "cert")]
    pub(crate) ca: Option<PathBuf>,
}

const AFTER: &str = "\
Examples:
  telexec-e2b --target unix:///run/telexec/agent.sock
  telexec-e2b --listen tcp://0.0.0.0:443 --tls-cert web.pem --tls-key web.key --token-file keys \\
    --target box1 --target box2 --cert me.pem --key me.key --ca ca.pem
Clients: E2B_API_URL=http://127.0.0.1:3000 E2B_SANDBOX_URL=http://127.0.0.1:3000 E2B_API_KEY=KEY";

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = || format!("{text:?} cannot be listened on: expected tcp://ADDRESS:PORT or unix:///PATH");
        match text.split_once("://") {
            Some(("tcp", address)) => address.parse().map(Self::Tcp).map_err(|_| expected()),
            Some(("unix", path)) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            _ => Err(expected()),
        }
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp://{address}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

impl Listen {
    /// Only this machine reaches it.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

fn template(text: &str) -> Result<(String, Target), String> {
    match text.split_once('=') {
        Some((name, target)) if !name.is_empty() => {
            target.parse().map(|target| (name.to_owned(), target)).map_err(|error| format!("{error}"))
        }
        _ => Err("expected NAME=TARGET".to_owned()),
    }
}

/// It is part of every claim, whose length is limited.
fn name(text: &str) -> Result<String, String> {
    const MAX_BYTES: usize = 255;
    match text.len() {
        1..=MAX_BYTES => Ok(text.to_owned()),
        _ => Err(format!("must have 1 to {MAX_BYTES} bytes")),
    }
}

fn absolute(text: &str) -> Result<String, String> {
    match home::is_plain(text) {
        true => Ok(text.to_owned()),
        false => Err("must be absolute, without \"..\" and a slash at the end".to_owned()),
    }
}

fn positive(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if !time.is_zero() => Ok(time),
        Ok(_) => Err("it must be longer than 0".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_written() {
        for text in ["tcp://127.0.0.1:3000", "tcp://[::1]:3000", "unix:///run/e2b.sock"] {
            let listen: Listen = text.parse().unwrap();
            assert_eq!(listen.to_string(), text);
            assert!(listen.is_local());
        }
        assert!(!"tcp://0.0.0.0:1".parse::<Listen>().unwrap().is_local());
        for wrong in ["127.0.0.1:1", "tcp://localhost", "unix://x", "http://127.0.0.1:1"] {
            assert!(wrong.parse::<Listen>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_template_names_a_target() {
        assert_eq!(template("base=unix:///a=b").unwrap().0, "base");
        for wrong in ["base", "=unix:///a", "base=", "base=unix://a"] {
            assert!(template(wrong).is_err(), "{wrong}");
        }
    }
}
