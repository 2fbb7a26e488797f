//! From a command to the one process that it becomes: the user, the shell, the environment, the directory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::CString;

use telexec_executor::trace::{TRACEPARENT, TRACESTATE};
use telexec_executor::{Command, ExecutionId, Program, SpawnError, USER_SHELL};

use super::SpawnSpec;
use super::account::{Account, Environment};
use super::dynamic_user::DYNAMIC_USER;
use super::working_directory::Report;
use crate::LocalConfig;
use crate::key::Key;
use crate::process::environ::MARKER;

/// What every command of an executor starts from.
pub(crate) struct Defaults {
    /// Of commands that name no user.
    account: Account,
    /// The user of the process that starts commands.
    own: u32,
    environment: BTreeMap<String, String>,
    shell: String,
    working_directory: Option<String>,
    no_new_privileges: bool,
    max_private_bytes: u64,
}

impl Defaults {
    /// `own`: the user of the process that starts commands, `account`: that of commands that name none.
    pub(crate) fn new(config: &LocalConfig, own: u32, account: Account) -> Self {
        Self {
            account,
            own,
            environment: config.environment.clone(),
            shell: config.shell.clone(),
            working_directory: config.working_directory.clone(),
            no_new_privileges: config.no_new_privileges,
            max_private_bytes: config.max_private_bytes.unwrap_or_else(|| memory_bytes() / 4),
        }
    }

    /// Whether nothing that the command executes as this user gives it privileges.
    pub(crate) fn no_new_privileges(&self, command: &Command, account: &Account) -> bool {
        self.no_new_privileges || account.is_dynamic || command.no_new_privileges()
    }

    /// Who commands run as that name no user.
    pub(crate) fn user(&self) -> &str {
        &self.account.name
    }

    /// The user that has to be looked up for it; `None`: the default.
    pub(crate) fn named_user<'a>(&self, command: &'a Command) -> Option<&'a str> {
        command.user().filter(|name| !(self.account.is_dynamic && *name == DYNAMIC_USER))
    }

    /// Who the command runs as. May take long, see [`Account::find`].
    ///
    /// # Errors
    /// There is no such user.
    pub(crate) fn account(&self, command: &Command) -> Result<Account, SpawnError> {
        self.named_user(command).map_or_else(|| Ok(self.account.clone()), |name| Account::find(name, self.own))
    }

    /// Where the command starts.
    pub(crate) fn working_directory(&self, command: &Command, account: &Account) -> String {
        let asked = command.working_directory().or(self.working_directory.as_deref());
        asked.unwrap_or_else(|| account.directory()).to_owned()
    }

    /// The shell that reads the command's text; `None`: it is a program without a shell.
    fn shell<'a>(&'a self, command: &'a Command) -> Option<&'a str> {
        match command.program() {
            Program::Shell { shell, .. } => Some(shell.as_deref().unwrap_or(&self.shell)),
            Program::Argv(_) => None,
        }
    }

    /// The same, where [`USER_SHELL`] is what it stands for in this environment of that user.
    pub(crate) fn shell_of(&self, command: &Command, account: &Account, base: &Environment<'_>) -> Option<String> {
        self.shell(command).map(|shell| self.known(shell, account, base).to_owned())
    }

    /// The same, as far as it is known without looking a user up.
    pub(crate) fn known_shell(&self, command: &Command) -> Option<String> {
        match self.named_user(command) {
            None => self.shell_of(command, &self.account, &self.base(command, &self.account)),
            Some(_) => self.shell(command).map(str::to_owned),
        }
    }

    /// The account of a service has no login shell, but its agent runs commands as it; nor has a dynamic user one.
    fn known<'a>(&'a self, shell: &'a str, account: &Account, base: &'a Environment<'_>) -> &'a str {
        if shell != USER_SHELL {
            return shell;
        }
        let own = base.get("SHELL").map_or("", AsRef::as_ref);
        let is_none = matches!(own.rsplit('/').next(), Some("" | "nologin" | "false"));
        let takes_default = account.is_dynamic || (is_none && account.uid == self.account.uid);
        if takes_default { &self.shell } else { own }
    }

    /// The command's program, with the shell that it gets by default.
    pub(crate) fn program(&self, command: &Command) -> Program {
        let mut program = command.program().clone();
        if let Program::Shell { shell, .. } = &mut program {
            *shell = self.shell(command).map(str::to_owned);
        }
        program
    }

    /// The environment without what the request sets.
    pub(crate) fn base<'a>(&'a self, command: &Command, account: &'a Account) -> Environment<'a> {
        let mut base = account.environment();
        if command.terminal().is_some() {
            base.insert("TERM", TERM.into());
        }
        base.extend(borrowed(&self.environment));
        base
    }

    /// The process that the command becomes.
    pub(crate) fn resolve(
        &self,
        command: &Command,
        account: Account,
        id: &ExecutionId,
        key: &Key,
        report: Option<&Report>,
    ) -> SpawnSpec {
        let base = self.base(command, &account);
        let argv = match self.program(command) {
            Program::Argv(argv) => argv,
            Program::Shell { text, shell, login } => {
                let shell = shell.map(|shell| self.known(&shell, &account, &base).to_owned());
                let text = report.map_or_else(|| text.clone(), |report| report.wrap(&text));
                let login = login.then(|| "-l".to_owned());
                shell.into_iter().chain(login).chain(["-c".to_owned(), text]).collect()
            }
        };
        let program = argv.first().cloned().unwrap_or_default();
        SpawnSpec {
            candidates: candidates(&program, base.get("PATH").map_or("", AsRef::as_ref)),
            program,
            argv: argv.into_iter().map(c_string).collect(),
            working_directory: c_string(self.working_directory(command, &account)),
            environment: environment(base, command, id, key),
            private_directories: account.is_dynamic.then_some(self.max_private_bytes),
            no_new_privileges: self.no_new_privileges(command, &account),
            credentials: account.credentials,
            ..SpawnSpec::default()
        }
    }
}

