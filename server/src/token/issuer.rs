//! One issuer: whom its tokens may name, and how they are verified.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine};
use jsonwebtoken::dangerous::insecure_decode_claims;
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Validation, decode, decode_header};
use serde_json::Value;
use telexec_engine::{Lost, Workers};
use telexec_executor::ExecutorError;
use telexec_executor::text::error_chain;
use tracing::info;

use super::claims::{ClaimPatterns, Claims, find};
use super::config::TokenIssuerConfig;
use super::http::HttpClient;
use super::key_set::{KeySet, KeysFile};
use super::keys::Keys;
use super::open_call::{Named, Token};
use super::published::PublishedKeys;
use super::{refused, seconds, shown, times, unauthenticated};
use crate::call::caller::Caller;
use crate::digest::from_hex;
use crate::identity::Identity;
use crate::identity::patterns::NamePatterns;
use crate::invalid::InvalidSetting;
use crate::reload::{Changes, Reload, ReloadState, Watched};

/// An issuer of tokens.
#[derive(Debug)]
pub(crate) struct Issuer {
    /// Of the table, which the identities of callers begin with.
    name: String,
    /// The claim `iss` of its tokens.
    pub(super) issuer: String,
    name_claim: String,
    names: NamePatterns,
    claims: ClaimPatterns,
    roles: Vec<(String, ClaimPatterns)>,
    /// `None`: only connections by TLS without a certificate may present them.
    presented_by: Option<NamePatterns>,
    validation: Validation,
    max_lifetime: Duration,
    pub(super) call_grace: Duration,
    keys: Keys,
}

impl Issuer {
    /// # Errors
    /// What is wrong with a setting, which begins with its key.
    pub(super) fn load(name: &str, config: &TokenIssuerConfig) -> Result<Self, String> {
        check(config)?;
        let patterns =
            |key: &str, patterns: &Vec<String>| NamePatterns::new(key, patterns).map_err(|InvalidSetting(text)| text);
        let role = |(role, claims): (&String, &BTreeMap<_, _>)| {
            let key = format!("roles.{role}");
            if claims.is_empty() {
                return Err(format!("{key} is empty: every caller would have it"));
            }
            Ok((role.clone(), ClaimPatterns::new(&key, claims)?))
        };
        Ok(Self {
            name: name.to_owned(),
            issuer: config.issuer.clone(),
            name_claim: config.name_claim.clone(),
            names: patterns("names", &config.names)?,
            claims: ClaimPatterns::new("claims", &config.claims)?,
            roles: config.roles.iter().map(role).collect::<Result<_, String>>()?,
            presented_by: config.presented_by.as_ref().map(|names| patterns("presented_by", names)).transpose()?,
            validation: validation(config),
            max_lifetime: config.max_lifetime,
            call_grace: config.call_grace,
            keys: keys(config)?,
        })
    }

    /// Keeps its keys current. Never returns.
    pub(super) async fn follow_keys(self: Arc<Self>, reload: Reload, workers: Workers) {
        self.keys.follow(reload, workers).await;
    }

    pub(super) fn key_changes(&self) -> Changes<KeySet> {
        self.keys.changes()
    }

    pub(super) fn reload_state(&self) -> Option<ReloadState> {
        self.keys.reload_state()
    }

    pub(super) fn last_keys(&self) -> Arc<KeySet> {
        self.keys.last()
    }

    /// Whether its keys may be used now.
    pub(super) fn has_keys(&self) -> bool {
        self.keys.are_known()
    }

    /// Verifies a token that `connection` has sent, in the turn of its source.
    ///
    /// # Errors
    /// It is not accepted, or cannot be verified now.
    pub(super) async fn verify(
        self: &Arc<Self>,
        connection: &Arc<Caller>,
        token: &str,
        workers: &Workers,
    ) -> Result<Token, ExecutorError> {
        self.check_presenter(connection)?;
        let header = decode_header(token).map_err(|error| refused(&reason(&error)))?;
        let keys = self.keys.get(|keys| !keys.candidates(&header).is_empty()).await;
        let keys = keys.map_err(|why| {
            info!(issuer = self.issuer, why, "cannot verify a token");
            unauthenticated(
                "the token cannot be verified: the agent cannot get the keys of its issuer; its log says why",
            )
        })?;
        let (this, sender, token) = (Arc::clone(self), Arc::clone(connection), token.to_owned());
        let verify = move || this.verified(&sender, &token, &keys, seconds(SystemTime::now()));
        let verified = workers.run(&connection.source(), verify).await;
        verified.unwrap_or_else(|Lost| Err(ExecutorError::Internal("verifying the token failed".to_owned())))
    }

