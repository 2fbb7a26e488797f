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
    let (first, rest) = pointer.split_at(pointer.find('/').unwrap_or(pointer.len()));
    claims.get(&first.replace("~1", "/").replace("~0", "~"))?.pointer(rest)
}

/// Numbers and truth values are written as in JSON.
fn is_in(patterns: &NamePatterns, value: &Value) -> bool {
    match value {
        Value::String(text) => patterns.contain(text),
        Value::Number(_) | Value::Bool(_) => patterns.contain(&value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_are_found_by_their_names_and_by_pointers() {
        let claims = json!({
            "sub": "a", "https://example.org/groups": ["x"], "a/b": {"c~d": {"e": ["y", 7, true, null, ["z"]]}}, "": {"": "w"},
        });
        let claims = claims.as_object().unwrap();
        let matches = |name: &str, pattern: &str| {
            let patterns = BTreeMap::from([(name.to_owned(), vec![pattern.to_owned()])]);
            ClaimPatterns::new("claims", &patterns).unwrap().mismatch(claims).is_none()
        };
        for (name, value) in [
            ("sub", "a"),
            ("/sub", "a"),
            ("https://example.org/groups", "x"),
            ("/a~1b/c~0d/e", "y"),
            ("/a~1b/c~0d/e", "7"),
            ("/a~1b/c~0d/e", "true"),
            ("/a~1b/c~0d/e/0", "y"),
            ("//", "w"),
        ] {
            assert!(matches(name, value), "{name} {value}");
        }
        for (name, value) in [
            ("a/b", "**"),
            ("/a~1b", "**"),
            ("/a~1b/c~0d/e", "z"),
            ("/a~1b/c~0d/e", "null"),
            ("/a~1b/c~0d/f", "**"),
            ("/a/b", "**"),
            ("missing", "**"),
        ] {
            assert!(!matches(name, value), "{name} {value}");
        }
    }
}
