//! Named commands: what callers may run by its name, such as `@restart-web web-3`, as the agent's configuration defines it.

mod definition;
mod word;

use std::collections::BTreeMap;
use std::sync::Arc;

use telexec_executor::{Command, ExecutorError, NAMED_COMMAND, Program, SpawnError, SpawnStage};
use telexec_proto::v1::NamedCommand;

use self::definition::Definition;
pub use self::definition::NamedCommandConfig;
use crate::invalid::InvalidSetting;

/// The most that the definitions may take in the answer of GetAgent.
const MAX_LISTED_BYTES: usize = 1024 * 1024;
/// The errno of a program that is not there.
const ENOENT: i32 = libc::ENOENT;

/// The named commands of an agent; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamedCommands(Arc<BTreeMap<String, Definition>>);

/// A command that is to be judged.
pub(crate) struct Named {
    /// What the definition makes of it; or as it was asked for, if it is refused or needs none.
    pub(crate) command: Command,
    /// Why it cannot run, for those who may run it.
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
            false => Err(InvalidSetting(format!("commands: are longer than {MAX_LISTED_BYTES} bytes together"))),
        }
    }

    /// What a request comes to: if it asks for a named command, what that runs.
    pub(crate) fn resolve(&self, command: Command) -> Named {
        let (Some(name), Program::Argv(argv)) = (command.named_command(), command.program()) else {
            return Named { command, refusal: None };
        };
        let (name, arguments) = (name.to_owned(), argv.get(1..).unwrap_or_default());
        let defined = match self.0.get(&name) {
            Some(definition) => definition.apply(&name, arguments, &command).map_err(ExecutorError::from),
            None => Err(unknown(&name)),
        };
        match defined {
            Ok(command) => Named { command, refusal: None },
            Err(error) => Named { command, refusal: Some(error) },
        }
    }

    /// What callers are told of them.
    pub(crate) fn list(&self) -> Vec<NamedCommand> {
        self.0.iter().map(|(name, definition)| definition.to_wire(name)).collect()
    }
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
    SpawnError { stage: SpawnStage::Exec, subject, errno: ENOENT, missing_interpreter: false }.into()
}