    /// The same at this second since the epoch, with these keys.
    ///
    /// # Errors
    /// It is not accepted.
    pub(super) fn verified(
        self: &Arc<Self>,
        connection: &Caller,
        token: &str,
        keys: &KeySet,
        now: u64,
    ) -> Result<Token, ExecutorError> {
        let (claims, key) = self.verify_signature(keys, token).map_err(|why| refused(&why))?;
        let named = self.named(&claims, connection, now)?;
        Ok(Token { issuer: Arc::clone(self), signed_by: key.clone(), named })
    }

    /// Whom the claims of a token name, at this second since the epoch.
    ///
    /// # Errors
    /// Nobody whom it may name, or not then or not here.
    pub(super) fn named(&self, claims: &Claims, connection: &Caller, now: u64) -> Result<Named, ExecutorError> {
        let expiry = times::check(claims, now, self.max_lifetime).map_err(|why| refused(&why))?;
        check_confirmation(claims, connection)?;
        if let Some(claim) = self.claims.mismatch(claims) {
            return Err(refused(&format!("its claim {claim} is not as token_issuers.{}.claims says", self.name)));
        }
        let identity = self.identity(claims)?;
        let roles = self.roles.iter().filter(|(_, patterns)| patterns.mismatch(claims).is_none());
        let roles = roles.map(|(role, _)| role.clone()).collect();
        let id = claims.get("jti").and_then(Value::as_str).map(str::to_owned);
        Ok(Named { identity, roles, id, expiry })
    }

    fn check_presenter(&self, connection: &Caller) -> Result<(), ExecutorError> {
        let name = &self.name;
        match &self.presented_by {
            None if connection.is_authenticated() => Err(refused(&format!(
                "this connection is of {}, and tokens of {name} are for connections by TLS without a client certificate, unless the agent has presented_by",
                connection.identity
            ))),
            Some(gateways) if !connection.is_authenticated() || !gateways.contain(connection.identity.as_str()) => {
                Err(refused(&format!("this connection is of none of token_issuers.{name}.presented_by")))
            }
            _ => Ok(()),
        }
    }

    fn identity(&self, claims: &Claims) -> Result<Identity, ExecutorError> {
        let claim = &self.name_claim;
        let name = find(claims, claim).and_then(Value::as_str);
        let name = name.ok_or_else(|| refused(&format!("it has no claim {claim}, which would name the caller")))?;
        let identity = Identity::from_token(&self.name, name);
        let identity = identity.ok_or_else(|| refused(&format!("its claim {claim} cannot be a name")))?;
        if !self.names.contain(name) {
            return Err(refused(&format!("{name:?} is none of token_issuers.{}.names", self.name)));
        }
        Ok(identity)
    }

    /// The claims of a token that one of these keys has signed, and the key.
    ///
    /// # Errors
    /// None has, or it is for others.
    fn verify_signature<'a>(&self, keys: &'a KeySet, token: &str) -> Result<(Claims, &'a Jwk), String> {
        let header = decode_header(token).map_err(|error| reason(&error))?;
        is_access_token(header.typ.as_deref())?;
        let mut why = "no key of its issuer fits its header (kid and alg)".to_owned();
        let validation = Validation { algorithms: vec![header.alg], ..self.validation.clone() };
        for (jwk, key) in keys.candidates(&header) {
            match decode::<Claims>(token, key, &validation) {
                Ok(verified) => return Ok((verified.claims, jwk)),
                Err(error) if matches!(error.kind(), ErrorKind::InvalidAudience) => return Err(wrong_audience(token)),
                Err(error) => why = reason(&error),
            }
        }
        Err(why)
    }
}