/// Of this machine.
#[allow(clippy::useless_conversion, reason = "the C type is shorter on some machines")]
fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    u64::from(info.totalram) * u64::from(info.mem_unit)
}

/// The variable that holds the id of a command's execution.
const ID: &str = "TELEXEC_EXECUTION_ID";

/// What nearly all terminals understand.
const TERM: &str = "xterm-256color";

/// Where a program may be: itself if it has a slash, otherwise in the search path of the agent, never that of the
/// request.
fn candidates(program: &str, path: &str) -> Vec<CString> {
    if program.contains('/') {
        return vec![c_string(program)];
    }
    let absolute = path.split(':').filter(|directory| directory.starts_with('/'));
    absolute.map(|directory| c_string_of(&[directory, "/", program])).collect()
}

fn borrowed(variables: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
    variables.iter().map(|(name, value)| (&**name, value.into()))
}

fn environment<'a>(base: Environment<'a>, command: &'a Command, id: &ExecutionId, key: &Key) -> Vec<CString> {
    let mut variables = if command.clear_environment() { Environment::new() } else { base };
    variables.extend(borrowed(command.environment()));
    if let Some(trace) = command.trace().filter(|_| !command.environment().contains_key(TRACEPARENT)) {
        variables.insert(TRACEPARENT, trace.traceparent().into());
        match trace.tracestate() {
            "" => drop(variables.remove(TRACESTATE)),
            state => drop(variables.insert(TRACESTATE, state.into())),
        }
    }
    // whatever the request says: the agent finds the execution's processes by the key
    variables.insert(ID, id.to_string().into());
    variables.insert(MARKER, key.to_string().into());
    variables.iter().map(|(name, value)| c_string_of(&[name, "=", value])).collect()
}

fn c_string(text: impl AsRef<str>) -> CString {
    c_string_of(&[text.as_ref()])
}

/// A [`Command`] and a checked configuration hold no NUL bytes.
fn c_string_of(parts: &[&str]) -> CString {
    // with room for the NUL byte, it is allocated once
    let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len()).sum::<usize>() + 1);
    parts.iter().for_each(|part| bytes.extend_from_slice(part.as_bytes()));
    bytes.retain(|byte| *byte != 0);
    CString::new(bytes).unwrap_or_default()
}
