//! The command line of `telexec tool`.

use clap::{Args, ValueEnum};

use super::complete;
use crate::config::ConnectArgs;
use crate::syntax::Destination;

#[derive(Debug, Args)]
#[command(after_help = "\
Tools:
  bash          a command, followed to its end
  exec_command  a command that becomes a task if it runs long; with the target local, a task ends
                with telexec
  task_output, task_input, task_stop, task_list
                go on with such a task

Styles of bash:
  plain       standard output; standard error and the exit code only if there is something to say
  code-first  the exit code, then the output
  sections    a section for each stream, then the exit code

Exit codes: 0 a result, 1 an error, 255 the agent is unreachable or was lost.

Examples:
  telexec tool local
  telexec tool local bash '{\"command\": \"ls -l\", \"timeout\": 10}'
  telexec tool web1:7443 exec_command '{\"cmd\": \"make\", \"workdir\": \"/src\"}'")]
pub(crate) struct ToolArgs {
    /// Where: local, unix:///PATH, HOST:PORT, a configured NAME, or a virtual machine (see `telexec --help`)
    #[arg(add = complete::targets())]
    pub(crate) target: Destination,
    /// Tool to call; without it, the tools are listed
    pub(crate) name: Option<String>,
    /// Its parameters; - reads them from standard input
    #[arg(value_name = "JSON", default_value = "{}", hide_default_value = true)]
    pub(crate) params: String,
    #[command(flatten)]
    pub(crate) options: ToolOptions,
    /// Show the command's output on standard error while it runs
    #[arg(long)]
    pub(crate) stream: bool,
    /// Print the definitions, or the whole result, as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// What the tools are like, whoever calls them.
#[derive(Debug, Args)]
pub(crate) struct ToolOptions {
    /// How bash lays out its answer
    #[arg(long, value_enum, default_value_t = ToolStyle::Plain)]
    pub(crate) style: ToolStyle,
    /// Run commands as this user [default: the target's in the configuration, or the agent's own]
    #[arg(short = 'u', long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Refuse commands whose text contains this; may be repeated. Against mistakes: what holds is the agent's policy
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) deny: Vec<String>,
}

// no doc comments on the values: they would stretch the help of every flag over several lines
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ToolStyle {
    Plain,
    CodeFirst,
    Sections,
}
