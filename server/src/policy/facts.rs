//! The attributes of a command in policies.

use std::collections::BTreeSet;
use std::iter;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cedar_policy::RestrictedExpression as Value;
use telexec_engine::ResolvedCommand;
use telexec_executor::{Command, Program};
use telexec_shell::{Analysis, SimpleCommand};

use super::environment::is_harmless;
use super::simple_command::{EACH_COMMAND, MAX_EVALUATIONS, REDIRECTIONS, distinct, redirections};
use crate::analysis::{CommandAnalysis, is_quick};

/// A command, resolved on this machine and analysed.
pub(crate) struct Facts {
    pub(crate) command: Command,
    analysis: Arc<CommandAnalysis>,
    /// `None`: no such user.
    place: Option<ResolvedCommand>,
    /// Its effective timeout.
    timeout: Option<Duration>,
    /// The variables that rules have to permit.
    restricted: OnceLock<Vec<String>>,
}

impl Facts {
    /// The command, and the facts to evaluate [anew](Self::anew) while it runs, without its input.
    pub(crate) fn split(self) -> (Command, Self) {
        let Self { command, analysis, place, timeout, restricted: _ } = self;
        (command.clone(), Self::at(command.without_stdin(), analysis.anew(), place, timeout))
    }

    /// The same, of which nothing is analysed yet: what is kept while a command runs stays as small as its request.
    pub(crate) fn anew(&self) -> Self {
        Self::at(self.command.clone(), self.analysis.anew(), self.place.clone(), self.timeout)
    }

    /// Nothing is analysed yet; `place` is `None` if there is no such user.
    pub(crate) fn at(
        command: Command,
        analysis: Arc<CommandAnalysis>,
        place: Option<ResolvedCommand>,
        timeout: Option<Duration>,
    ) -> Self {
        Self { command, analysis, place, timeout, restricted: OnceLock::new() }
    }

    /// Whether the analysis is made soon, and the context is small.
    pub(crate) fn are_quick(&self) -> bool {
        let (command, place) = (&self.command, self.place.as_ref());
        let names = command.environment().keys().chain(place.into_iter().flat_map(|place| &place.variables));
        let labels = command.labels().iter().flat_map(|(key, value)| [key, value]);
        let places =
            place.into_iter().flat_map(|place| place.shell.iter().chain([&place.user, &place.working_directory]));
        let bytes = |text: &String| text.len() + TEXT_BYTES;
        let context: usize = names.chain(labels).chain(places).map(bytes).sum::<usize>() + command.reason().len();
        context <= MAX_QUICK_BYTES && is_quick(command)
    }

    /// Where it would run; `None`: there is no such user.
    pub(crate) fn place(&self) -> Option<&ResolvedCommand> {
        self.place.as_ref()
    }

    /// The name of the named command, if it is one.
    pub(super) fn named_command(&self) -> Option<&str> {
        self.command.named_command()
    }

    /// Whether the configuration defines what the command is.
    pub(crate) fn are_of_named_command(&self) -> bool {
        self.named_command().is_some()
    }

    /// Whether an attribute of the context is what the definition of a named command makes it.
    pub(super) fn is_defined(&self, attribute: &str) -> bool {
        self.are_of_named_command() && DEFINED.contains(&attribute.split('.').next().unwrap_or_default())
    }

    /// The analysis, which may be used elsewhere too.
    pub(crate) fn shared_analysis(&self) -> Arc<CommandAnalysis> {
        Arc::clone(&self.analysis)
    }

    /// What the command would run. The first time it is slow for long texts.
    pub(crate) fn analysis(&self) -> &Analysis {
        self.analysis.of(&self.command)
    }

    /// The commands of the text, each once; `None`: not all are known, or there are too many.
    pub(super) fn commands(&self) -> Option<Vec<&SimpleCommand>> {
        distinct(self.analysis())
    }

