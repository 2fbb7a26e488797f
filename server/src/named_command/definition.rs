//! The definition of one named command, and what it makes of a request.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use telexec_executor::text::counted;
use telexec_executor::{Command, Descendants, InvalidCommand, NAMED_COMMAND, asked_named_command};
use telexec_proto::convert::duration_to_wire;
use telexec_proto::v1::{NamedCommand, NamedCommandParameter};

use super::word::{Parameter, Word, compile};
use crate::policy::is_harmless;

/// Before the numbers of parameters that have no name.
const NUMBERED: &str = "argument_";
/// The variables that a request may set, to harmless values: how the output looks.
const ACCEPTED_VARIABLES: [&str; 4] = ["COLUMNS", "LINES", "NO_COLOR", "TERM"];
/// What tools for named commands have beside their parameters.
const RESERVED: [&str; 3] = ["input", "reason", "target"];

/// A named command, as it is configured.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NamedCommandConfig {
    /// What it is for, in a line. Default: none.
    pub description: String,
    /// The program and its arguments. A word with `{1..9}`, `{a,b}` or `{NAME}` in it is a parameter: callers give an argument
    /// for each of these, in order, which has to match the whole word. `\{a,b}` is literal, and so are `{}`, `{print $1}`,
    /// `${HOME}` and `{{.ID}}`.
    pub argv: Vec<String>,
    /// What each `{NAME}` matches: a regular expression of the crate regex, without Unicode classes. The argument of a word that
    /// begins with `{NAME}` never begins with `-`.
    pub parameters: BTreeMap<String, String>,
    /// The user that it runs as. Default: that of commands that name none.
    pub user: Option<String>,
    /// Where it runs: an absolute path. Default: that of commands that name none.
    pub working_directory: Option<String>,
    /// Added to its environment.
    pub environment: BTreeMap<String, String>,
    /// Nothing that it executes gives it privileges. Default: what the request and the agent say.
    pub no_new_privileges: bool,
    /// Maximum run time. Default: what the request and the agent say.
    #[serde(with = "humantime_serde")]
    pub timeout: Option<Duration>,
    /// Callers may write to its standard input. Default: no.
    pub stdin: bool,
    /// Callers may run it on a terminal, and type. Default: no.
    pub terminal: bool,
}

/// A named command.
#[derive(Clone, Debug)]
pub(super) struct Definition {
    config: NamedCommandConfig,
    words: Vec<Word>,
}

impl Definition {
    /// Checks all that can be checked without running it.
    ///
    /// # Errors
    /// The key, and what is wrong with it.
    pub(super) fn new(config: &NamedCommandConfig) -> Result<Self, String> {
        for (name, pattern) in &config.parameters {
            check_parameter(name, pattern).map_err(|fault| format!("parameters.{name}: {fault}"))?;
        }
        let parse = |(at, text): (usize, &String)| {
            Word::parse(text, &config.parameters).map_err(|fault| format!("argv[{at}]: {fault}"))
        };
        let words = config.argv.iter().enumerate().map(parse).collect::<Result<Vec<_>, _>>()?;
        let definition = Self { config: config.clone(), words };
        match definition.words.first() {
            None => return Err("argv: is missing".to_owned()),
            Some(Word::Parameter(_)) => return Err("argv[0]: the program cannot be a parameter".to_owned()),
            Some(Word::Fixed(_)) => {}
        }
        if asked_named_command(&config.argv).is_some() {
            return Err("argv[0]: the program cannot be a named command".to_owned());
        }
        if let Some(unused) = config.parameters.keys().find(|name| !definition.uses(name)) {
            return Err(format!("parameters.{unused}: no word of argv has {{{unused}}}"));
        }
        let probe = definition.settings(Command::argv(config.argv.iter().cloned()).build().map_err(|e| e.to_string())?);
        probe.map(|_| definition).map_err(|fault| fault.to_string())
    }

    pub(super) fn program(&self) -> Option<&str> {
        match self.words.first()? {
            Word::Fixed(program) => Some(program),
            Word::Parameter(_) => None,
        }
    }

    pub(super) fn user(&self) -> Option<&str> {
        self.config.user.as_deref()
    }

    pub(super) fn environment(&self) -> &BTreeMap<String, String> {
        &self.config.environment
    }

    /// Whether arguments are compared with regular expressions of the configuration, which may take long.
    pub(super) fn has_patterns(&self) -> bool {
        !self.config.parameters.is_empty()
    }

    fn uses(&self, name: &str) -> bool {
        self.parameters().any(|parameter| parameter.patterns.iter().any(|(used, _)| used == name))
    }

    fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.words.iter().filter_map(|word| match word {
            Word::Parameter(parameter) => Some(parameter),
            Word::Fixed(_) => None,
        })
    }

    /// For each parameter its pattern, if no other parameter before it has that, or where it is.
    fn parameter_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for (at, parameter) in self.parameters().enumerate() {
            let pattern =
                parameter.patterns.first().map(|(name, _)| name).filter(|name| !names.contains(name)).cloned();
            names.push(pattern.unwrap_or_else(|| format!("{NUMBERED}{}", at + 1)));
        }
        names
    }

    /// What a request with these arguments runs.
    ///
    /// # Errors
    /// An argument, or a field of the request, that is not accepted.
    pub(super) fn apply(&self, name: &str, arguments: &[String], asked: &Command) -> Result<Command, InvalidCommand> {
        self.check_fields(name, asked)?;
        let argv = self.argv(name, arguments)?;
        self.settings(asked.clone().into_builder().argv(argv).build()?)
    }

    /// The words, with an argument in place of each parameter.
    fn argv(&self, name: &str, arguments: &[String]) -> Result<Vec<String>, InvalidCommand> {
        let words: Vec<_> = self.parameters().map(|parameter| parameter.text.as_str()).collect();
        if arguments.len() != words.len() {
            let takes = match words.len() {
                0 => "none".to_owned(),
                number => format!("{number}: {}", words.join(" ")),
            };
            let given = counted(arguments.len() as u64, "argument");
            let text = format!("has {given} for {NAMED_COMMAND}{name}, which takes {takes}");
            return Err(InvalidCommand::new("argv", text));
        }
        for (at, (parameter, argument)) in self.parameters().zip(arguments).enumerate() {
            let refused = |fault| InvalidCommand::new(format!("argv[{}]", at + 1), fault);
            parameter.check(argument).map_err(refused)?;
        }
        let mut arguments = arguments.iter();
        let in_place = |word: &Word| match word {
            Word::Fixed(text) => Some(text.clone()),
            Word::Parameter(_) => arguments.next().cloned(),
        };
        Ok(self.words.iter().filter_map(in_place).collect())
    }

    /// Refuses what else in a request would change what the command does.
    fn check_fields(&self, name: &str, asked: &Command) -> Result<(), InvalidCommand> {
        let takes_input = self.config.stdin || (self.config.terminal && asked.terminal().is_some());
        let is_accepted =
            |name: &str, value: &str| ACCEPTED_VARIABLES.contains(&name) && is_harmless(name, Some(value));
        let other = asked.environment().iter().find(|(name, value)| !is_accepted(name, value)).map(|(name, _)| name);
        let refused = [
            ("user", asked.user().is_some()),
            ("working_directory", asked.working_directory().is_some()),
            ("clear_environment", asked.clear_environment()),
            ("environment", other.is_some()),
            ("stdin", !asked.stdin().is_empty() && !takes_input),
            ("accepts_input", asked.accepts_input() && !takes_input),
            ("terminal", asked.terminal().is_some() && !self.config.terminal),
            // a program that lacks memory or processes halfway may do anything
            ("limits", !asked.limits().is_empty()),
            ("descendants", asked.descendants() != Descendants::Keep),
        ];
        match refused.into_iter().find(|(_, is_refused)| *is_refused) {
            Some((field, _)) => {
                let what = match (field, other) {
                    ("environment", Some(variable)) => format!("{variable} is"),
                    _ => "is".to_owned(),
                };
                Err(InvalidCommand::new(field, format!("{what} not accepted by {NAMED_COMMAND}{name}")))
            }
            None => Ok(()),
        }
    }

    /// The command with the settings of the definition.
    fn settings(&self, command: Command) -> Result<Command, InvalidCommand> {
        let asked = command.timeout();
        let no_new_privileges = command.no_new_privileges() || self.config.no_new_privileges;
        let builder = command.into_builder().envs(self.config.environment.clone());
        let mut builder = builder.no_new_privileges(no_new_privileges);
        if let Some(user) = &self.config.user {
            builder = builder.user(user);
        }
        if let Some(directory) = &self.config.working_directory {
            builder = builder.working_directory(directory);
        }
        if let Some(timeout) = asked.into_iter().chain(self.config.timeout).min() {
            builder = builder.timeout(timeout);
        }
        builder.build()
    }

    pub(super) fn to_wire(&self, name: &str) -> NamedCommand {
        let names = self.parameter_names();
        let parameters = self.parameters().zip(names).map(|(parameter, name)| NamedCommandParameter {
            name,
            word: parameter.text.clone(),
            pattern: parameter.pattern().to_owned(),
            values: parameter.values.clone(),
        });
        NamedCommand {
            name: name.to_owned(),
            description: self.config.description.clone(),
            argv: self.config.argv.clone(),
            parameters: parameters.collect(),
            user: self.config.user.clone().unwrap_or_default(),
            timeout: self.config.timeout.map(duration_to_wire),
            accepts_input: self.config.stdin,
            accepts_terminal: self.config.terminal,
        }
    }
}

/// Checks the name of a pattern, and the pattern by itself.
fn check_parameter(name: &str, pattern: &str) -> Result<(), String> {
    let is_name = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    if !is_name {
        return Err("the name does not match [a-z][a-z0-9_]*".to_owned());
    }
    if name.starts_with(NUMBERED) || RESERVED.contains(&name) {
        return Err("the name is reserved".to_owned());
    }
    compile(pattern).map(drop)
}
