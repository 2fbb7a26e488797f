//! The command line of `telexec tool`.

use clap::{Args, ValueEnum};

use super::agent::{AnyAgentArg, QueueArg};
use crate::config::ConnectArgs;

#[derive(Debug, Args)]
#[command(
    after_long_help = "\
Tools:
  bash          runs a command to completion
  exec_command  runs a command that becomes a background task if it takes long; on the target local,
                tasks end with telexec
  task_output, task_input, task_stop, task_list
                work with background tasks
  read_file, write_file, edit_file
                read and change a file
  list_directory, glob, grep
                find files, and lines in them

Styles of bash:
  plain       standard output; standard error and the exit code only if not empty or 0
  code-first  the exit code, then the output
  sections    one section per stream, then the exit code

Exit codes: 0 success, 1 the tool returned an error, 2 invalid command line or configuration, 125 refused by the \
agent's policy, 255 the agent is unreachable or the connection was lost.",
    after_help = "\
Examples:
  telexec tool local
  telexec tool local bash '{\"command\": \"ls -l\", \"timeout\": 10}'
  telexec tool web1 exec_command '{\"cmd\": \"make\", \"workdir\": \"/src\"}'
  telexec tool web1 grep '{\"pattern\": \"TODO\", \"path\": \"/src\"}'"
)]
pub(crate) struct ToolArgs {
    #[command(flatten)]
    pub(crate) agent: AnyAgentArg,
    /// Tool to call [default: list the tools]
    pub(crate) name: Option<String>,
    /// Parameters of the tool; - reads them from standard input
    #[arg(value_name = "JSON", default_value = "{}", hide_default_value = true)]
    pub(crate) params: String,
    #[command(flatten)]
    pub(crate) options: ToolOptions,
    /// Show the command's output on standard error while it runs
    #[arg(long)]
    pub(crate) stream: bool,
    /// Print the tool definitions or the full result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) queue: QueueArg,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Options of the tools, for `telexec tool` and `telexec mcp`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ToolOptions {
    /// Output format of the tool bash
    #[arg(long, value_enum, default_value_t = ToolStyle::Plain)]
    pub(crate) style: ToolStyle,
    /// Maximum length of an answer of bash and of the tools for files, in characters
    #[arg(long, value_name = "CHARS", default_value_t = 30_000, value_parser = clap::value_parser!(u32).range(1_000..=10_000_000))]
    pub(crate) max_output: u32,
    /// Run commands and open files as this user [default: the target's configured user, or the agent's]
    #[arg(short = 'u', visible_short_alias = 'l', long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Refuse commands that contain this text; may be repeated. Prevents mistakes only: to enforce, use the agent's policy
    #[arg(long, hide_short_help = true, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) deny: Vec<String>,
}

// no doc comments on the values: clap would spread the help of every flag over several lines
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ToolStyle {
    Plain,
    CodeFirst,
    Sections,
}