    /// The environment variables that the request sets: directly, and in its text as far as that is understood.
    pub(crate) fn variables(&self) -> BTreeSet<&str> {
        // the others are its definition's: callers may give harmless ones alone
        if self.are_of_named_command() {
            let given = self.command.environment().iter();
            return given
                .filter(|(name, value)| is_harmless(name, Some(value)))
                .map(|(name, _)| name.as_str())
                .collect();
        }
        // the profile of a login shell may export anything
        let login = matches!(self.command.program(), Program::Shell { login: true, .. });
        let given = self.command.environment().keys().map(String::as_str);
        let analysis = self.analysis();
        let mut inherited = BTreeSet::new();
        if !analysis.assigned.is_empty() {
            let variables = self.place.iter().flat_map(|place| &place.variables);
            inherited.extend(variables.map(String::as_str).chain(SHELLS_OWN));
        }
        let assigned = analysis.assigned.iter().map(String::as_str);
        let assigned = assigned.filter(|name| login || inherited.contains(name));
        given.chain(analysis.exported.iter().map(String::as_str)).chain(assigned).collect()
    }

    /// Those that are not harmless.
    pub(super) fn restricted_variables(&self) -> &[String] {
        let restricted = || self.variables().into_iter().filter(|name| !self.sets_harmlessly(name));
        self.restricted.get_or_init(|| restricted().map(str::to_owned).collect())
    }

    /// Whether one of these variables is harmless: with the value that the request gives it, and with any where the text sets it.
    fn sets_harmlessly(&self, name: &str) -> bool {
        let (given, analysis) = (self.command.environment().get(name), self.analysis());
        let in_text = analysis.exported.contains(name) || analysis.assigned.contains(name);
        // the text of a named command is not the caller's
        let is_callers = in_text && !self.are_of_named_command();
        given.is_none_or(|value| is_harmless(name, Some(value))) && (!is_callers || is_harmless(name, None))
    }

    /// Why an attribute of the context is missing.
    pub(super) fn why_missing(&self, attribute: &str) -> String {
        let analysis = self.analysis();
        match attribute.split('.').next().unwrap_or_default() {
            "programs" | "uses_sudo" | EACH_COMMAND | REDIRECTIONS if !analysis.understood => {
                format!("what the command runs cannot be determined: {}", analysis.reason.unwrap_or_default())
            }
            EACH_COMMAND => format!("it has more than {MAX_EVALUATIONS} different commands"),
            REDIRECTIONS => "where a redirection leads is known only when it runs".to_owned(),
            "user" | "user_id" | "shell" | "working_directory" | "no_new_privileges" if self.place.is_none() => {
                "there is no such user".to_owned()
            }
            "working_directory" => "the path is not in its shortest form".to_owned(),
            "argv" | "environment" | "labels" | "programs" => format!("{attribute} has more than {MAX_TEXTS} elements"),
            _ => format!("{attribute} is not set"),
        }
    }

    /// The attributes of the context that `looks_at` names, but for [`EACH_COMMAND`]; see `telexec.cedarschema`.
    pub(super) fn context(&self, transport: &str, looks_at: impl Fn(&str) -> bool) -> Vec<(String, Value)> {
        let looked_at = ATTRIBUTES.iter().filter(|(name, _)| looks_at(name));
        looked_at.filter_map(|(name, value)| Some(((*name).to_owned(), value(self, transport)?))).collect()
    }
}

/// The value of an attribute of a command over this transport; `None`: it is not known.
type Attribute = fn(&Facts, &str) -> Option<Value>;

/// Those of the context, but for [`EACH_COMMAND`].
const ATTRIBUTES: [(&str, Attribute); 22] = [
    ("transport", |_, transport| text(transport)),
    ("command", |facts, _| Some(Value::new_string(facts.command.text()))),
    ("named_command", |facts, _| text(facts.named_command().unwrap_or_default())),
    ("shell", |facts, _| text(facts.place()?.shell.as_deref().unwrap_or_default())),
    ("argv", |facts, _| match facts.command.program() {
        Program::Shell { .. } => texts(iter::empty()),
        Program::Argv(argv) => texts(argv.iter().cloned()),
    }),
    ("programs", |facts, _| {
        let analysis = Some(facts.analysis()).filter(|analysis| analysis.understood)?;
        texts(analysis.programs.iter().cloned())
    }),
    ("understood", |facts, _| flag(facts.analysis().understood)),
    (REDIRECTIONS, |facts, _| redirections(facts.analysis())),
    ("uses_sudo", |facts, _| {
        let analysis = Some(facts.analysis()).filter(|analysis| analysis.understood || analysis.uses_sudo)?;
        flag(analysis.uses_sudo)
    }),
    ("user", |facts, _| text(&facts.place()?.user)),
    ("user_id", |facts, _| Some(Value::new_long(facts.place()?.uid.into()))),
    ("no_new_privileges", |facts, _| flag(facts.place()?.no_new_privileges)),
    ("working_directory", |facts, _| {
        let path = Some(&*facts.place()?.working_directory).filter(|path| is_plain(path))?;
        text(path)
    }),
    ("environment", |facts, _| texts(facts.variables().into_iter().map(str::to_owned))),
    ("terminal", |facts, _| flag(facts.command.terminal().is_some())),
    ("accepts_input", |facts, _| flag(facts.command.accepts_input())),
    ("login", |facts, _| flag(matches!(facts.command.program(), Program::Shell { login: true, .. }))),
    ("background", |facts, _| flag(facts.command.may_go_to_background())),
    ("timeout", |facts, _| facts.timeout.map(duration)),
    ("limits", |facts, _| limits(&facts.command)),
    ("labels", |facts, _| texts(facts.command.labels().iter().map(|(key, value)| format!("{key}={value}")))),
    ("reason", |facts, _| text(facts.command.reason())),
];

