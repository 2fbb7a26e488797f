//! Whose messages are accepted: those that are signed with an nkey (Ed25519) of the command line, or if that names none,
//! those that the NATS server lets through.
//!
//! A message is good for this agent until it expires, and once: a request to run something by its execution id, others since
//! their signatures are remembered.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::HeaderMap;
use nkeys::{KeyPair, KeyPairType};

use crate::args::Args;
use telexec_nats_client::headers::{self, EXPIRES, KEY, NONCE, SIGNATURE};
use telexec_nats_client::signature::signed;

/// No signature is good for longer.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);

/// That of a request about executions is not, since what was used is forgotten when this program ends.
const MAX_ONCE_AGE: Duration = Duration::from_secs(300);
/// Signatures that are remembered; further requests wait until some have expired.
const MAX_USED: usize = 100_000;

pub(crate) struct Callers {
    /// With the certificates that the agent is called with on their behalf.
    keys: BTreeMap<String, Option<(PathBuf, PathBuf)>>,
    /// Signatures that were used and are good once, with their expiry.
    used: Mutex<HashMap<Vec<u8>, u64>>,
}

/// Why a message is not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("{0} is missing: this agent accepts signed messages only")]
    Missing(&'static str),
    #[error("{EXPIRES} must be seconds since 1970, and within the next 24 hours by this machine's clock")]
    Expiry,
    #[error("it expired before it could be started: {EXPIRES} has passed by this machine's clock")]
    Expired,
    #[error("{KEY} is not the nkey of a caller that this agent accepts")]
    Unknown,
    #[error("{SIGNATURE} is not that of this message by {KEY}")]
    Forged,
    #[error("{EXPIRES} must be within the next 5 minutes by this machine's clock, for requests about executions")]
    TooLate,
    #[error("{SIGNATURE} was used before: sign each request with another {NONCE}")]
    Used,
    #[error("too many signed requests in a short time: try again later, or let them expire sooner")]
    TooMany,
}

/// A command line that names something else than nkeys.
#[derive(Debug, thiserror::Error)]
#[error("--caller {0}: must be the public nkey of a user (U...), perhaps with =CERT:KEY")]
pub(crate) struct BadCaller(String);

impl Callers {
    pub(crate) fn load(args: &Args) -> Result<Self, BadCaller> {
        let mut keys = BTreeMap::new();
        for caller in &args.callers {
            // a seed is secret
            let shown = if caller.starts_with('S') { "S..." } else { caller };
            let bad = || BadCaller(shown.to_owned());
            let (key, files) = match caller.split_once('=') {
                Some((key, files)) => (key, Some(files.split_once(':').ok_or_else(bad)?)),
                None => (&**caller, None),
            };
            let pair = KeyPair::from_public_key(key).map_err(|_| bad())?;
            if pair.key_pair_type() != KeyPairType::User {
                return Err(bad());
            }
            keys.insert(key.to_owned(), files.map(|(cert, key)| (cert.into(), key.into())));
        }
        Ok(Self { keys, used: Mutex::default() })
    }

    /// Those that have a certificate of their own.
    pub(crate) fn certificates(&self) -> impl Iterator<Item = (&str, &PathBuf, &PathBuf)> {
        self.keys.iter().filter_map(|(key, files)| files.as_ref().map(|(cert, own)| (&**key, cert, own)))
    }

    /// Who sent a message to this subject: a key, or "" if none are asked for.
    ///
    /// # Errors
    /// It is not accepted.
    pub(crate) fn accept(&self, subject: &str, headers: &HeaderMap, payload: &[u8]) -> Result<String, Refused> {
        if self.keys.is_empty() {
            return Ok(String::new());
        }
        let get = |name| headers::get(headers, name).ok_or(Refused::Missing(name));
        let (key, signature, _) = (get(KEY)?, get(SIGNATURE)?, get(EXPIRES)?);
        if !self.keys.contains_key(key) {
            return Err(Refused::Unknown);
        }
        let signature = headers::from_base64(signature).ok_or(Refused::Forged)?;
        let pair = KeyPair::from_public_key(key).map_err(|_| Refused::Unknown)?;
        pair.verify(&signed(subject, headers, payload), &signature).map_err(|_| Refused::Forged)?;
        Ok(key.to_owned())
    }

    /// As [`accept`](Self::accept), and not expired, for what must not be repeated.
    ///
    /// # Errors
    /// It is not accepted, or was before.
    pub(crate) fn accept_once(&self, subject: &str, headers: &HeaderMap, payload: &[u8]) -> Result<String, Refused> {
        let caller = self.accept(subject, headers, payload)?;
        not_expired(headers)?;
        if caller.is_empty() {
            return Ok(caller);
        }
        let signature = headers::get(headers, SIGNATURE).and_then(headers::from_base64).unwrap_or_default();
        let expires = headers::get(headers, EXPIRES).and_then(|expires| expires.parse().ok()).unwrap_or(u64::MAX);
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.len() >= MAX_USED {
            let now = now().as_secs();
            used.retain(|_, expires| *expires >= now);
        }
        match used.len() {
            _ if expires > now().saturating_add(MAX_ONCE_AGE).as_secs() => Err(Refused::TooLate),
            MAX_USED.. => Err(Refused::TooMany),
            _ if used.insert(signature, expires).is_some() => Err(Refused::Used),
            _ => Ok(caller),
        }
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Whether it may still be started.
///
/// # Errors
/// It has expired, or the time is malformed.
pub(crate) fn not_expired(headers: &HeaderMap) -> Result<(), Refused> {
    let Some(expires) = headers::get(headers, EXPIRES) else { return Ok(()) };
    let expires = Duration::from_secs(expires.parse().map_err(|_| Refused::Expiry)?);
    let now = now();
    match expires {
        expires if expires > now.saturating_add(MAX_AGE) => Err(Refused::Expiry),
        expires if expires <= now => Err(Refused::Expired),
        _ => Ok(()),
    }
}
