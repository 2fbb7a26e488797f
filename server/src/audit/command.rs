//! The description of a command in a record: what it runs and its options, but no values of its environment and nothing of its
//! input.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;
use telexec_executor::{Command, Descendants, Program, ResourceLimits};
use telexec_shell::Analysis;
use time::OffsetDateTime;

use super::config::Commands;
use super::json;
use super::key::Key;
use super::redact::Redact;
use crate::analysis::CommandAnalysis;
use crate::timestamp::{ms, rfc3339};

/// The limit for a text, or for all arguments together. Each byte may take six in a line.
const MAX_COMMAND: usize = 96 * 1024;
/// The same for commands that do not run.
const MAX_BRIEF_BYTES: usize = 2048;
/// For the names of programs in a shortened record.
const MAX_NAME_BYTES: usize = 256;
/// How much is searched for secrets: a match that begins in the recorded part ends within this.
const MAX_LOOKED_AT: usize = 128 * 1024;
/// For all names of variables, or of programs, or all labels, together.
const MAX_NAMES: usize = 16 * 1024;
/// For any other text.
const MAX_TEXT: usize = 4096;

/// A command as requested.
#[derive(Debug, Default, Serialize)]
pub(super) struct Asked {
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    argv: Option<Vec<String>>,
    /// The programs it would run, if the text itself is not recorded in full.
    #[serde(skip_serializing_if = "Option::is_none")]
    programs: Option<Vec<String>>,
    /// It may run others too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more_programs: bool,
    /// If it is not recorded in full: its length, its digest, and the key of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    command_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command_hmac_sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hmac_key: Option<String>,
    /// Shortened, because the caller has used up its share of the log.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    shortened: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    shell: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    login: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    no_new_privileges: bool,
    /// The name of the named command, without the `@`.
    #[serde(skip_serializing_if = "Option::is_none")]
    named_command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    directory: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    environment: Vec<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more_environment: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    clear_environment: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<Limits>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<String>,
    stdin_bytes: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    accepts_input: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    terminal: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    may_outlive_its_call: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    kills_descendants: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more_labels: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct Limits {
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_processes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpus: Option<f64>,
}

/// Describes commands as configured.
#[derive(Debug)]
pub(super) struct CommandDescriber {
    pub(super) key: Key,
    pub(super) commands: Commands,
    pub(super) redact: Redact,
}

impl CommandDescriber {
    pub(super) fn full(&self, command: &Command, analysis: &CommandAnalysis) -> Box<Asked> {
        self.describe(command, analysis, MAX_COMMAND, MAX_NAMES)
    }

    /// For commands that do not run.
    pub(super) fn brief(&self, command: &Command, analysis: &CommandAnalysis) -> Box<Asked> {
        self.describe(command, analysis, MAX_BRIEF_BYTES, MAX_BRIEF_BYTES)
    }

    /// For callers that have used up their share: the programs and digests only.
    pub(super) fn shortened(&self, command: &Command, analysis: &CommandAnalysis) -> Box<Asked> {
        let Asked { programs, more_programs, command_bytes, command_hmac_sha256, hmac_key, named_command, .. } =
            *self.describe(command, analysis, 0, MAX_NAME_BYTES);
        let shortened = true;
        let user = command.user().map(|user| clip_to(MAX_NAME_BYTES, user));
        let asked = Asked {
            programs,
            more_programs,
            command_bytes,
            command_hmac_sha256,
            hmac_key,
            named_command,
            shortened,
            user,
            ..Asked::default()
        };
        Box::new(asked)
    }

    /// What is looked for in files, where texts are recorded at all.
    pub(super) fn pattern(&self, pattern: &str) -> Option<String> {
        (self.commands == Commands::Full).then(|| clip(&self.redact.text(pattern)))
    }

    fn describe(&self, command: &Command, analysis: &CommandAnalysis, max: usize, max_names: usize) -> Box<Asked> {
        let (environment, more_environment) = within(max_names, command.environment().keys().map(String::as_str));
        let (labels, more_labels) = self.labels(command, max_names);
        let mut asked = Asked {
            named_command: command.named_command().map(|name| clip_to(MAX_NAME_BYTES, name)),
            directory: command.working_directory().map(clip),
            user: command.user().map(clip),
            environment,
            more_environment,
            clear_environment: command.clear_environment(),
            no_new_privileges: command.no_new_privileges(),
            limits: limits(command.limits()),
            timeout_ms: command.timeout().map(ms),
            deadline: command.deadline().and_then(wall_time).map(rfc3339),
            stdin_bytes: command.stdin().len() as u64,
            accepts_input: command.accepts_input(),
            terminal: command.terminal().is_some(),
            may_outlive_its_call: command.may_go_to_background(),
            kills_descendants: command.descendants() == Descendants::Kill,
            labels,
            more_labels,
            reason: Some(command.reason()).filter(|reason| !reason.is_empty()).map(|reason| self.redact.text(reason)),
            ..Asked::default()
        };
        if let Program::Shell { shell, login, .. } = command.program() {
            (asked.shell, asked.login) = (shell.as_deref().map(clip), *login);
        }
        match self.commands {
            Commands::Full if self.add_text(command.program(), max, &mut asked) => {}
            Commands::Full | Commands::Programs => {
                self.add_programs(analysis.of(command), max_names, &mut asked);
                self.add_digest(command.program(), &mut asked);
            }
            Commands::None => self.add_digest(command.program(), &mut asked),
        }
        Box::new(asked)
    }

