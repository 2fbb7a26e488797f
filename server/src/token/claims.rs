//! Patterns for the claims of a token.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::identity::patterns::NamePatterns;
use crate::invalid::InvalidSetting;

/// The claims of a token.
pub(super) type Claims = Map<String, Value>;

/// Claims, and the patterns of what they may be. All have to match.
#[derive(Clone, Debug)]
pub(super) struct ClaimPatterns(Vec<(String, NamePatterns)>);

impl ClaimPatterns {
    /// `key` is the setting that these are from.
    ///
    /// # Errors
    /// A pattern is malformed, or a claim has none.
    pub(super) fn new(key: &str, configured: &BTreeMap<String, Vec<String>>) -> Result<Self, String> {
        let claim = |(claim, patterns): (&String, &Vec<String>)| {
            let key = format!("{key}.{claim}");
            if patterns.is_empty() {
                return Err(format!("{key} is empty: nothing would match"));
            }
            let patterns = NamePatterns::new(&key, patterns).map_err(|InvalidSetting(text)| text)?;
            Ok((claim.clone(), patterns))
        };
        configured.iter().map(claim).collect::<Result<_, _>>().map(Self)
    }

    /// The first claim that does not match; `None`: all do.
    pub(super) fn mismatch(&self, claims: &Claims) -> Option<&str> {
        let matches = |claim: &str, patterns: &NamePatterns| match find(claims, claim) {
            Some(Value::Array(elements)) => elements.iter().any(|element| is_in(patterns, element)),
            Some(value) => is_in(patterns, value),
            None => false,
        };
        self.0.iter().find(|(claim, patterns)| !matches(claim, patterns)).map(|(claim, _)| claim.as_str())
    }
}

/// A claim by its name, or by a JSON Pointer (RFC 6901): `/realm_access/roles`.
pub(super) fn find<'a>(claims: &'a Claims, name: &str) -> Option<&'a Value> {
    let Some(pointer) = name.strip_prefix('/') else { return claims.get(name) };
    match pointer.find('/') {
        Some(end) => claims.get(pointer.get(..end)?)?.pointer(pointer.get(end..)?),
        None => claims.get(pointer),
    }
}

/// Numbers and truth values are written as in JSON.
fn is_in(patterns: &NamePatterns, value: &Value) -> bool {
    match value {
        Value::String(text) => patterns.contain(text),
        Value::Number(_) | Value::Bool(_) => patterns.contain(&value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}
