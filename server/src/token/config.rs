//! The settings of an issuer: a table `[token_issuers.NAME]`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

/// An issuer of JSON Web Tokens, and whom it may name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenIssuerConfig {
    /// The claim `iss` of its tokens: a URL for OpenID Connect.
    pub issuer: String,
    /// The claim `aud` of its tokens has to have one of these. At least one.
    pub audiences: Vec<String>,
    /// Patterns of the names that it may give to callers; `*` and `?` match within one part of a name, `**` across parts, which
    /// `/` separates. The identity of a caller is the name of the table, a colon and this name. At least one.
    pub names: Vec<String>,
    /// The claim with the name of the caller. Default `sub`.
    #[serde(default = "default_name_claim")]
    pub name_claim: String,
    /// What other claims have to be: patterns of text by the name of the claim, or by a JSON Pointer. Of a list, one element has to
    /// match. Default: anything.
    #[serde(default)]
    pub claims: BTreeMap<String, Vec<String>>,
    /// Roles for the policy, by the claims that give them, in the same way; all claims have to match.
    #[serde(default)]
    pub roles: BTreeMap<String, BTreeMap<String, Vec<String>>>,
    /// A file with its public keys, a JWK Set (RFC 7517).
    pub keys_file: Option<PathBuf>,
    /// Where it publishes them: `https://`, or `http://` on a loopback address. Default, without `keys_file`: as its OpenID Connect
    /// configuration says (`/.well-known/openid-configuration`).
    pub keys_url: Option<String>,
    /// The CAs for that (PEM). Default: those of the system.
    pub keys_ca: Option<PathBuf>,
    /// Gateways: its tokens are accepted only on connections of these identities, given by patterns. Default: only on connections
    /// by TLS without a client certificate.
    pub presented_by: Option<Vec<String>>,
    /// Tokens that are valid for longer are refused. Default 24 h.
    #[serde(default = "default_max_lifetime", with = "humantime_serde")]
    pub max_lifetime: Duration,
    /// How long a call may run on after its token has expired, and the 30 seconds that clocks may differ by. Default 12 h.
    #[serde(default = "default_call_grace", with = "humantime_serde")]
    pub call_grace: Duration,
}

fn default_name_claim() -> String {
    "sub".to_owned()
}

fn default_max_lifetime() -> Duration {
    Duration::from_secs(24 * 60 * 60)
}

fn default_call_grace() -> Duration {
    Duration::from_secs(12 * 60 * 60)
}

impl TokenIssuerConfig {
    /// Makes paths absolute, which are relative to `directory`.
    pub(crate) fn resolve_paths(&mut self, directory: &Path) {
        for path in [&mut self.keys_file, &mut self.keys_ca].into_iter().flatten() {
            *path = directory.join(&*path);
        }
    }

    /// Whether its tokens are accepted on connections without a client certificate.
    pub(crate) fn admits_without_certificate(&self) -> bool {
        self.presented_by.is_none()
    }
}
