//! `telexec certs`: a private certificate authority, good for a first set-up of mutual TLS.

mod authority;
mod files;
mod leaf;
mod show;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rcgen::{DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, SerialNumber};
use time::OffsetDateTime;

use crate::args::CertsAction;
use crate::output::Failure;

/// It could not be done.
const FAILED: u8 = 1;
/// For clocks that are behind this one.
const CLOCK_SKEW: Duration = Duration::from_secs(300);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) fn run(action: CertsAction) -> Result<(), Failure> {
    match action {
        CertsAction::Init(args) => authority::init(&args),
        CertsAction::Issue(args) => leaf::issue(&args),
        CertsAction::Show { files } => show::show(&files),
    }
}

/// The directory for all of it: the one given, or that of the user.
fn directory(given: Option<&PathBuf>) -> Result<PathBuf, Failure> {
    if let Some(directory) = given {
        return Ok(directory.clone());
    }
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = variable("XDG_CONFIG_HOME").or_else(|| variable("HOME").map(|home| home.join(".config")));
    config.map(|config| config.join("telexec/certs")).ok_or_else(|| Failure::text(FAILED, "HOME is not set: use --dir"))
}

fn new_key() -> Result<KeyPair, Failure> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|error| failed("cannot generate a key", &error))
}

/// A positive number of 16 bytes that no one can guess.
fn new_serial() -> Result<SerialNumber, Failure> {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|error| failed("cannot generate a serial number", &error))?;
    if let Some(first) = bytes.first_mut() {
        *first = (*first & 0x7f) | 0x40;
    }
    Ok(SerialNumber::from_slice(&bytes))
}

/// From a little before now, for so many days.
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
    Failure::new(FAILED, error).during(what)
}
