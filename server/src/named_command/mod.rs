//! Named commands: defined by the agent's configuration, and run by their names, such as `@restart-web web-3`.

mod definition;
mod program;
mod range;
mod word;

use std::collections::BTreeMap;
use std::sync::Arc;

use telexec_engine::{DYNAMIC_USER, look_up_users};
use telexec_executor::{Command, ExecutorError, NAMED_COMMAND, Program, SpawnError, SpawnStage, asked_named_command};
use telexec_proto::v1::NamedCommand;

use self::definition::Definition;
pub use self::definition::NamedCommandConfig;
use crate::invalid::InvalidSetting;

/// The most that the definitions may take in the answer of GetAgent, which passes through NATS as well.
const MAX_LISTED_BYTES: usize = 256 * 1024;

/// The named commands of an agent; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct NamedCommands(Arc<BTreeMap<String, Definition>>);

/// A command, once its name is resolved.
pub(crate) struct Resolved {
    /// What the definition makes of the request; the request itself, if it names no command or is refused.
    pub(crate) command: Command,
    /// Why it cannot run. Only callers who may run the command are told.
    pub(crate) refusal: Option<ExecutorError>,
}

impl NamedCommands {
    /// From their definitions.
    ///
    /// # Errors
    /// One of them is malformed.
    pub(crate) fn new(configured: &BTreeMap<String, NamedCommandConfig>) -> Result<Self, InvalidSetting> {
        let define = |(name, config): (&String, &NamedCommandConfig)| {
            let invalid = |fault: String| InvalidSetting(format!("commands.{name}: {fault}"));
            check_name(name).map_err(invalid)?;
            Ok((name.clone(), Definition::new(config).map_err(invalid)?))
        };
        let all = Self(Arc::new(configured.iter().map(define).collect::<Result<_, _>>()?));
        let listed: usize = all.list().iter().map(prost::Message::encoded_len).sum();
        match listed <= MAX_LISTED_BYTES {
            true => Ok(all),
            false => {
                Err(InvalidSetting(format!("commands: the definitions take more than {MAX_LISTED_BYTES} bytes in all")))
            }
        }
    }

    /// Whether [`resolve`](Self::resolve) takes no time to speak of.
    pub(crate) fn is_quick(&self, command: &Command) -> bool {
        asked(command).and_then(|(name, _)| self.0.get(name)).is_none_or(|definition| !definition.has_patterns())
    }

    /// Puts the definition of a named command in the place of its name.
    pub(crate) fn resolve(&self, command: Command) -> Resolved {
        let Some((name, arguments)) = asked(&command) else { return Resolved { command, refusal: None } };
        let defined = match self.0.get(name) {
            Some(definition) => definition.apply(name, arguments, &command).map_err(Into::into),
            None => Err(unknown(name)),
        };
        let name = name.to_owned();
        let (command, refusal) = match defined {
            Ok(defined) => (defined, None),
            Err(error) => (command, Some(error)),
        };
        Resolved { command: command.with_named_command(name), refusal }
    }

    /// Likely mistakes in the definitions, whose commands have this environment unless they say otherwise.
    pub(crate) fn warnings(&self, environment: &BTreeMap<String, String>) -> Vec<String> {
        let program = |(name, definition): (&String, &Definition)| {
            let fault = program::missing(definition.program()?, [definition.environment(), environment])?;
            Some(format!("commands.{name}: argv[0]: {fault}"))
        };
        let user = |(name, definition): (&String, &Definition)| {
            let user = definition.user().filter(|user| *user != DYNAMIC_USER)?;
            let error = look_up_users(&[user.to_owned()]).err()?;
            Some(format!("commands.{name}: user: {error}"))
        };
        self.0.iter().filter_map(program).chain(self.0.iter().filter_map(user)).collect()
    }

    /// Their definitions, for callers, without the values of variables.
    pub(crate) fn list(&self) -> Vec<NamedCommand> {
        self.0.iter().map(|(name, definition)| definition.to_wire(name)).collect()
    }
}

/// The name of the command that a request asks for, and the arguments.
fn asked(command: &Command) -> Option<(&str, &[String])> {
    let Program::Argv(argv) = command.program() else { return None };
    Some((asked_named_command(argv)?, argv.get(1..)?))
}

/// So that it is one word in every shell, and the name of a tool for every model.
fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    match begins && name.len() <= 64 && name.bytes().all(is_plain) {
        true => Ok(()),
        false => Err("the name does not match [A-Za-z0-9][A-Za-z0-9_-]{0,63}".to_owned()),
    }
}

/// As of a program that is not there.
fn unknown(name: &str) -> ExecutorError {
    let subject = format!("{NAMED_COMMAND}{name}");
    SpawnError { stage: SpawnStage::Exec, subject, errno: libc::ENOENT, missing_interpreter: false }.into()
}
