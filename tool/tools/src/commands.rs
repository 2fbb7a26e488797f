//! What the tools that run commands have in common: where their commands run and as whom, and what is refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use telexec_executor::guard::Guard;
use telexec_executor::{Command, CommandBuilder, Execution, Executor, ExecutorError};

/// The commands of a tool, as it was configured.
pub(crate) struct Commands {
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) denied: Vec<String>,
    pub(crate) directory: Option<String>,
    pub(crate) shell: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) environment: BTreeMap<String, String>,
}

impl Commands {
    pub(crate) fn new(executor: Arc<dyn Executor>) -> Self {
        let (denied, environment) = (Vec::new(), BTreeMap::new());
        Self { executor, denied, directory: None, shell: None, user: None, environment }
    }

    /// The command of a call. `None`: the call names no shell, or no directory.
    pub(crate) fn command(&self, text: &str, shell: Option<String>, directory: Option<String>) -> CommandBuilder {
        let mut command = Command::shell(text).envs(self.environment.clone());
        if let Some(shell) = shell.or_else(|| self.shell.clone()) {
            command = command.shell(shell);
        }
        if let Some(user) = &self.user {
            command = command.user(user);
        }
        if let Some(path) = directory.or_else(|| self.directory.clone()) {
            command = command.working_directory(path);
        }
        command
    }

    /// Starts a command, unless it is denied.
    pub(crate) async fn execute(&self, command: Command) -> Result<Execution, ExecutorError> {
        // the deny patterns are the outermost, whatever the executor was wrapped in
        Guard::deny(Arc::clone(&self.executor), &self.denied).execute(command).await
    }
}

/// Writes the setters of a tool whose field `commands` is its [`Commands`].
macro_rules! command_setters {
    () => {
        /// Where commands start, unless a call or a command before it says otherwise: an absolute path. Default: the
        /// executor's.
        #[must_use]
        pub fn cwd(mut self, path: impl Into<String>) -> Self {
            self.commands.directory = Some(path.into());
            self
        }

        /// The POSIX shell of commands, unless a call names another: a name or a path. Default: the executor's, usually `bash`.
        #[must_use]
        pub fn shell(mut self, shell: impl Into<String>) -> Self {
            self.commands.shell = Some(shell.into());
            self
        }

        /// Who commands run as. Default: the executor's own user.
        #[must_use]
        pub fn user(mut self, name: impl Into<String>) -> Self {
            self.commands.user = Some(name.into());
            self
        }

        /// Adds a variable to every command's environment.
        #[must_use]
        pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
            self.commands.environment.insert(name.into(), value.into());
            self
        }

        /// Refuses commands that contain one of these patterns; see [`Guard::deny`]. No one is asked to confirm them.
        /// Input that is written to a running command is not checked.
        ///
        /// [`Guard::deny`]: telexec_executor::guard::Guard::deny
        #[must_use]
        pub fn deny(mut self, patterns: impl IntoIterator<Item = impl Into<String>>) -> Self {
            self.commands.denied.extend(patterns.into_iter().map(Into::into));
            self
        }

        /// Asks before every command; see [`Guard::confirm`]. The time it takes does not count towards the command's
        /// timeout.
        ///
        /// [`Guard::confirm`]: telexec_executor::guard::Guard::confirm
        #[must_use]
        pub fn confirm<F: ::std::future::Future<Output = bool> + Send + 'static>(
            mut self,
            ask: impl Fn(String) -> F + Send + Sync + 'static,
        ) -> Self {
            self.commands.executor =
                ::std::sync::Arc::new(::telexec_executor::guard::Guard::confirm(self.commands.executor, ask));
            self
        }
    };
}
pub(crate) use command_setters;