    /// As many labels as fit the limit together, and whether there are more.
    fn labels(&self, command: &Command, limit: usize) -> (BTreeMap<String, String>, bool) {
        let mut left = limit;
        let fits = |(key, value): &(&String, &String)| {
            // quotes, colon and comma
            let length = key.len() + value.len() + 6;
            left.checked_sub(length).map(|after| left = after).is_some()
        };
        let redacted = |(key, value): (&String, &String)| (key.clone(), self.redact.text(value));
        let kept: BTreeMap<_, _> = command.labels().iter().take_while(fits).map(redacted).collect();
        let more = kept.len() < command.labels().len();
        (kept, more)
    }

    /// Whether that is all of it.
    fn add_text(&self, program: &Program, max: usize, asked: &mut Asked) -> bool {
        match program {
            Program::Shell { text, .. } => {
                let hidden = self.redact.text(start(text, MAX_LOOKED_AT));
                let shown = start(&hidden, max);
                let is_all = shown == text;
                asked.command = Some(shown.to_owned());
                is_all
            }
            Program::Argv(argv) => {
                let (seen, _) = within(MAX_LOOKED_AT, argv.iter().map(String::as_str));
                let hidden = self.redact.argv(&seen);
                let (shown, _) = within(max, hidden.iter().map(String::as_str));
                let is_all = shown == *argv;
                asked.argv = Some(shown);
                is_all
            }
        }
    }

    fn add_digest(&self, program: &Program, asked: &mut Asked) {
        asked.command_bytes = Some(length(program));
        asked.command_hmac_sha256 = Some(self.key.digest(program));
        asked.hmac_key = Some(self.key.id().to_owned());
    }

    fn add_programs(&self, analysis: &Analysis, max: usize, asked: &mut Asked) {
        let programs: Vec<_> = analysis.programs.iter().map(|program| self.redact.text(&clip(program))).collect();
        let (programs, more) = within(max, programs.iter().map(String::as_str));
        asked.programs = Some(programs);
        asked.more_programs = more || !analysis.understood;
    }
}

fn limits(limits: ResourceLimits) -> Option<Limits> {
    let ResourceLimits { memory_bytes, max_processes, cpus } = limits;
    (!limits.is_empty()).then_some(Limits { memory_bytes, max_processes, cpus })
}

/// In bytes.
pub(super) fn length(program: &Program) -> u64 {
    match program {
        Program::Shell { text, .. } => text.len() as u64,
        Program::Argv(argv) => argv.iter().map(|argument| argument.len() as u64).sum(),
    }
}

/// The wall-clock time of an instant.
fn wall_time(moment: Instant) -> Option<OffsetDateTime> {
    let left = time::Duration::try_from(moment.saturating_duration_since(Instant::now())).ok()?;
    OffsetDateTime::now_utc().checked_add(left)
}

/// The beginning of a text, at most this long.
fn start(text: &str, limit: usize) -> &str {
    text.get(..text.floor_char_boundary(limit)).unwrap_or_default()
}

/// Cuts a text that is short in any sane request, and marks the cut.
pub(super) fn clip(text: &str) -> String {
    clip_to(MAX_TEXT, text)
}

/// The same with another limit.
pub(super) fn clip_to(limit: usize, text: &str) -> String {
    match text.len() <= limit {
        true => text.to_owned(),
        false => format!("{} [cut]", start(text, limit)),
    }
}

/// The same by the bytes that it takes in a line.
pub(crate) fn clip_line(limit: u64, text: &str) -> String {
    let mut taken = 0;
    let end = text.char_indices().find(|(_, c)| {
        // without the quotes
        taken += json::length(c) - 2;
        taken > limit
    });
    match end {
        Some((end, _)) => format!("{} [cut]", start(text, end)),
        None => text.to_owned(),
    }
}

/// As many texts as fit the limit together, the last of them cut; and whether there are more.
fn within<'a>(limit: usize, texts: impl Iterator<Item = &'a str>) -> (Vec<String>, bool) {
    let mut left = limit;
    let mut kept = Vec::new();
    for text in texts {
        // quotes and comma
        left = left.saturating_sub(3);
        if left == 0 {
            return (kept, true);
        }
        let part = start(text, left);
        kept.push(part.to_owned());
        if part.len() < text.len() {
            return (kept, true);
        }
        left -= part.len();
    }
    (kept, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_by_what_they_take_in_a_line() {
        assert_eq!(clip_line(10, "/some/path"), "/some/path");
        assert_eq!(clip_line(10, "/some/paths"), "/some/path [cut]");
        // each of them takes six bytes
        assert_eq!(clip_line(12, "\u{1}\u{2}\u{3}"), "\u{1}\u{2} [cut]");
    }
}
