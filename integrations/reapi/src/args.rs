//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use telexec_client::Target;
use telexec_executor::parse_size;
use tonic::transport::Uri;

/// Runs actions of the Remote Execution API, from a server such as BuildGrid, on telexec's agents
///
/// For each target a bot session of the Remote Workers API is kept with the server. What it leases is fetched from the
/// content-addressable storage, laid out on the target, run there, and its outputs are uploaded.
#[derive(Debug, Parser)]
#[command(name = "telexec-reapi", version, after_help = AFTER)]
pub(crate) struct Args {
    /// The server that leases actions: grpc://HOST:PORT, or grpcs://HOST:PORT
    #[arg(long, value_name = "URL", env = "TELEXEC_REAPI_BOTS", value_parser = endpoint)]
    pub(crate) bots: Uri,

    /// The content-addressable storage [default: the same server]
    #[arg(long, value_name = "URL", value_parser = endpoint)]
    pub(crate) cas: Option<Uri>,

    /// The instance of both
    #[arg(long, value_name = "NAME", default_value = "")]
    pub(crate) instance: String,

    /// An agent that runs actions: unix:///PATH, HOST:PORT or vsock://CID:PORT; may be repeated
    #[arg(long = "target", value_name = "TARGET", required = true)]
    pub(crate) targets: Vec<Target>,

    /// Begin the ids of bots with this; it must stay the same, and be of no other worker [default: the host name of this
    /// machine]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Actions that each target runs at the same time [default: the processors that it has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) concurrency: Option<u16>,

    /// Directory on the targets, for blobs and for actions that run; it is created, its parents are not. If
    /// the agent does not run as root, choose one that its user can create; nobody else may write to its parents
    #[arg(long, value_name = "PATH", default_value = "/var/cache/telexec-reapi", value_parser = absolute)]
    pub(crate) work_dir: String,

    /// Bytes of blobs that are kept on each target. The inputs of one action must fit into it; while several are laid out
    /// there may be more, and what an action still uses stays on the disk until its end
    #[arg(long, value_name = "SIZE", default_value = "10GiB", value_parser = parse_size)]
    pub(crate) cache_size: u64,

    /// User that actions run as [default: the agent's]
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,

    /// Let actions choose this user with the platform property `user`; may be repeated
    #[arg(long = "allow-user", value_name = "USER")]
    pub(crate) allowed_users: Vec<String>,

    /// Announce this platform property, and take actions that ask for it; may be repeated
    #[arg(long = "property", value_name = "KEY=VALUE", value_parser = property)]
    pub(crate) properties: Vec<(String, String)>,

    /// Time limit of an action that has none, and the longest that one may ask for
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = positive)]
    pub(crate) max_timeout: Duration,

    /// Bytes of all output files of an action together, without stdout and stderr
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = parse_size)]
    pub(crate) max_output_size: u64,

    /// How blobs are named
    #[arg(long, value_name = "NAME", default_value = "sha256")]
    pub(crate) digest_function: DigestFunction,

    /// PEM file with the CA certificates that the servers are verified against [default: the system's]
    #[arg(long, value_name = "PEM")]
    pub(crate) tls_ca: Option<PathBuf>,

    /// PEM file with the certificate chain that is shown to the servers
    #[arg(long, value_name = "PEM", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// PEM file with its private key
    #[arg(long, value_name = "PEM", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

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
  telexec-reapi --bots grpc://buildgrid:50051 --target unix:///run/telexec/agent.sock
  telexec-reapi --bots grpcs://buildgrid.example.org:443 --target build1 --target build2 --cert me.pem --key me.key --ca ca.pem";

/// Paths below it have room for those of actions.
const MAX_WORK_DIR_BYTES: usize = 200;

/// Platform properties that this program announces or obeys itself.
const OWN_PROPERTIES: [&str; 6] = ["OSFamily", "ISA", "user", "memory", "cpus", "pids"];

/// The hash functions of the Remote Execution API that this program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DigestFunction {
    /// SHA-256
    Sha256,
    /// BLAKE3
    Blake3,
}

/// The URI that tonic connects to.
fn endpoint(text: &str) -> Result<Uri, String> {
    let expected = || format!("{text:?} is no server: expected grpc://HOST:PORT or grpcs://HOST:PORT");
    let (scheme, authority) = match text.split_once("://") {
        Some(("grpc", authority)) => ("http", authority),
        Some(("grpcs", authority)) => ("https", authority),
        _ => return Err(expected()),
    };
    let uri: Uri = format!("{scheme}://{authority}").parse().map_err(|_| expected())?;
    let is_whole = uri.port().is_some() && matches!(uri.path(), "" | "/") && uri.query().is_none();
    if is_whole { Ok(uri) } else { Err(expected()) }
}

fn absolute(text: &str) -> Result<String, String> {
    let is_plain = text.split('/').skip(1).all(|part| !matches!(part, "" | "." | ".."));
    let is_absolute = text.starts_with('/') && text != "/" && is_plain && !text.contains('\0');
    match text.len() {
        ..=MAX_WORK_DIR_BYTES if is_absolute => Ok(text.to_owned()),
        ..=MAX_WORK_DIR_BYTES => Err("must be absolute, without \"..\" or a trailing slash".to_owned()),
        _ => Err(format!("must have at most {MAX_WORK_DIR_BYTES} bytes")),
    }
}

fn property(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, _)) if OWN_PROPERTIES.contains(&key) => Err(format!("{key} is reserved")),
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
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
    fn servers_read_as_written() {
        assert_eq!(endpoint("grpc://[::1]:50051").unwrap().to_string(), "http://[::1]:50051/");
        assert_eq!(endpoint("grpcs://example.org:443").unwrap().to_string(), "https://example.org:443/");
        for wrong in
            ["example.org:1", "http://example.org:1", "grpc://example.org", "grpc://example.org:1/x", "grpc://"]
        {
            assert!(endpoint(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn properties_are_not_those_that_have_a_meaning() {
        assert_eq!(property("pool=a=b"), Ok(("pool".to_owned(), "a=b".to_owned())));
        for wrong in ["pool", "=a", "user=root", "OSFamily=plan9"] {
            assert!(property(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_work_directory_is_a_plain_path() {
        assert!(absolute("/var/tmp/x").is_ok());
        for wrong in ["", "/", "x", "/x/", "/x/../y", "/x//y", "/x\0", &"/x".repeat(101)] {
            assert!(absolute(wrong).is_err(), "{wrong:?}");
        }
    }
}