/// Settings with which no token would be accepted.
fn check(config: &TokenIssuerConfig) -> Result<(), String> {
    let texts = [("issuer", &config.issuer), ("name_claim", &config.name_claim)];
    let audiences = config.audiences.iter().map(|audience| ("audiences", audience));
    if let Some((key, _)) = texts.into_iter().chain(audiences).find(|(_, text)| text.is_empty()) {
        return Err(format!("{key}: expected a text that is not empty"));
    }
    if config.max_lifetime.is_zero() {
        return Err("max_lifetime is 0: no token would be accepted".to_owned());
    }
    let presented_by = config.presented_by.iter().map(|names| ("presented_by", names));
    for (key, list) in [("audiences", &config.audiences), ("names", &config.names)].into_iter().chain(presented_by) {
        if list.is_empty() {
            return Err(format!("{key} is empty: no token would be accepted"));
        }
    }
    Ok(())
}

fn keys(config: &TokenIssuerConfig) -> Result<Keys, String> {
    let TokenIssuerConfig { keys_file, keys_url, keys_ca, .. } = config;
    if let Some(path) = keys_file {
        if keys_url.is_some() || keys_ca.is_some() {
            return Err("keys_file: keys_url and keys_ca are for keys that are fetched".to_owned());
        }
        let file = Watched::load_unlogged(KeysFile(path.clone()));
        return file.map(Keys::File).map_err(|error| format!("keys_file: {}", error_chain(&error)));
    }
    let is_https = keys_url.as_ref().unwrap_or(&config.issuer).starts_with("https:");
    let http = HttpClient::new(keys_ca.as_deref(), is_https).map_err(|error| format!("keys_ca: {error}"))?;
    Ok(Keys::Published(Box::new(PublishedKeys::new(&config.issuer, keys_url.as_deref(), http)?)))
}

/// What is checked with the signature: the issuer and the audience. Times are checked with messages of their own.
fn validation(config: &TokenIssuerConfig) -> Validation {
    let mut validation = Validation::default();
    validation.set_issuer(&[&config.issuer]);
    validation.set_audience(&config.audiences);
    validation.set_required_spec_claims(&["exp", "iss", "aud"]);
    validation.validate_exp = false;
    validation
}

/// Issuers sign other things too, such as logout tokens, and say so (RFC 8725, section 3.11).
fn is_access_token(kind: Option<&str>) -> Result<(), String> {
    let kind = kind.unwrap_or("JWT").to_ascii_lowercase();
    match kind.strip_prefix("application/").unwrap_or(&kind) {
        "jwt" | "at+jwt" => Ok(()),
        _ => Err("its type (typ) is neither JWT nor at+jwt".to_owned()),
    }
}

fn wrong_audience(token: &str) -> String {
    let claims: Option<Claims> = insecure_decode_claims(token).ok();
    let audience = claims.as_ref().and_then(|claims| claims.get("aud")).map(Value::to_string).unwrap_or_default();
    format!("its audience (aud), {}, is none of the agent's", shown(&audience))
}

fn reason(error: &Error) -> String {
    match error.kind() {
        ErrorKind::InvalidSignature => "its signature is not by a key of its issuer".to_owned(),
        ErrorKind::InvalidIssuer => "its issuer (iss) is another one".to_owned(),
        ErrorKind::MissingRequiredClaim(claim) => format!("it has no claim {claim}"),
        ErrorKind::InvalidClaimFormat(claim) => format!("its claim {claim} is malformed"),
        _ => "it is not a signed JSON Web Token of a kind that is accepted (RS, PS, ES256, ES384, EdDSA)".to_owned(),
    }
}

/// A token that is bound to a key is worth nothing without it: RFC 8705 has the hash of a client certificate. Other bindings are
/// not checked here, so such tokens are not accepted.
fn check_confirmation(claims: &Claims, connection: &Caller) -> Result<(), ExecutorError> {
    let Some(confirmation) = claims.get("cnf") else { return Ok(()) };
    let bound = match confirmation.as_object() {
        Some(members) if members.len() == 1 => members.get("x5t#S256").and_then(Value::as_str),
        _ => None,
    };
    let bound = bound.ok_or_else(|| refused("it is bound (cnf) to something else than a client certificate"))?;
    let own = connection.certificate().and_then(|certificate| from_hex(&certificate.fingerprint));
    match own {
        Some(hash) if BASE64_URL_SAFE_NO_PAD.encode(&hash) == bound => Ok(()),
        _ => Err(refused("it is bound (cnf) to another client certificate than that of this connection")),
    }
}
