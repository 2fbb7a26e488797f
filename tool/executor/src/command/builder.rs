//! Builds a command, and checks each field.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{
    Command, Descendants, DuplicatePolicy, OnDisconnect, Options, Program, ResourceLimits, TerminalSize,
    asked_named_command,
};
use crate::id::matches_name_grammar;
use crate::{ExecutionId, InvalidCommand, TraceContext};

/// Collects what a [`Command`] is to be; [`build`](CommandBuilder::build) checks it.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct CommandBuilder {
    program: Program,
    shell: Option<String>,
    login: bool,
    options: Options,
}

impl CommandBuilder {
    pub(super) fn new(program: Program) -> Self {
        Self { program, shell: None, login: false, options: Options::default() }
    }

    pub(super) fn of(Command { mut program, options }: Command) -> Self {
        let (shell, login) = match &mut program {
            Program::Shell { shell, login, .. } => (shell.take(), *login),
            Program::Argv(_) => (None, false),
        };
        Self { program, shell, login, options }
    }

    /// A program and its arguments, in place of what it ran.
    pub fn argv(mut self, argv: Vec<String>) -> Self {
        self.program = Program::Argv(argv);
        self
    }

    /// The shell for shell text: a name or a path, or [`USER_SHELL`](super::USER_SHELL).
    pub fn shell(mut self, shell: impl Into<String>) -> Self {
        self.shell = Some(shell.into());
        self
    }

    /// Run the shell as a login shell.
    pub fn login(mut self, login: bool) -> Self {
        self.login = login;
        self
    }

    /// See [`Command::user`].
    pub fn user(mut self, name: impl Into<String>) -> Self {
        self.options.user = Some(name.into());
        self
    }

    /// The user, if none is set yet. Nothing for a [named command](super::NAMED_COMMAND): its definition says as whom it runs.
    pub fn default_user(self, name: impl Into<String>) -> Self {
        let is_named = matches!(&self.program, Program::Argv(argv) if asked_named_command(argv).is_some());
        if is_named || self.options.user.is_some() { self } else { self.user(name) }
    }

    /// See [`Command::limits`].
    pub fn limits(mut self, limits: ResourceLimits) -> Self {
        self.options.limits = limits;
        self
    }

    /// An absolute path.
    pub fn working_directory(mut self, path: impl Into<String>) -> Self {
        self.options.working_directory = Some(path.into());
        self
    }

