//! A command to run: valid by construction, so that nothing behind it has anything left to check.

mod fingerprint;

use std::collections::BTreeMap;
use std::mem;
use std::time::{Duration, Instant};

use bytes::Bytes;

pub use self::fingerprint::Fingerprint;
use crate::id::matches_name_grammar;
use crate::{ExecutionId, InvalidCommand, TraceContext};

/// A command to run. Made by [`Command::shell`] or [`Command::argv`].
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    program: Program,
    options: Options,
}

/// What a command runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    /// Text for a shell: `shell -c text`.
    Shell {
        /// The text.
        text: String,
        /// A name or a path; `None`: the executor's default, usually `bash`.
        shell: Option<String>,
        /// Run it as a login shell.
        login: bool,
    },
    /// A program and its arguments, verbatim. Not empty.
    Argv(Vec<String>),
}

/// What a normal exit does to processes that the command leaves behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Descendants {
    /// They run on.
    #[default]
    Keep,
    /// They are ended before the exit is told.
    Kill,
}

/// What becomes of a command whose caller goes before its end, or loses the connection to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnDisconnect {
    /// It is ended, with [`crate::ExitCause::Cancelled`].
    #[default]
    Kill,
    /// It runs on in the background.
    Detach,
}

/// What becomes of a command while the same one runs already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DuplicatePolicy {
    /// It is started too.
    #[default]
    StartNew,
    /// It is not started: [`crate::ExecutorError::AlreadyRunning`]. The same is a command of the same identity with the same
    /// program or text, directory, shell, login, terminal and user.
    ReuseRunning,
}

/// The size of a terminal, in characters: 1 to 65,535 each, as the kernel counts them (see TIOCSWINSZ, ioctl_tty(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TerminalSize {
    columns: u16,
    rows: u16,
}

impl TerminalSize {
    /// A size.
    ///
    /// # Errors
    /// A number is out of range; the error names the field as one of `terminal`.
    pub fn new(columns: u32, rows: u32) -> Result<Self, InvalidCommand> {
        let check = |number: u32, field| match u16::try_from(number) {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(InvalidCommand::new(field, "is not from 1 to 65535")),
        };
        Ok(Self { columns: check(columns, "terminal.columns")?, rows: check(rows, "terminal.rows")? })
    }

    /// How many characters fit into a line.
    pub fn columns(self) -> u16 {
        self.columns
    }

    /// How many lines there are.
    pub fn rows(self) -> u16 {
        self.rows
    }
}

/// The most that the processes of an execution may use together; `None`: no limit of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ResourceLimits {
    /// Memory in bytes, page cache and tmpfs included, as the kernel's controllers count it.
    pub memory_bytes: Option<u64>,
    /// Processes and threads at once.
    pub max_processes: Option<u32>,
    /// Processors' worth of time: 0.5 is half of one. From 0.01, the kernel's smallest quota, to 10,000.
    pub cpus: Option<f64>,
}

impl ResourceLimits {
    /// Nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn check(&self) -> Result<(), InvalidCommand> {
        check(self.memory_bytes != Some(0), "limits.memory_bytes", "is not positive")?;
        check(self.max_processes != Some(0), "limits.max_processes", "is not positive")?;
        let cpus_in_range = self.cpus.is_none_or(|cpus| (0.01..=10_000.0).contains(&cpus));
        check(cpus_in_range, "limits.cpus", "is not a number from 0.01 to 10000")
    }
}

/// What a command may take at most, whatever it asks for: set by whoever allowed it, never by the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Allowance {
    /// Longer timeouts, and none, are cut to this, and processes that the command leaves behind are ended then too; `None`: no
    /// limit.
    pub timeout: Option<Duration>,
    /// For each stream, in bytes: more is dropped and counted; `None`: no limit.
    pub output_bytes: Option<u64>,
    /// So many executions of its identity may run or linger with it; `None`: no limit.
    pub concurrent: Option<u32>,
}

