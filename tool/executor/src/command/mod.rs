//! A command to run: valid by construction, so that nothing behind it has anything left to check.

mod builder;
mod fingerprint;
mod resource_limits;
mod terminal_size;

use std::collections::BTreeMap;
use std::mem;
use std::time::{Duration, Instant};

use bytes::Bytes;

pub use self::builder::CommandBuilder;
pub use self::fingerprint::Fingerprint;
pub use self::resource_limits::ResourceLimits;
pub use self::terminal_size::TerminalSize;
use crate::{ExecutionId, TraceContext};

/// A command to run. Made by [`Command::shell`] or [`Command::argv`].
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    program: Program,
    options: Options,
}

/// As the shell of a command: the one that is SHELL in its base environment, which is that of its user's account unless the
/// executor's configuration says otherwise. Where the executor's own account has none (nologin), it is the default shell. See
/// passwd(5).
pub const USER_SHELL: &str = "$SHELL";

/// Before the name of a named command, as the program of a command: the agent's configuration has what that runs. The arguments
/// are for its parameters. What has a slash in it is the path of a program.
pub const NAMED_COMMAND: char = '@';

/// The name of the [named command](NAMED_COMMAND) that a program and its arguments ask for.
pub fn asked_named_command(argv: &[impl AsRef<str>]) -> Option<&str> {
    let program = argv.first()?.as_ref();
    program.strip_prefix(NAMED_COMMAND).filter(|name| !name.contains('/'))
}

/// What a command runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    /// Text for a shell: `shell -c text`.
    Shell {
        /// The text.
        text: String,
        /// A name or a path, or [`USER_SHELL`]; `None`: the executor's default, usually `bash`.
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
    /// They are ended before the exit is reported.
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
    /// program or text, directory, shell, login, terminal, user and receipt.
    ReuseRunning,
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
    disconnect_grace: Duration,
    duplicate_policy: DuplicatePolicy,
    execution_id: Option<ExecutionId>,
    max_output_bytes: u64,
    merge_output: bool,
    no_new_privileges: bool,
    receipt: bool,
    labels: BTreeMap<String, String>,
    report_working_directory: bool,
    descendants: Descendants,
    reason: String,
    trace: Option<TraceContext>,
    named_command: Option<String>,
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

    /// The name of the [named command](NAMED_COMMAND) that it is. One that only asks for such a command has none.
    pub fn named_command(&self) -> Option<&str> {
        self.options.named_command.as_deref()
    }

    /// The same command, which is the named command of this name.
    pub fn with_named_command(mut self, name: impl Into<String>) -> Self {
        self.options.named_command = Some(name.into());
        self
    }

    /// A builder with all that this command is.
    pub fn into_builder(self) -> CommandBuilder {
        CommandBuilder::of(self)
    }

    /// What it runs.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Whether its text is for [`USER_SHELL`].
    pub fn uses_user_shell(&self) -> bool {
        matches!(&self.program, Program::Shell { shell: Some(shell), .. } if shell == USER_SHELL)
    }

    /// The same with this shell in place of [`USER_SHELL`], if its text is for that.
    #[must_use]
    pub fn with_user_shell(mut self, known: &str) -> Self {
        if let Program::Shell { shell: Some(shell), .. } = &mut self.program
            && shell == USER_SHELL
        {
            known.clone_into(shell);
        }
        self
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

    /// If it still runs this long after its start, its stream ends with [`crate::Event::Promoted`], and it continues in the
    /// background.
    pub fn yield_after(&self) -> Option<Duration> {
        self.options.yield_after
    }

    /// What becomes of it when its [`crate::Execution`] is dropped before the end.
    pub fn on_disconnect(&self) -> OnDisconnect {
        self.options.on_disconnect
    }

    /// With [`OnDisconnect::Kill`]: how long after a lost connection its caller may attach again, with a grace, before it
    /// is ended. Dropping its [`crate::Execution`] still ends it at once. Zero: a lost connection does too.
    pub fn disconnect_grace(&self) -> Duration {
        self.options.disconnect_grace
    }

    /// What becomes of it while the same one runs already.
    pub fn duplicate_policy(&self) -> DuplicatePolicy {
        self.options.duplicate_policy
    }

    /// It may run on without anyone who reads its output.
    pub fn may_go_to_background(&self) -> bool {
        self.options.on_disconnect == OnDisconnect::Detach || self.options.yield_after.is_some()
    }

    /// Equal for equal requests of one identity, whatever their deadlines and traces are; the same in every version of this
    /// program.
    pub fn fingerprint(&self, identity: &str) -> Fingerprint {
        fingerprint::of(identity, &self.program, &self.options)
    }

    /// Chosen by the caller; `None`: the executor makes one.
    pub fn execution_id(&self) -> Option<&ExecutionId> {
        self.options.execution_id.as_ref()
    }

    /// For each stream, in bytes; 0: the executor's default.
    pub fn max_output_bytes(&self) -> u64 {
        self.options.max_output_bytes
    }

    /// Standard error goes to the same pipe as standard output: all that it writes is standard output, in the order in
    /// which it was written. A terminal does that anyway.
    pub fn merge_output(&self) -> bool {
        self.options.merge_output
    }

    /// Neither it nor anything that it starts gains privileges by executing a program: set-user-ID programs such as sudo have
    /// none; see PR_SET_NO_NEW_PRIVS in prctl(2). Default: no.
    pub fn no_new_privileges(&self) -> bool {
        self.options.no_new_privileges
    }

    /// Its exit comes with a receipt, signed by the agent: [`crate::Exited::receipt`].
    pub fn receipt(&self) -> bool {
        self.options.receipt
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

    /// The span that it belongs to: the executor passes it to the command, as `TRACEPARENT` and `TRACESTATE`, unless the
    /// command has a variable `TRACEPARENT` of its own.
    pub fn trace(&self) -> Option<&TraceContext> {
        self.options.trace.as_ref()
    }

    /// The same command in this span, or in none.
    pub fn with_trace(mut self, trace: Option<TraceContext>) -> Self {
        self.options.trace = trace;
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

    /// The same command with this [`disconnect_grace`](Self::disconnect_grace).
    pub fn with_disconnect_grace(mut self, grace: Duration) -> Self {
        self.options.disconnect_grace = grace;
        self
    }

    /// The same command; this becomes of it when its caller goes.
    pub fn with_on_disconnect(mut self, on_disconnect: OnDisconnect) -> Self {
        self.options.on_disconnect = on_disconnect;
        self
    }
}
