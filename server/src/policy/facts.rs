//! What a policy may look at in a command.

use std::collections::BTreeSet;
use std::time::Duration;

use cedar_policy::RestrictedExpression as Value;
use telexec_engine::ResolvedCommand;
use telexec_executor::{Command, Program};
use telexec_shell::{ASSIGNED, Analysis, analyze, analyze_argv, analyze_posix, decides, decides_reading};

/// A command, and what it comes to on this machine.
pub(crate) struct Facts {
    pub(crate) command: Command,
    pub(crate) analysis: Analysis,
    /// `None`: there is no such user.
    place: Option<ResolvedCommand>,
    /// The time that it gets at most.
    timeout: Option<Duration>,
}

impl Facts {
    /// The command, and what is judged of it again while it runs: its input is no part of that.
    pub(crate) fn split(self) -> (Command, Self) {
        (self.command.clone(), Self { command: self.command.without_stdin(), ..self })
    }

    /// What there is to know of a command that runs there; `None`: there is no such user. A long text takes its time.
    pub(crate) fn at(command: Command, place: Option<ResolvedCommand>, timeout: Option<Duration>) -> Self {
        Self { analysis: analysis(&command, place.as_ref()), command, place, timeout }
    }

    /// What its programs have in their environment by the request: its variables, and those that its text sets, as far as
    /// that is understood.
    pub(crate) fn variables(&self) -> BTreeSet<&str> {
        let inherited = self.place.iter().flat_map(|place| &place.variables).map(String::as_str);
        let inherited: BTreeSet<_> = inherited.chain(SHELLS_OWN).collect();
        // the profiles that a login shell reads may export anything
        let login = matches!(self.command.program(), Program::Shell { login: true, .. });
        let given = self.command.environment().keys().map(String::as_str);
        let assigned = self.analysis.assigned.iter().map(String::as_str);
        let assigned = assigned.filter(|name| login || inherited.contains(name));
        given.chain(self.analysis.exported.iter().map(String::as_str)).chain(assigned).collect()
    }

    /// The context of its request; see `telexec.cedarschema`.
    pub(crate) fn context(&self, transport: &str) -> Vec<(String, Value)> {
        let command = &self.command;
        let text = |text: &str| Value::new_string(text.to_owned());
        let (argv, login) = match command.program() {
            Program::Shell { login, .. } => (&[][..], *login),
            Program::Argv(argv) => (argv.as_slice(), false),
        };
        let known = [
            ("transport", text(transport)),
            ("command", Value::new_string(command.text())),
            ("understood", Value::new_bool(self.analysis.understood)),
            ("terminal", Value::new_bool(command.terminal().is_some())),
            ("accepts_input", Value::new_bool(command.accepts_input())),
            ("login", Value::new_bool(login)),
            ("background", Value::new_bool(command.may_go_to_background())),
            ("reason", text(command.reason())),
        ];
        let analysis = &self.analysis;
        let place = self.place.as_ref();
        // what is not known is left out: see the schema
        let maybe_known = [
            ("labels", texts(command.labels().iter().map(|(key, value)| format!("{key}={value}")))),
            ("argv", texts(argv.iter().cloned())),
            ("environment", texts(self.variables().into_iter().map(str::to_owned))),
            ("programs", analysis.understood.then(|| texts(analysis.programs.iter().cloned())).flatten()),
            ("uses_sudo", (analysis.understood || analysis.uses_sudo).then(|| Value::new_bool(analysis.uses_sudo))),
            ("shell", place.map(|place| text(place.shell.as_deref().unwrap_or_default()))),
            ("user", place.map(|place| text(&place.user))),
            ("user_id", place.map(|place| Value::new_long(place.uid.into()))),
            ("working_directory", place.map(|place| &*place.working_directory).filter(|path| is_plain(path)).map(text)),
            ("timeout", self.timeout.map(duration)),
            ("limits", limits(command)),
        ];
        let maybe_known = maybe_known.into_iter().filter_map(|(name, value)| Some((name, value?)));
        known.into_iter().chain(maybe_known).map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// What it runs, as far as that can be told of a text: not if the request's variables decide.
fn analysis(command: &Command, place: Option<&ResolvedCommand>) -> Analysis {
    let shell = place.and_then(|place| place.shell.as_deref()).unwrap_or("bash");
    let mut analysis = match command.program() {
        Program::Shell { text, .. } => analyze_for(shell, text),
        Program::Argv(argv) => analyze_argv(argv),
    };
    let text = command.text();
    if command.environment().keys().any(|name| decides(name) || decides_reading(name, &text)) {
        analysis.not_understood(ASSIGNED);
    }
    analysis
}

/// A shell whose texts are understood, and no other file of its name.
fn analyze_for(shell: &str, text: &str) -> Analysis {
    let name = ["/bin/", "/usr/bin/"].iter().find_map(|directory| shell.strip_prefix(directory)).unwrap_or(shell);
    match name {
        "bash" => analyze(text),
        "sh" | "dash" => analyze_posix(text),
        _ => {
            let mut analysis = analyze(text);
            analysis.not_understood("it is not bash or sh that reads the text");
            analysis
        }
    }
}

/// Shells have these in the environment of what they run, whatever they were started with.
const SHELLS_OWN: [&str; 4] = ["OLDPWD", "PWD", "SHLVL", "_"];

/// More than so many are not looked at: no rule is about them, and each costs.
const MAX_TEXTS: usize = 4096;

fn texts(mut texts: impl Iterator<Item = String>) -> Option<Value> {
    let some = texts.by_ref().take(MAX_TEXTS).map(Value::new_string).collect::<Vec<_>>();
    texts.next().is_none().then(|| Value::new_set(some))
}

fn limits(command: &Command) -> Option<Value> {
    let limits = command.limits();
    let long = |number: u64| Value::new_long(i64::try_from(number).unwrap_or(i64::MAX));
    let given = [
        ("memory_bytes", limits.memory_bytes.map(long)),
        ("max_processes", limits.max_processes.map(|count| long(count.into()))),
        // a decimal has four digits
        ("cpus", limits.cpus.map(|cpus| Value::new_decimal(format!("{cpus:.4}")))),
    ];
    let given = given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::new_record(given).ok()
}

/// In whole milliseconds, rounded up, as Cedar counts.
fn duration(duration: Duration) -> Value {
    let millis = duration.as_nanos().div_ceil(1_000_000);
    Value::new_duration(format!("{}ms", i64::try_from(millis).unwrap_or(i64::MAX)))
}

/// There is one way to write it, and it leads where it says.
fn is_plain(path: &str) -> bool {
    path == "/"
        || path.strip_prefix('/').is_some_and(|rest| !rest.split('/').any(|part| matches!(part, "" | "." | "..")))
}