    /// Adds a variable to the environment.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.environment.insert(name.into(), value.into());
        self
    }

    /// Adds variables to the environment.
    pub fn envs(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        self.options.environment.extend(variables);
        self
    }

    /// Start from an empty environment.
    pub fn clear_environment(mut self, clear: bool) -> Self {
        self.options.clear_environment = clear;
        self
    }

    /// See [`Command::timeout`].
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// See [`Command::deadline`].
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.options.deadline = Some(deadline);
        self
    }

    /// See [`Command::kill_grace`].
    pub fn kill_grace(mut self, grace: Duration) -> Self {
        self.options.kill_grace = Some(grace);
        self
    }

    /// See [`Command::stdin`].
    pub fn stdin(mut self, stdin: impl Into<Bytes>) -> Self {
        self.options.stdin = stdin.into();
        self
    }

    /// See [`Command::accepts_input`].
    pub fn accepts_input(mut self, accepts: bool) -> Self {
        self.options.accepts_input = accepts;
        self
    }

    /// See [`Command::terminal`].
    pub fn terminal(mut self, size: TerminalSize) -> Self {
        self.options.terminal = Some(size);
        self
    }

    /// See [`Command::yield_after`]. Zero: at once.
    pub fn yield_after(mut self, delay: Duration) -> Self {
        self.options.yield_after = Some(delay);
        self
    }

    /// See [`Command::on_disconnect`].
    pub fn on_disconnect(mut self, on_disconnect: OnDisconnect) -> Self {
        self.options.on_disconnect = on_disconnect;
        self
    }

    /// See [`Command::disconnect_grace`]. Default: zero.
    pub fn disconnect_grace(mut self, grace: Duration) -> Self {
        self.options.disconnect_grace = grace;
        self
    }

    /// See [`Command::duplicate_policy`].
    pub fn duplicate_policy(mut self, policy: DuplicatePolicy) -> Self {
        self.options.duplicate_policy = policy;
        self
    }

    /// See [`Command::execution_id`].
    pub fn execution_id(mut self, id: ExecutionId) -> Self {
        self.options.execution_id = Some(id);
        self
    }

    /// See [`Command::max_output_bytes`].
    pub fn max_output_bytes(mut self, bytes: u64) -> Self {
        self.options.max_output_bytes = bytes;
        self
    }

    /// See [`Command::merge_output`].
    pub fn merge_output(mut self, merge: bool) -> Self {
        self.options.merge_output = merge;
        self
    }

    /// See [`Command::no_new_privileges`].
    pub fn no_new_privileges(mut self, forbidden: bool) -> Self {
        self.options.no_new_privileges = forbidden;
        self
    }

    /// See [`Command::receipt`].
    pub fn receipt(mut self, receipt: bool) -> Self {
        self.options.receipt = receipt;
        self
    }

    /// Adds labels. Keys match the grammar of [`ExecutionId`]; values have at most 256 bytes.
    pub fn labels(mut self, labels: impl IntoIterator<Item = (String, String)>) -> Self {
        self.options.labels.extend(labels);
        self
    }

    /// See [`Command::report_working_directory`].
    pub fn report_working_directory(mut self, report: bool) -> Self {
        self.options.report_working_directory = report;
        self
    }

    /// See [`Command::descendants`].
    pub fn descendants(mut self, descendants: Descendants) -> Self {
        self.options.descendants = descendants;
        self
    }

    /// See [`Command::reason`]. At most 1,024 bytes.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.options.reason = reason.into();
        self
    }

    /// See [`Command::trace`].
    pub fn trace(mut self, trace: Option<TraceContext>) -> Self {
        self.options.trace = trace;
        self
    }

    /// The command.
    ///
    /// # Errors
    /// The first field that is malformed.
    pub fn build(self) -> Result<Command, InvalidCommand> {
        let Self { mut program, shell, login, options } = self;
        match &mut program {
            Program::Shell { text, shell: chosen, login: as_login } => {
                check_text("command", text)?;
                check(!text.is_empty(), "command", "is empty")?;
                if let Some(shell) = &shell {
                    check_text("shell", shell)?;
                    check(!shell.is_empty(), "shell", "is empty")?;
                }
                *chosen = shell;
                *as_login = login;
            }
            Program::Argv(argv) => {
                check_argv(argv)?;
                check(shell.is_none(), "shell", "goes with command, not with argv")?;
                check(!login, "login", "goes with command, not with argv")?;
                let report = options.report_working_directory;
                check(!report, "report_working_directory", "goes with command, not with argv")?;
            }
        }
        options.check()?;
        Ok(Command { program, options })
    }
}

impl Options {
    fn check(&self) -> Result<(), InvalidCommand> {
        if let Some(name) = &self.user {
            check_text("user", name)?;
            check(!name.is_empty(), "user", "is empty")?;
        }
        self.limits.check()?;
        if let Some(path) = &self.working_directory {
            check_text("working_directory", path)?;
            check(path.starts_with('/'), "working_directory", "is not an absolute path")?;
        }
        for (name, value) in &self.environment {
            check_text("environment", name)?;
            check(!name.is_empty(), "environment", "has an empty name")?;
            check(!name.contains('='), "environment", "has a name with '='")?;
            check_text("environment", value)?;
        }
        check(self.timeout != Some(Duration::ZERO), "timeout", "is not positive")?;
        check(self.labels.len() <= 64, "labels", "are more than 64")?;
        for (key, value) in &self.labels {
            check(
                matches_name_grammar(key),
                "labels",
                "has a key that does not match [A-Za-z0-9][A-Za-z0-9._-]{0,127}",
            )?;
            check(value.len() <= 256, "labels", "has a value of more than 256 bytes")?;
        }
        check(self.reason.len() <= 1024, "reason", "is longer than 1024 bytes")
    }
}

