//! `telexec certs`: a private CA, for a first setup of mutual TLS.

mod ca;
mod files;
mod issue;
mod show;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rcgen::{DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, SerialNumber};
use time::OffsetDateTime;

use crate::args::CertsAction;
use crate::output::Failure;

/// The exit code of failures.
const FAILED: u8 = 1;
/// Allows for clocks that are behind.
const CLOCK_SKEW: Duration = Duration::from_secs(300);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) fn run(action: CertsAction) -> Result<(), Failure> {
    match action {
        CertsAction::Init(args) => ca::init(&args),
        CertsAction::Issue(args) => issue::issue(&args),
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

/// A random positive number of 16 bytes.
fn new_serial() -> Result<SerialNumber, Failure> {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|error| failed("cannot generate a serial number", &error))?;
    if let Some(first) = bytes.first_mut() {
        *first = (*first & 0x7f) | 0x40;
    }
    Ok(SerialNumber::from_slice(&bytes))
}

/// From shortly before now, for this many days.
fn validity(days: u32) -> (OffsetDateTime, OffsetDateTime) {
    let now = SystemTime::now();
    ((now - CLOCK_SKEW).into(), (now + DAY * days).into())
}

fn common_name(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

fn failed(what: impl std::fmt::Display, error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::new(FAILED, error).context(what)
}
