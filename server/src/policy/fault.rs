//! Errors in a policy, with their position.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use miette::Diagnostic;

/// A policy that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("cannot read the policy {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// It is invalid.
    #[error("{}", faults.join("; "))]
    Invalid {
        /// Each with its position, as `FILE:LINE: …`.
        faults: Vec<String>,
    },
}

/// The source text of a policy.
pub(super) struct Source<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl Source<'_> {
    pub(super) fn invalid(&self, mut faults: Vec<String>) -> PolicyError {
        // in the order of the text
        faults.sort_by_cached_key(|fault| (self.line_in(fault), fault.clone()));
        PolicyError::Invalid { faults }
    }

    /// A message about a part of the text, with its position.
    pub(super) fn located<E: Diagnostic + Display>(&self, error: &E) -> String {
        let offset = error.labels().and_then(|mut labels| labels.next()).map(|label| label.offset());
        let help = error.help().map(|help| format!(" ({help})")).unwrap_or_default();
        let text = format!("{error}{help}");
        match offset {
            Some(offset) => self.at(self.line(offset), &text),
            None => format!("{}: {text}", self.path.display()),
        }
    }

    pub(super) fn at(&self, line: usize, fault: &str) -> String {
        format!("{}:{line}: {fault}", self.path.display())
    }

    /// The line where a rule begins; 0: unknown.
    pub(super) fn line_of(&self, rule: &str) -> usize {
        self.text.find(rule).map_or(0, |offset| self.line(offset))
    }

    fn line(&self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
    }

    fn line_in(&self, fault: &str) -> usize {
        let place = fault.strip_prefix(&format!("{}:", self.path.display()));
        place.and_then(|rest| rest.split(':').next()?.parse().ok()).unwrap_or(0)
    }
}
