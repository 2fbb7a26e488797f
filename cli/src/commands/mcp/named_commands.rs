//! The named commands of a target as tools.

use std::sync::Arc;
use std::time::Duration;

use telexec_client::NamedCommand;
use telexec_tool::{NamedCommandTool, NamedParameter, Tool};

use super::lazy_target::LazyTarget;
use super::server::{TARGET, TargetTools};
use crate::args::ToolOptions;
use crate::commands::tool::style;
use crate::output::{Failure, exit};

/// What a model needs to know of them.
pub(super) const ABOUT: [&str; 2] = [
    "Each tool is a command that the machine's administrator defined. It waits for the end of the command.",
    "An exit code other than 0 is a result, not a failure of the tool.",
];

/// The tools of a target, which is one of several or alone.
///
/// # Errors
/// The target cannot be reached, or does not let the caller ask; or a parameter has the name of the one for the target.
pub(super) async fn tools(
    options: &ToolOptions,
    target: &Arc<LazyTarget>,
    is_of_several: bool,
) -> Result<TargetTools, Failure> {
    let commands = target.named_commands().await;
    let commands = commands.map_err(|error| Failure::new(exit::of_error(&error), &error).context(target.name()))?;
    let hides = |command: &&NamedCommand| command.parameters.iter().any(|parameter| parameter.name == TARGET);
    if let Some(command) = commands.iter().find(hides).filter(|_| is_of_several) {
        let text = format!("@{} has a parameter named {TARGET}, which selects the machine here", command.name);
        let failure = Failure::message(exit::USAGE, text).context(target.name());
        return Err(failure.hint(Some("serve this target alone")));
    }
    let tool = |command: NamedCommand| -> Arc<dyn Tool> {
        let tool = NamedCommandTool::new(Arc::clone(target), description(command)).style(style(options));
        Arc::new(tool.max_output_characters(options.max_output as usize).deny(&options.deny))
    };
    let tools = commands.into_iter().map(tool).collect();
    Ok(TargetTools { name: target.name(), user: None, tools, sessionless: None })
}

fn description(command: NamedCommand) -> telexec_tool::NamedCommand {
    let parameters = command.parameters.into_iter().map(|parameter| NamedParameter {
        name: parameter.name,
        word: parameter.word,
        pattern: parameter.pattern,
        values: parameter.values,
    });
    telexec_tool::NamedCommand {
        name: command.name,
        description: command.description,
        argv: command.argv,
        parameters: parameters.collect(),
        timeout: command.timeout.and_then(|timeout| Duration::try_from(timeout).ok()),
    }
}
