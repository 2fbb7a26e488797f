//! The name of an execution.

use std::fmt;
use std::str::FromStr;

use crate::InvalidCommand;

/// Names an execution; matches `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`.
///
/// The grammar leaves no room for a path, a space or a quote, so an id is safe in a file name, an environment variable
/// and a log line.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExecutionId(String);

impl ExecutionId {
    /// A new id that sorts by the time it was made (UUID version 7, RFC 9562).
    pub fn generate() -> Self {
        Self(uuid::Uuid::now_v7().to_string())
    }

    /// Whether it looks like a generated one: a UUID.
    pub fn is_uuid(&self) -> bool {
        uuid::Uuid::try_parse(&self.0).is_ok_and(|id| id.hyphenated().to_string() == self.0)
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ExecutionId {
    type Err = InvalidCommand;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if matches_name_grammar(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidCommand::new("execution_id", "must match [A-Za-z0-9][A-Za-z0-9._-]{0,127}"))
        }
    }
}

impl TryFrom<String> for ExecutionId {
    type Error = InvalidCommand;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ExecutionId> for String {
    fn from(id: ExecutionId) -> Self {
        id.0
    }
}

impl fmt::Display for ExecutionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The grammar of execution ids and of label keys.
pub(crate) fn matches_name_grammar(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= 128
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_ids_are_valid_and_sort_by_time() {
        let first = ExecutionId::generate();
        let second = ExecutionId::generate();
        assert!(first < second);
        assert_eq!(first.as_str().parse(), Ok(first));
    }

    #[test]
    fn ids_outside_the_grammar_are_refused() {
        for id in ["", "-a", ".a", "a/b", "../a", "a b", "a\0", "é", "%2e", &"a".repeat(129)] {
            assert!(id.parse::<ExecutionId>().is_err(), "{id:?}");
        }
        for id in ["a", "0", "a.b_c-d", &"a".repeat(128)] {
            assert!(id.parse::<ExecutionId>().is_ok(), "{id:?}");
        }
    }
}