fn check_argv(argv: &[String]) -> Result<(), InvalidCommand> {
    check(argv.first().is_some_and(|program| !program.is_empty()), "argv", "names no program")?;
    match argv.iter().position(|argument| argument.contains('\0')) {
        Some(at) => Err(InvalidCommand::new(format!("argv[{at}]"), "contains a NUL byte")),
        None => Ok(()),
    }
}

fn check_text(field: &'static str, text: &str) -> Result<(), InvalidCommand> {
    check(!text.contains('\0'), field, "contains a NUL byte")
}

pub(super) fn check(holds: bool, field: &'static str, reason: &'static str) -> Result<(), InvalidCommand> {
    if holds { Ok(()) } else { Err(InvalidCommand::new(field, reason)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_reach_from_the_smallest_to_the_largest() {
        let limits = |cpus| ResourceLimits { memory_bytes: Some(1), max_processes: Some(1), cpus: Some(cpus) };
        for cpus in [0.01, 0.5, 10_000.0] {
            assert_eq!(Command::shell("a").limits(limits(cpus)).build().unwrap().limits(), limits(cpus));
        }
        assert!(ResourceLimits::default().is_empty() && !limits(1.0).is_empty());
    }

    #[test]
    fn malformed_commands_name_their_field() {
        let none = ResourceLimits::default();
        let cpus = |cpus| Command::shell("a").limits(ResourceLimits { cpus: Some(cpus), ..none });
        let cases = [
            (Command::shell(""), "command"),
            (Command::shell("a\0"), "command"),
            (Command::shell("a").shell(""), "shell"),
            (Command::argv([""; 0]), "argv"),
            (Command::argv([""]), "argv"),
            (Command::argv(["a", "b\0"]), "argv[1]"),
            (Command::argv(["a"]).shell("sh"), "shell"),
            (Command::argv(["a"]).login(true), "login"),
            (Command::argv(["a"]).report_working_directory(true), "report_working_directory"),
            (Command::shell("a").user(""), "user"),
            (Command::shell("a").user("a\0"), "user"),
            (Command::shell("a").limits(ResourceLimits { memory_bytes: Some(0), ..none }), "limits.memory_bytes"),
            (Command::shell("a").limits(ResourceLimits { max_processes: Some(0), ..none }), "limits.max_processes"),
            (cpus(0.0), "limits.cpus"),
            (cpus(0.009), "limits.cpus"),
            (cpus(-1.0), "limits.cpus"),
            (cpus(10_000.1), "limits.cpus"),
            (cpus(f64::INFINITY), "limits.cpus"),
            (cpus(f64::NAN), "limits.cpus"),
            (Command::shell("a").working_directory("b"), "working_directory"),
            (Command::shell("a").working_directory("/\0"), "working_directory"),
            (Command::shell("a").env("", "b"), "environment"),
            (Command::shell("a").env("A=", "b"), "environment"),
            (Command::shell("a").env("A", "\0"), "environment"),
            (Command::shell("a").timeout(Duration::ZERO), "timeout"),
            (Command::shell("a").labels([("/".into(), String::new())]), "labels"),
            (Command::shell("a").labels([("a".into(), "x".repeat(257))]), "labels"),
            (Command::shell("a").reason("x".repeat(1025)), "reason"),
        ];
        for (builder, field) in cases {
            assert_eq!(builder.clone().build().unwrap_err().field, field, "{builder:?}");
        }
    }
}
