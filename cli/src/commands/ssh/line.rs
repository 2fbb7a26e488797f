//! What a command line of ssh(1) says.

use std::time::Duration;

/// The whole line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) request: Request,
    pub(super) settings: Settings,
    /// As it is written, without the user and the port. Empty only where the request needs none.
    pub(super) host: String,
    /// The command, joined by spaces.
    pub(super) command: Option<String>,
}

/// What to do.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Request {
    #[default]
    Run,
    /// -G
    Settings,
    /// -V
    Version,
    /// -Q
    Query(String),
    /// -O
    Control(String),
}

/// What flags and -o set. As with ssh, the first of several counts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) user: Option<String>,
    pub(super) port: Option<u16>,
    /// Where the host is, if it is not its name.
    pub(super) host_name: Option<String>,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) tty: Option<Tty>,
    pub(super) session: Option<Session>,
    /// Standard input is /dev/null.
    pub(super) no_stdin: bool,
    /// -f
    pub(super) background: bool,
    pub(super) log_level: Option<LogLevel>,
    pub(super) log_file: Option<String>,
    pub(super) remote_command: Option<String>,
    pub(super) environment: Vec<(String, String)>,
    /// Patterns of the caller's own variables.
    pub(super) send_environment: Vec<String>,
    pub(super) forwards: Vec<Forward>,
    /// A socket that cannot be listened on ends it all.
    pub(super) forwards_are_needed: bool,
    /// -W
    pub(super) stdio_forward: Option<String>,
    /// -J and ProxyCommand: what leads to the host.
    pub(super) proxy: Option<String>,
    /// -w
    pub(super) tunnel: Option<String>,
}

/// Whether the command gets a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tty {
    /// -T
    Never,
    /// If no command is given and standard input is a terminal.
    Auto,
    /// -t: if standard input is a terminal.
    Wanted,
    /// -tt
    Always,
}

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Session {
    Command,
    /// -N
    Nothing,
    /// -s
    Subsystem,
}

/// Which messages are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LogLevel {
    Quiet,
    Errors,
    All,
}

/// -L, -R or -D.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Forward {
    /// The flag.
    pub(super) kind: char,
    /// Its value.
    pub(super) specification: String,
}

impl Settings {
    pub(super) fn set_log_level(&mut self, level: LogLevel) {
        self.log_level.get_or_insert(level);
    }

    pub(super) fn forward(&mut self, kind: char, specification: &str) {
        self.forwards.push(Forward { kind, specification: specification.to_owned() });
    }
}
