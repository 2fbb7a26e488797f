//! The named commands of a target as tools.

use std::sync::Arc;
use std::time::Duration;

use telexec_client::NamedCommand;
use telexec_tool::{NamedCommandTool, NamedParameter, Tool};

use super::lazy_target::LazyTarget;
use super::server::TargetTools;
use crate::args::ToolOptions;
use crate::commands::tool::style;
use crate::output::{Failure, exit};

/// What a model needs to know of them.
pub(super) const ABOUT: [&str; 2] = [
    "Each tool is a command that the machine's administrator defined. It waits for the end of the command.",
    "An exit code other than 0 is a result, not a failure of the tool.",
];

/// The tools of a target.
///
/// # Errors
/// The target cannot be reached, does not let the caller ask, or has no named commands.
pub(super) async fn tools(options: &ToolOptions, target: &Arc<LazyTarget>) -> Result<TargetTools, Failure> {
    let commands = target.named_commands().await?;
    if commands.is_empty() {
        return Err(Failure::message(exit::USAGE, "the agent has no named commands").context(target.name()));
    }
    let tool = |command: NamedCommand| -> Arc<dyn Tool> {
        let tool = NamedCommandTool::new(Arc::clone(target), description(command)).style(style(options));
        Arc::new(tool.max_output_characters(options.max_output as usize))
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
        accepts_input: command.accepts_input,
    }
}