fn text(text: &str) -> Option<Value> {
    Some(Value::new_string(text.to_owned()))
}

fn flag(flag: bool) -> Option<Value> {
    Some(Value::new_bool(flag))
}

/// What definitions of named commands decide.
const DEFINED: [&str; 14] = [
    "argv",
    "command",
    EACH_COMMAND,
    "environment",
    "no_new_privileges",
    "programs",
    REDIRECTIONS,
    "shell",
    "timeout",
    "understood",
    "user",
    "user_id",
    "uses_sudo",
    "working_directory",
];

/// Variables that shells set for their programs anyway.
const SHELLS_OWN: [&str; 4] = ["OLDPWD", "PWD", "SHLVL", "_"];

/// A larger context is not made where others wait.
const MAX_QUICK_BYTES: usize = 16 * 1024;
/// Of each text, beside its bytes.
const TEXT_BYTES: usize = 64;
/// With more texts the attribute is missing: no rule needs them, and each costs time.
pub(super) const MAX_TEXTS: usize = 4096;

pub(super) fn texts(mut texts: impl Iterator<Item = String>) -> Option<Value> {
    let some = texts.by_ref().take(MAX_TEXTS).map(Value::new_string).collect::<Vec<_>>();
    texts.next().is_none().then(|| Value::new_set(some))
}

fn limits(command: &Command) -> Option<Value> {
    let limits = command.limits();
    let long = |number: u64| Value::new_long(i64::try_from(number).unwrap_or(i64::MAX));
    let given = [
        ("memory_bytes", limits.memory_bytes.map(long)),
        ("max_processes", limits.max_processes.map(|count| long(count.into()))),
        // a Cedar decimal has four digits after the point
        ("cpus", limits.cpus.map(|cpus| Value::new_decimal(format!("{cpus:.4}")))),
    ];
    let given = given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::new_record(given).ok()
}

/// In whole milliseconds, the resolution of Cedar, rounded up.
fn duration(duration: Duration) -> Value {
    let millis = duration.as_nanos().div_ceil(1_000_000);
    Value::new_duration(format!("{}ms", i64::try_from(millis).unwrap_or(i64::MAX)))
}

/// Whether the path is in canonical form, so that a rule on its text is a rule on the directory.
pub(crate) fn is_plain(path: &str) -> bool {
    path == "/"
        || path.strip_prefix('/').is_some_and(|rest| !rest.split('/').any(|part| matches!(part, "" | "." | "..")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::SCHEMA;

    #[test]
    fn the_schema_has_the_same_attributes() {
        let (_, command) = SCHEMA.split_once("\ntype Command = {\n").unwrap();
        let (attributes, _) = command.split_once("\n};").unwrap();
        let name = |line: &str| {
            let line = line.strip_prefix("  ").filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))?;
            Some(line.split(['?', ':']).next()?.to_owned())
        };
        let in_schema: BTreeSet<_> = attributes.lines().filter_map(name).collect();
        let here = ATTRIBUTES.iter().map(|(name, _)| *name).chain([EACH_COMMAND]).map(str::to_owned).collect();
        assert_eq!(in_schema, here);
    }
}
