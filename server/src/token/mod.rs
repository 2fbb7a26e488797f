//! JSON Web Tokens (RFC 7519): callers who have no certificate, or for whom a gateway calls.
//!
//! `issuer` has the settings of one issuer and verifies its tokens, with the keys of `keys`: from a file (`key_set`), or from
//! where the issuer publishes them (`published`, by `http`). `claims` matches what a token says against patterns, and `open_call`
//! watches calls that outlast their token.

mod claims;
mod config;
mod http;
mod issuer;
mod key_set;
mod keys;
mod open_call;
mod published;
mod times;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use jsonwebtoken::dangerous::insecure_decode_claims;
use serde::Deserialize;
use telexec_engine::Workers;
use telexec_executor::ExecutorError;
use tokio::task::JoinSet;

pub use self::config::TokenIssuerConfig;
use self::issuer::Issuer;
pub(crate) use self::key_set::KeySet;
pub(crate) use self::open_call::Token;
use crate::call::caller::Caller;
use crate::identity::is_printed;
use crate::invalid::InvalidSetting;
use crate::reload::{Reload, ReloadState};

/// Longer tokens are refused unread.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// Of a text of a caller in messages.
const MAX_SHOWN_BYTES: usize = 128;
/// Identities of other kinds begin with these.
const RESERVED: [&str; 5] = ["spiffe", "tcp", "tls", "unix", "vsock"];
/// What clocks may differ by.
const LEEWAY_SECONDS: u64 = 30;

/// The issuers whose tokens an agent accepts; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenIssuers(Arc<Vec<Arc<Issuer>>>);

/// What a token claims of itself before it is verified.
#[derive(Deserialize)]
struct Unverified {
    iss: String,
}

impl TokenIssuers {
    /// # Errors
    /// A setting is invalid, or a file cannot be used.
    pub(crate) fn load(configured: &BTreeMap<String, TokenIssuerConfig>) -> Result<Self, InvalidSetting> {
        let (mut seen, mut issuers) = (BTreeSet::new(), Vec::new());
        for (name, config) in configured {
            check_name(name)?;
            let invalid = |text: String| InvalidSetting(format!("token_issuers.{name}.{text}"));
            if !seen.insert(&config.issuer) {
                return Err(invalid("issuer: another table has the same one".to_owned()));
            }
            issuers.push(Arc::new(Issuer::load(name, config).map_err(invalid)?));
        }
        Ok(Self(Arc::new(issuers)))
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Of the files with their keys.
    pub(crate) fn reload_states(&self) -> impl Iterator<Item = ReloadState> {
        self.0.iter().filter_map(|issuer| issuer.reload_state())
    }

    /// Keeps their keys current. Never returns.
    pub(crate) async fn follow(self, reload: Reload, workers: Workers) {
        let mut following = JoinSet::new();
        for issuer in self.0.iter() {
            following.spawn(Arc::clone(issuer).follow_keys(reload.clone(), workers.clone()));
        }
        following.join_all().await;
        std::future::pending().await
    }

    /// Who makes a call with these headers: whom its token names, or the peer of the connection. Tokens are verified by
    /// `workers`.
    ///
    /// # Errors
    /// Nobody who is known.
    pub(crate) async fn caller(
        &self,
        connection: &Arc<Caller>,
        headers: &HeaderMap,
        workers: &Workers,
    ) -> Result<Arc<Caller>, ExecutorError> {
        match bearer(headers)? {
            Some(token) => {
                let token = self.issuer(token)?.verify(connection, token, workers).await?;
                Ok(Arc::new(Caller::with_token(connection, token)))
            }
            None if connection.is_authenticated() => Ok(Arc::clone(connection)),
            None if headers.contains_key(AUTHORIZATION) => {
                Err(unauthenticated("the authorization header is not of the form: Bearer TOKEN"))
            }
            None => Err(unauthenticated(
                "the call has no token, and its connection no client certificate that the agent has asked for: use --access-token-file, or the header authorization: Bearer TOKEN",
            )),
        }
    }

    /// The issuer that a token claims to be of.
    fn issuer(&self, token: &str) -> Result<&Arc<Issuer>, ExecutorError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(refused(&format!("it is longer than {MAX_TOKEN_BYTES} bytes")));
        }
        let Unverified { iss } = insecure_decode_claims(token)
            .map_err(|_| refused("it is not a signed JSON Web Token with an issuer (iss)"))?;
        let issuer = self.0.iter().find(|issuer| issuer.issuer == iss);
        issuer.ok_or_else(|| refused(&format!("its issuer (iss), \"{}\", is none of token_issuers", shown(&iss))))
    }

    /// Whether this token is accepted at this second since the epoch.
    #[cfg(fuzzing)]
    pub(crate) fn accepts(&self, connection: &Caller, headers: &HeaderMap, now: u64) -> bool {
        let accepted = |token| {
            let issuer = self.issuer(token)?;
            issuer.verified(connection, token, &issuer.last_keys(), now)
        };
        bearer(headers).is_ok_and(|token| token.is_some_and(|token| accepted(token).is_ok()))
    }

    /// The identity that these claims name, if they had been verified, at this second since the epoch.
    #[cfg(fuzzing)]
    pub(crate) fn named(&self, claims: &claims::Claims, connection: &Caller, now: u64) -> Option<String> {
        let named = self.0.first()?.named(claims, connection, now).ok()?;
        Some(named.identity.to_string())
    }
}

/// Identities begin with the name of the table.
fn check_name(name: &str) -> Result<(), InvalidSetting> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !name.is_empty() && name.bytes().all(is_plain) && !RESERVED.contains(&name) {
        return Ok(());
    }
    let what = format!("expected a-z, 0-9 and -, and none of {}", RESERVED.join(", "));
    Err(InvalidSetting(format!("token_issuers.{name}: the name of the table begins the identities of callers: {what}")))
}

/// A text of a caller in a message to it, and in the log.
fn shown(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_SHOWN_BYTES);
    let text = text.get(..end).unwrap_or_default();
    text.chars().map(|c| if is_printed(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

/// The token of a call; other schemes than Bearer are for others, such as a proxy.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, ExecutorError> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (first, second) = (given.next(), given.next());
    if second.is_some() {
        return Err(unauthenticated("the call has several authorization headers"));
    }
    let Some(value) = first else { return Ok(None) };
    let value = value.to_str().map_err(|_| unauthenticated("the authorization header is not ASCII"))?;
    Ok(match value.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Some(token.trim()),
        _ => None,
    })
}

fn unauthenticated(reason: &str) -> ExecutorError {
    ExecutorError::Unauthenticated { reason: reason.to_owned() }
}

/// Why a token is not accepted.
fn refused(reason: &str) -> ExecutorError {
    unauthenticated(&format!("the token is not accepted: {reason}"))
}

/// Seconds since the epoch.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}
