//! Errors in a policy, with their position.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use cedar_policy::Policy;
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
    /// There is no thread to parse it.
    #[error("cannot parse the policy {path}")]
    Thread {
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
    path: &'a Path,
    text: &'a str,
    /// Where the lines after the first begin.
    lines: Vec<usize>,
}

impl<'a> Source<'a> {
    pub(super) fn new(path: &'a Path, text: &'a str) -> Self {
        let lines = text.match_indices('\n').map(|(at, _)| at + 1).collect();
        Self { path, text, lines }
    }

    pub(super) fn invalid(&self, faults: Vec<String>) -> PolicyError {
        PolicyError::Invalid { faults: of_all_actions(self.sorted(faults)) }
    }

    /// In the order of the text.
    pub(super) fn sorted(&self, mut faults: Vec<String>) -> Vec<String> {
        faults.sort_by_cached_key(|fault| (self.line_in(fault), fault.clone()));
        faults
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

    /// The same about a rule, which Cedar calls by a number of its own.
    pub(super) fn located_in<E: Diagnostic + Display>(&self, rule: Option<&Policy>, error: &E) -> String {
        let text = self.located(error);
        let (Some(rule), Some(at)) = (rule, text.find(": ")) else { return text };
        let (place, fault) = text.split_at(at);
        let fault = fault.replace(&format!("for policy `{}`, ", rule.id()), "");
        format!("{place}{}", in_rule(rule, &fault))
    }

    /// A message about a rule that begins in this line.
    pub(super) fn at_rule(&self, rule: &Policy, line: usize, fault: &str) -> String {
        format!("{}:{line}{}", self.path.display(), in_rule(rule, &format!(": {fault}")))
    }

    /// A message about all of the text.
    pub(super) fn about_all(&self, fault: &str) -> String {
        format!("{}: {fault}", self.path.display())
    }

    pub(super) fn at(&self, line: usize, fault: &str) -> String {
        format!("{}:{line}: {fault}", self.path.display())
    }

    /// The line where a rule begins, most likely after this offset, which becomes that of its end; 0: unknown.
    pub(super) fn line_after(&self, offset: &mut usize, rule: &str) -> usize {
        let later = self.text.get(*offset..).and_then(|rest| rest.find(rule)).map(|at| *offset + at);
        let Some(begin) = later.or_else(|| self.text.find(rule)) else { return 0 };
        *offset = begin + rule.len();
        self.line(begin)
    }

    fn line(&self, offset: usize) -> usize {
        self.lines.partition_point(|line| *line <= offset) + 1
    }

    fn line_in(&self, fault: &str) -> usize {
        let place = fault.strip_prefix(&format!("{}:", self.path.display()));
        place.and_then(|rest| rest.split(':').next()?.parse().ok()).unwrap_or(0)
    }
}

/// With the rule's `@id`, if it has one.
fn in_rule(rule: &Policy, fault: &str) -> String {
    match rule.annotation("id").filter(|id| !id.is_empty()) {
        Some(id) => format!(": rule {}{fault}", id.escape_debug()),
        None => fault.to_owned(),
    }
}

/// Cedar repeats a fault for each action that a rule is about: here it is said once, with all of them. Sorted.
fn of_all_actions(faults: Vec<String>) -> Vec<String> {
    let mut merged: Vec<(String, Vec<String>, String)> = Vec::new();
    for fault in faults {
        let (before, action, after) = action_in(&fault).unwrap_or((&fault, "", ""));
        match merged.last_mut() {
            Some((first, actions, rest)) if first == before && rest == after => {
                if !actions.iter().any(|known| known == action) {
                    actions.push(action.to_owned());
                }
            }
            _ => merged.push((before.to_owned(), vec![action.to_owned()], after.to_owned())),
        }
    }
    merged.into_iter().map(|(before, actions, after)| format!("{before}{}{after}", actions.join(", "))).collect()
}

/// The action in the text of a fault, and what is before and after it.
fn action_in(fault: &str) -> Option<(&str, &str, &str)> {
    let from = fault.find("Action::\"")?;
    let length = fault.get(from..)?.match_indices('"').nth(1)?.0 + 1;
    let (before, rest) = fault.split_at(from);
    let (action, after) = rest.split_at(length);
    Some((before, action, after))
}
