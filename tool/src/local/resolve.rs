//! From a command to the one process that it becomes: the account, the shell, the environment, the directory.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::Path;

use super::LocalConfig;
use super::processes::MARKER;
use super::spawn::SpawnSpec;
use super::working_directory::Report;
use crate::{Command, ExecutionId, Program};

/// The user that commands run as: the one that this process runs as.
#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) name: String,
    home: String,
    shell: String,
    root: bool,
}

impl Account {
    pub(super) fn current() -> Self {
        let uid = nix::unistd::geteuid();
        let entry = nix::unistd::User::from_uid(uid).ok().flatten();
        let text = |path: std::path::PathBuf| path.into_os_string().into_string().ok().filter(|path| !path.is_empty());
        match entry {
            Some(user) => Self {
                name: user.name,
                home: text(user.dir).unwrap_or_else(|| "/".into()),
                shell: text(user.shell).unwrap_or_else(|| "/bin/sh".into()),
                root: uid.is_root(),
            },
            None => Self { name: uid.to_string(), home: "/".into(), shell: "/bin/sh".into(), root: uid.is_root() },
        }
    }

    /// What a command's environment starts from, as login(1) makes it.
    fn environment(&self) -> BTreeMap<String, String> {
        let path = match self.root {
            true => "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            false => "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
        };
        let lang = std::env::var("LANG").unwrap_or_else(|_| "C.UTF-8".into());
        [
            ("PATH", path),
            ("HOME", &self.home),
            ("USER", &self.name),
            ("LOGNAME", &self.name),
            ("SHELL", &self.shell),
            ("LANG", &lang),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }
}

/// What every command of an executor starts from.
pub(super) struct Defaults {
    pub(super) account: Account,
    environment: BTreeMap<String, String>,
    shell: String,
    working_directory: String,
}

impl Defaults {
    pub(super) fn new(config: &LocalConfig) -> Self {
        let account = Account::current();
        let mut environment = account.environment();
        environment.extend(config.environment.clone());
        let working_directory = config.working_directory.clone().unwrap_or_else(|| {
            // an account such as nobody has no home; it may still run commands
            if Path::new(&account.home).is_dir() { account.home.clone() } else { "/".into() }
        });
        Self { account, environment, shell: config.shell.clone(), working_directory }
    }

    pub(super) fn working_directory(&self, command: &Command) -> String {
        command.working_directory().unwrap_or(&self.working_directory).to_owned()
    }

    /// The command's program, with the shell that it gets by default.
    pub(super) fn program(&self, command: &Command) -> Program {
        match command.program().clone() {
            Program::Shell { text, shell, login } => {
                Program::Shell { text, shell: Some(shell.unwrap_or_else(|| self.shell.clone())), login }
            }
            argv => argv,
        }
    }

    /// The process that the command becomes.
    pub(super) fn resolve(&self, command: &Command, id: &ExecutionId, report: Option<&Report>) -> SpawnSpec {
        let argv = match self.program(command) {
            Program::Argv(argv) => argv,
            Program::Shell { text, shell, login } => {
                let text = report.map_or_else(|| text.clone(), |report| report.wrap(&text));
                let login = login.then(|| "-l".to_owned());
                shell.into_iter().chain(login).chain(["-c".to_owned(), text]).collect()
            }
        };
        let program = argv.first().cloned().unwrap_or_default();
        SpawnSpec {
            candidates: self.candidates(&program),
            program,
            argv: argv.into_iter().map(c_string).collect(),
            environment: self.environment(command, id),
            working_directory: c_string(self.working_directory(command)),
            piped_stdin: !command.stdin().is_empty(),
        }
    }

    /// Where a program may be: itself if it has a slash, otherwise in the search path of the agent, never that of the
    /// request.
    fn candidates(&self, program: &str) -> Vec<CString> {
        if program.contains('/') {
            return vec![c_string(program.to_owned())];
        }
        let path = self.environment.get("PATH").map_or("", String::as_str);
        let absolute = path.split(':').filter(|directory| directory.starts_with('/'));
        absolute.map(|directory| c_string(format!("{directory}/{program}"))).collect()
    }

    fn environment(&self, command: &Command, id: &ExecutionId) -> Vec<CString> {
        let mut variables = if command.clear_environment() { BTreeMap::new() } else { self.environment.clone() };
        variables.extend(command.environment().clone());
        // the agent's word: it finds the execution's processes by it
        variables.insert(MARKER.to_owned(), id.to_string());
        variables.into_iter().map(|(name, value)| c_string(format!("{name}={value}"))).collect()
    }
}

/// A [`Command`] and a checked configuration hold no NUL bytes.
fn c_string(text: String) -> CString {
    let mut bytes = text.into_bytes();
    bytes.retain(|byte| *byte != 0);
    CString::new(bytes).unwrap_or_default()
}
