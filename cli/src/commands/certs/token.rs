//! `telexec certs token`: one-time tokens, by which machines get certificates.

use std::time::{Duration, SystemTime};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use rcgen::SubjectPublicKeyInfo;
use serde::{Deserialize, Serialize};
use telexec_enrollment::Token;

use super::index::{Index, Issued, Status};
use super::profile::Profile;
use super::store::Store;
use super::{DAY, FAILED, directory, failed, files, hex, sha256};
use crate::args::CertsTokenArgs;
use crate::output::{self, Failure, exit};

/// A token that was given out. Its secret is known to its holder only.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct PendingToken {
    /// SHA-256 of the secret, in hexadecimal.
    hash: String,
    #[serde(flatten)]
    pub(super) profile: Profile,
    /// Of the certificate.
    #[serde(with = "humantime_serde")]
    lifetime: Duration,
    #[serde(with = "humantime_serde")]
    pub(super) expire_time: SystemTime,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) used: Option<Used>,
}

/// By whom a token was used.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Used {
    /// SHA-256 of the public key, in hexadecimal.
    key: String,
    /// Of the certificate.
    serial: String,
}

/// Why a token is worth nothing. Its holder is not told which.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Worthless {
    #[error("the token is unknown")]
    Unknown,
    #[error("the token for {0} has expired")]
    Expired(String),
    #[error("the token for {0} was used before, with another key: if the machine does not know why, revoke {0}")]
    Used(String),
    #[error("the certificate that the token for {0} got is revoked")]
    Revoked(String),
}

pub(super) fn token(args: &CertsTokenArgs) -> Result<(), Failure> {
    let profile = Profile::new(&args.names, &args.usage).map_err(|error| Failure::message(exit::USAGE, error))?;
    let directory = directory(args.dir.as_ref())?;
    super::issue::files_of(&profile.name, &directory, &directory)?;
    let out = args.out.as_deref();
    files::check_free(out.as_slice(), args.force)?;
    let mut store = Store::open(&directory)?;
    let token = Token::generate(&profile.name, &store.ca.public_key());
    let token = token.ok_or_else(|| Failure::message(FAILED, "cannot generate a token: there is no randomness"))?;
    store.index.tokens.push(PendingToken {
        hash: hex(&sha256(token.secret())),
        profile,
        lifetime: DAY * args.days,
        expire_time: SystemTime::now() + args.ttl,
        used: None,
    });
    store.save()?;
    // the reader of standard output may be slow
    drop(store);
    let text = format!("{token}\n");
    match out {
        Some(path) => files::place(path, files::SECRET, &text, args.force),
        None => output::print(text.as_bytes()),
    }
}

impl PendingToken {
    /// Whether it can still be used for the first time.
    pub(super) fn is_open(&self, now: SystemTime) -> bool {
        self.used.is_none() && now < self.expire_time
    }
}

impl Index {
    /// The token with this secret, for a machine with this key.
    ///
    /// # Errors
    /// It is worth nothing.
    pub(super) fn token(&self, secret: &[u8], key: &[u8], now: SystemTime) -> Result<&PendingToken, Worthless> {
        let hash = hex(&sha256(secret));
        let is_it = |token: &&PendingToken| verify_slices_are_equal(token.hash.as_bytes(), hash.as_bytes()).is_ok();
        let token = self.tokens.iter().find(is_it).ok_or(Worthless::Unknown)?;
        let name = || token.profile.name.clone();
        if now >= token.expire_time {
            return Err(Worthless::Expired(name()));
        }
        match &token.used {
            Some(used) if used.key != hex(&sha256(key)) => Err(Worthless::Used(name())),
            _ => Ok(token),
        }
    }
}

impl Store {
    /// Issues the certificate that a token is for, and saves that as one change; or returns it again, to the same key.
    pub(super) fn redeem(
        &mut self,
        secret: &[u8],
        key: &[u8],
        now: SystemTime,
    ) -> Result<Result<Issued, Worthless>, Failure> {
        let token = match self.index.token(secret, key, now) {
            Ok(token) => token.clone(),
            Err(worthless) => return Ok(Err(worthless)),
        };
        let (name, key_hash) = (token.profile.name.clone(), hex(&sha256(key)));
        if let Some(used) = token.used {
            let found = self.index.find(&used.serial);
            let valid = found.iter().find(|at| self.index.status(**at, now) != Status::Revoked);
            let issued = valid.and_then(|at| self.index.certificates.get(*at)).cloned();
            return Ok(issued.ok_or(Worthless::Revoked(name)));
        }
        let key = SubjectPublicKeyInfo::from_der(key).map_err(|error| failed(&name, &error))?;
        let (issued, _) = self.issue(&token.profile, &key, token.lifetime)?;
        if let Some(redeemed) = self.index.tokens.iter_mut().find(|other| other.hash == token.hash) {
            redeemed.used = Some(Used { key: key_hash, serial: issued.serial.clone() });
        }
        self.save()?;
        Ok(Ok(issued))
    }
}
