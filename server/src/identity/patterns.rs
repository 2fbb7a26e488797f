//! Glob patterns for identities.

use glob::{MatchOptions, Pattern};

use crate::invalid::InvalidSetting;

/// `*` and `?` match within one part of a name, `**` across parts.
const MATCHING: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: false };

/// A set of identities, given by patterns.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamePatterns(Vec<Pattern>);

impl NamePatterns {
    /// # Errors
    /// A pattern is malformed; `key` is the setting it is from.
    pub(crate) fn new(key: &str, patterns: &[String]) -> Result<Self, InvalidSetting> {
        let patterns = patterns.iter().map(|pattern| {
            let malformed = |fault: &str| InvalidSetting(format!("{key}: {pattern:?}: {fault}"));
            match pattern.strip_prefix("unix:uid=") {
                // it would match nobody
                Some(uid) if uid.contains(char::is_alphabetic) => {
                    Err(malformed("a user is given by number, as `id -u NAME` prints it"))
                }
                _ => Pattern::new(pattern).map_err(|error| malformed(&error.to_string())),
            }
        });
        patterns.collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn contain(&self, identity: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches_with(identity, MATCHING))
    }
}