impl Allowance {
    /// The least of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.into_iter().chain(other).min()
        }
        Self {
            timeout: least(self.timeout, other.timeout),
            output_bytes: least(self.output_bytes, other.output_bytes),
            concurrent: least(self.concurrent, other.concurrent),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Options {
    user: Option<String>,
    limits: ResourceLimits,
    working_directory: Option<String>,
    environment: BTreeMap<String, String>,
    clear_environment: bool,
    timeout: Option<Duration>,
    deadline: Option<Instant>,
    kill_grace: Option<Duration>,
    stdin: Bytes,
    accepts_input: bool,
    terminal: Option<TerminalSize>,
    yield_after: Option<Duration>,
    on_disconnect: OnDisconnect,
    duplicate_policy: DuplicatePolicy,
    execution_id: Option<ExecutionId>,
    max_output_bytes: u64,
    labels: BTreeMap<String, String>,
    report_working_directory: bool,
    descendants: Descendants,
    reason: String,
    identity: String,
    allowance: Allowance,
    trace: Option<TraceContext>,
}

impl Command {
    /// Shell text, to be run as `shell -c text`.
    pub fn shell(text: impl Into<String>) -> CommandBuilder {
        CommandBuilder::new(Program::Shell { text: text.into(), shell: None, login: false })
    }

    /// A program and its arguments, without a shell.
    pub fn argv(argv: impl IntoIterator<Item = impl Into<String>>) -> CommandBuilder {
        CommandBuilder::new(Program::Argv(argv.into_iter().map(Into::into).collect()))
    }

    /// What it runs.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// What it runs as one text, for rules and for people: the shell text, or the arguments joined by spaces.
    pub fn text(&self) -> String {
        match &self.program {
            Program::Shell { text, .. } => text.clone(),
            Program::Argv(argv) => argv.join(" "),
        }
    }

    /// The name of the user that it runs as; `None`: the executor's own.
    pub fn user(&self) -> Option<&str> {
        self.options.user.as_deref()
    }

    /// The most that its processes may use together.
    pub fn limits(&self) -> ResourceLimits {
        self.options.limits
    }

    /// An absolute path; `None`: the executor's default.
    pub fn working_directory(&self) -> Option<&str> {
        self.options.working_directory.as_deref()
    }

    /// Added to the executor's base environment.
    pub fn environment(&self) -> &BTreeMap<String, String> {
        &self.options.environment
    }

    /// Start from an empty environment instead of the base environment.
    pub fn clear_environment(&self) -> bool {
        self.options.clear_environment
    }

    /// From its start until it is ended with [`crate::ExitCause::TimedOut`]; `None`: the executor's default.
    pub fn timeout(&self) -> Option<Duration> {
        self.options.timeout
    }

    /// When it is ended with [`crate::ExitCause::DeadlineExceeded`]; `None`: never.
    pub fn deadline(&self) -> Option<Instant> {
        self.options.deadline
    }

    /// From SIGTERM to SIGKILL; zero: SIGKILL at once; `None`: the executor's default.
    pub fn kill_grace(&self) -> Option<Duration> {
        self.options.kill_grace
    }

    /// Written to standard input, then its end, unless it accepts more; empty, and no more accepted: standard input is
    /// `/dev/null`.
    pub fn stdin(&self) -> &Bytes {
        &self.options.stdin
    }

    /// Standard input stays open for [`crate::Executor::write_input`].
    pub fn accepts_input(&self) -> bool {
        self.options.accepts_input
    }

    /// Its three standard streams are a pseudo-terminal of this size, which is its controlling terminal; all that it writes
    /// is standard output. See pty(7).
    pub fn terminal(&self) -> Option<TerminalSize> {
        self.options.terminal
    }

    /// If it still runs so long after its start, its stream ends with [`crate::Event::Promoted`], and it goes on in the
    /// background.
    pub fn yield_after(&self) -> Option<Duration> {
        self.options.yield_after
    }

    /// What becomes of it when its [`crate::Execution`] is dropped before the end.
    pub fn on_disconnect(&self) -> OnDisconnect {
        self.options.on_disconnect
    }

    /// What becomes of it while the same one runs already.
    pub fn duplicate_policy(&self) -> DuplicatePolicy {
        self.options.duplicate_policy
    }

    /// It may run on without anyone who reads its output.
    pub fn may_go_to_background(&self) -> bool {
        self.options.on_disconnect == OnDisconnect::Detach || self.options.yield_after.is_some()
    }

    /// Equal for requests that are, whatever their deadlines, allowances and traces are; the same in every version of this
    /// program.
    pub fn fingerprint(&self) -> Fingerprint {
        fingerprint::of(&self.program, &self.options)
    }

    /// Chosen by the caller; `None`: the executor makes one.
    pub fn execution_id(&self) -> Option<&ExecutionId> {
        self.options.execution_id.as_ref()
    }

    /// For each stream, in bytes; 0: the executor's default.
    pub fn max_output_bytes(&self) -> u64 {
        self.options.max_output_bytes
    }

    /// For the caller's own use.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.options.labels
    }

    /// Report where the shell stood when it ended.
    pub fn report_working_directory(&self) -> bool {
        self.options.report_working_directory
    }

    /// What a normal exit does to processes left behind.
    pub fn descendants(&self) -> Descendants {
        self.options.descendants
    }

    /// Why the caller wants it; empty: not said.
    pub fn reason(&self) -> &str {
        &self.options.reason
    }

    /// Who asked for it; empty: this process itself.
    pub fn identity(&self) -> &str {
        &self.options.identity
    }

    /// What it may take at most.
    pub fn allowance(&self) -> Allowance {
        self.options.allowance
    }

    /// The span that it belongs to: the executor tells it to the command, as `TRACEPARENT` and `TRACESTATE`, unless the
    /// command has a variable `TRACEPARENT` of its own.
    pub fn trace(&self) -> Option<&TraceContext> {
        self.options.trace.as_ref()
    }

    /// The same command in this span, or in none.
    pub fn with_trace(mut self, trace: Option<TraceContext>) -> Self {
        self.options.trace = trace;
        self
    }

    /// The same command, which may take no more than this.
    pub fn with_allowance(mut self, allowance: Allowance) -> Self {
        self.options.allowance = allowance;
        self
    }

    /// The same command with nothing on its standard input at its start.
    pub fn without_stdin(mut self) -> Self {
        self.options.stdin = Bytes::new();
        self
    }

    /// Takes what only its start needs, and takes memory, out of it: program, environment, input, labels and reason. Returns the
    /// whole command; what is left is not one that could be started.
    pub fn take_start(&mut self) -> Self {
        let program = mem::replace(&mut self.program, Program::Argv(Vec::new()));
        let options = &mut self.options;
        let (environment, labels) = (mem::take(&mut options.environment), mem::take(&mut options.labels));
        let (stdin, reason) = (mem::take(&mut options.stdin), mem::take(&mut options.reason));
        Self { program, options: Options { environment, labels, stdin, reason, ..options.clone() } }
    }

    /// The same command under this id.
    pub fn with_execution_id(mut self, id: ExecutionId) -> Self {
        self.options.execution_id = Some(id);
        self
    }

    /// The same command; this becomes of it when its caller goes.
    pub fn with_on_disconnect(mut self, on_disconnect: OnDisconnect) -> Self {
        self.options.on_disconnect = on_disconnect;
        self
    }

    /// The same command, asked for by `identity`. The engine that starts it sets this, to whom it acts as.
    pub fn with_identity(mut self, identity: impl Into<String>) -> Self {
        self.options.identity = identity.into();
        self
    }
}

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
    fn new(program: Program) -> Self {
        Self { program, shell: None, login: false, options: Options::default() }
    }

    /// The shell for shell text: a name or a path.
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
    pub fn yield_after(mut self, patience: Duration) -> Self {
        self.options.yield_after = Some(patience);
        self
    }

    /// See [`Command::on_disconnect`].
    pub fn on_disconnect(mut self, on_disconnect: OnDisconnect) -> Self {
        self.options.on_disconnect = on_disconnect;
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

fn check(holds: bool, field: &'static str, reason: &'static str) -> Result<(), InvalidCommand> {
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
