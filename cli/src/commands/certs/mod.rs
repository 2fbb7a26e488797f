//! `telexec certs`: a private CA.
//!
//! `ca` signs, `index` notes what was issued, and `store` is the directory with both, locked. `profile` is what a certificate
//! is for. `serve` issues to machines that have a `token`; `enroll` is such a machine.

mod ca;
mod enroll;
mod files;
mod index;
mod init;
mod issue;
mod list;
mod profile;
mod renew;
mod revoke;
mod serve;
mod show;
mod store;
mod token;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};

use crate::args::CertsAction;
use crate::output::{Failure, json, print_message};

/// The exit code of failures.
const FAILED: u8 = 1;
/// Allows for clocks that are behind.
const CLOCK_SKEW: Duration = Duration::from_secs(300);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) fn run(action: CertsAction) -> Result<(), Failure> {
    match action {
        CertsAction::Init(args) => init::init(&args),
        CertsAction::Issue(args) => issue::issue(&args),
        CertsAction::List(args) => list::list(&args),
        CertsAction::Renew(args) => renew::renew(&args),
        CertsAction::Revoke(args) => revoke::revoke(&args),
        CertsAction::Crl(args) => revoke::crl(&args),
        CertsAction::Token(args) => token::token(&args),
        CertsAction::Serve(args) => serve::serve(&args),
        CertsAction::Enroll(args) => enroll::enroll(&args),
        CertsAction::Show { files } => show::show(&files),
    }
}

/// The given directory, or the default one of the user.
fn directory(given: Option<&PathBuf>) -> Result<PathBuf, Failure> {
    if let Some(directory) = given {
        return Ok(directory.clone());
    }
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = variable("XDG_CONFIG_HOME").or_else(|| variable("HOME").map(|home| home.join(".config")));
    config
        .map(|config| config.join("telexec/certs"))
        .ok_or_else(|| Failure::message(FAILED, "HOME is not set: use --dir"))
}

fn new_key() -> Result<KeyPair, Failure> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|error| failed("cannot generate a key", &error))
}

/// Warns that a certificate ends sooner than asked for.
fn say_cut(name: &str, end: SystemTime) {
    print_message(&format!(
        "{name}: valid until {} only, the end of the CA; `telexec certs renew --ca` extends that",
        date(end)
    ));
}

/// In UTC, to the second.
fn date(time: SystemTime) -> String {
    let text = json::time(time);
    text.and_then(|time| time.split('.').next().map(|seconds| format!("{seconds}Z"))).unwrap_or_else(|| "?".to_owned())
}

fn sha256(data: &[u8]) -> Vec<u8> {
    digest::digest(&digest::SHA256, data).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of hexadecimal digits; others end it.
fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().map_while(|digit| digit.to_digit(16)).collect();
    let (bytes, _) = digits.as_chunks::<2>();
    bytes.iter().filter_map(|[high, low]| u8::try_from(high * 16 + low).ok()).collect()
}

fn failed(what: impl std::fmt::Display, error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::new(FAILED, error).context(what)
}
