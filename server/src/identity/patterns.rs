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
            match !pattern.contains(['*', '?', '[']) && is_of_nobody(pattern) {
                true => Err(malformed(OF_NOBODY)),
                false => Pattern::new(pattern).map_err(|error| malformed(&error.to_string())),
            }
        });
        patterns.collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn contain(&self, identity: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches_with(identity, MATCHING))
    }
}

/// What is wrong with the [identity of nobody](is_of_nobody).
pub(crate) const OF_NOBODY: &str = "is not an identity: local users are unix:uid=N, with N as `id -u NAME` prints it";

/// Whether this looks like a local user, and is none.
pub(crate) fn is_of_nobody(identity: &str) -> bool {
    let is_number = |text: &str| text.parse::<u32>().is_ok_and(|uid| uid.to_string() == text);
    identity.starts_with("unix:") && !identity.strip_prefix("unix:uid=").is_some_and(is_number)
}
