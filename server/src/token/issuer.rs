//! One issuer: whom its tokens may name, and how they are verified.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Validation, decode, decode_header};
use serde_json::Value;
use telexec_engine::Workers;
use telexec_executor::ExecutorError;
use telexec_executor::text::error_chain;

use super::claims::{ClaimPatterns, Claims};
use super::config::TokenIssuerConfig;
use super::http::HttpClient;
use super::key_set::{KeySet, KeysFile};
use super::keys::Keys;
use super::open_call::{Named, Token};
use super::published::PublishedKeys;
use super::{refused, seconds, times};
use crate::call::caller::Caller;
use crate::digest::from_hex;
use crate::identity::Identity;
use crate::identity::patterns::NamePatterns;
use crate::invalid::InvalidSetting;
use crate::reload::{Changes, Reload, Watched};

/// Identities of other kinds begin with these.
const RESERVED: [&str; 5] = ["spiffe", "tcp", "tls", "unix", "vsock"];

/// An issuer of tokens.
#[derive(Debug)]
pub(crate) struct Issuer {
    /// Of the table, which the identities of callers begin with.
    name: String,
    url: String,
    audiences: Vec<String>,
    name_claim: String,
    names: NamePatterns,
    claims: ClaimPatterns,
    roles: Vec<(String, ClaimPatterns)>,
    /// `None`: only connections by TLS without a certificate may present them.
    presented_by: Option<NamePatterns>,
    max_lifetime: Duration,
    pub(super) call_grace: Duration,
    keys: Keys,
}

impl Issuer {
    /// # Errors
    /// What is wrong with a setting, which begins with its key.
    pub(super) fn load(name: &str, config: &TokenIssuerConfig) -> Result<Self, String> {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if name.is_empty() || !name.bytes().all(is_plain) || RESERVED.contains(&name) {
            let reserved = RESERVED.join(", ");
            return Err(format!(
                "issuer: the table's name begins identities: it may have a-z, 0-9 and -, and not be one of {reserved}"
            ));
        }
        for (key, list) in [("audiences", &config.audiences), ("names", &config.names)] {
            if list.is_empty() {
                return Err(format!("{key} is empty: no token would be accepted"));
            }
        }
        let patterns =
            |key: &str, patterns: &Vec<String>| NamePatterns::new(key, patterns).map_err(|InvalidSetting(text)| text);
        let role =
            |(role, claims): (&String, &_)| Ok((role.clone(), ClaimPatterns::new(&format!("roles.{role}"), claims)?));
        Ok(Self {
            name: name.to_owned(),
            url: config.issuer.clone(),
            audiences: config.audiences.clone(),
            name_claim: config.name_claim.clone(),
            names: patterns("names", &config.names)?,
            claims: ClaimPatterns::new("claims", &config.claims)?,
            roles: config.roles.iter().map(role).collect::<Result<_, String>>()?,
            presented_by: config.presented_by.as_ref().map(|names| patterns("presented_by", names)).transpose()?,
            max_lifetime: config.max_lifetime,
            call_grace: config.call_grace,
            keys: keys(config)?,
        })
    }

    /// The claim `iss` of its tokens.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Keeps its keys current. Never returns.
    pub(super) async fn follow_keys(self: Arc<Self>, reload: Reload, workers: Workers) {
        self.keys.follow(reload, workers).await;
    }

    pub(super) fn key_changes(&self) -> Changes<KeySet> {
        self.keys.changes()
    }

    pub(super) fn last_keys(&self) -> Arc<KeySet> {
        self.keys.last()
    }

    /// Verifies a token that `connection` has sent.
    ///
    /// # Errors
    /// It is not accepted; [`ExecutorError::Unreachable`]: its keys are not known now.
    pub(super) async fn verify(
        self: &Arc<Self>,
        connection: &Caller,
        token: &str,
        now: SystemTime,
    ) -> Result<Token, ExecutorError> {
        self.check_presenter(connection)?;
        let header = decode_header(token).map_err(|error| refused(&reason(&error)))?;
        let keys = self.keys.get(|keys| !keys.candidates(&header).is_empty()).await;
        let keys = keys.map_err(|why| ExecutorError::Unreachable {
            endpoint: format!("the token issuer {}", self.url),
            source: why.into(),
        })?;
        let claims = verify_signature(&keys, token, &self.validation()).map_err(|why| refused(&why))?;
        let named = self.named(&claims, connection, seconds(now))?;
        Ok(Token::new(self, token, keys, named))
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
                "this connection is of {}, and tokens of {name} are for connections without a client certificate",
                connection.identity
            ))),
            Some(gateways) if !connection.is_authenticated() || !gateways.contain(connection.identity.as_str()) => {
                Err(refused(&format!("this connection is of none of token_issuers.{name}.presented_by")))
            }
            _ => Ok(()),
        }
    }

    /// But for the signature: the issuer and the audience. Times are checked with messages of their own.
    fn validation(&self) -> Validation {
        let mut validation = Validation::default();
        validation.set_issuer(&[&self.url]);
        validation.set_audience(&self.audiences);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.validate_exp = false;
        validation
    }

    fn identity(&self, claims: &Claims) -> Result<Identity, ExecutorError> {
        let claim = &self.name_claim;
        let name = claims.get(claim).and_then(Value::as_str);
        let name = name.ok_or_else(|| refused(&format!("it has no claim {claim}, which would name the caller")))?;
        let identity = Identity::from_name(&format!("{}:{name}", self.name)).filter(|_| !name.is_empty());
        let identity = identity.ok_or_else(|| refused(&format!("its claim {claim} cannot be a name")))?;
        if !self.names.contain(name) {
            return Err(refused(&format!("{name:?} is none of token_issuers.{}.names", self.name)));
        }
        Ok(identity)
    }

    /// Whether a token is still signed by a key of its issuer.
    pub(super) fn is_signed(&self, token: &str, keys: &KeySet) -> bool {
        verify_signature(keys, token, &self.validation()).is_ok()
    }
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
    let http = HttpClient::new(keys_ca.as_deref()).map_err(|error| format!("keys_ca: {error}"))?;
    Ok(Keys::Published(Box::new(PublishedKeys::new(&config.issuer, keys_url.as_deref(), http)?)))
}

/// The claims of a token that one of these keys has signed.
fn verify_signature(keys: &KeySet, token: &str, validation: &Validation) -> Result<Claims, String> {
    let header = decode_header(token).map_err(|error| reason(&error))?;
    let mut why = "no key of its issuer fits its header (kid and alg)".to_owned();
    let validation = Validation { algorithms: vec![header.alg], ..validation.clone() };
    for key in keys.candidates(&header) {
        match decode::<Claims>(token, key, &validation) {
            Ok(verified) => return Ok(verified.claims),
            Err(error) => why = reason(&error),
        }
    }
    Err(why)
}

fn reason(error: &Error) -> String {
    match error.kind() {
        ErrorKind::InvalidSignature => "its signature is not by a key of its issuer".to_owned(),
        ErrorKind::InvalidAudience => "it is for others: none of its audiences (aud) is one of the agent's".to_owned(),
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
