//! The command to run, on one host or on many.

use std::time::Duration;

use clap::Args;
use telexec_executor::{Command, CommandBuilder, ResourceLimits, TraceContext, parse_size};

use crate::syntax::{parse_duration, parse_pair};

#[derive(Debug, Args)]
pub(crate) struct CommandArgs {
    /// Run this shell command
    #[arg(id = "command", short = 'c', value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "argv")]
    pub(crate) text: Option<String>,
    /// Program and arguments to run without a shell
    #[arg(last = true, value_name = "PROGRAM")]
    pub(crate) argv: Vec<String>,
    /// Set an environment variable; may be repeated
    #[arg(short = 'e', long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub(crate) env: Vec<(String, String)>,
    /// Time from SIGTERM to SIGKILL when ending the command [default: the agent's, 2s]
    #[arg(long, value_name = "DUR", value_parser = parse_duration)]
    pub(crate) kill_grace: Option<Duration>,
    /// Memory limit, for all processes of the command together
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memory: Option<u64>,
    /// Limit on concurrent processes and threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_processes: Option<u32>,
    /// CPU limit: 0.5 is half of one CPU, 2 is two CPUs
    #[arg(long, value_name = "N", value_parser = parse_cpus)]
    pub(crate) cpus: Option<f64>,
    /// Run the shell as a login shell
    #[arg(long, conflicts_with = "argv")]
    pub(crate) login: bool,
    /// Shell for -c [default: the agent's, bash]
    #[arg(long, value_name = "SHELL", conflicts_with = "argv")]
    pub(crate) shell: Option<String>,
    /// Reason, for the agent's policy and audit log
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Set a label that `telexec ps` can filter by; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub(crate) label: Vec<(String, String)>,
}

impl CommandArgs {
    /// The command as text.
    pub(crate) fn to_text(&self) -> String {
        self.text.clone().unwrap_or_else(|| self.argv.join(" "))
    }

    /// A builder with the settings of these flags.
    pub(crate) fn builder(&self) -> CommandBuilder {
        let mut builder = match &self.text {
            Some(text) => Command::shell(text).login(self.login),
            None => Command::argv(self.argv.iter().cloned()),
        };
        if let Some(shell) = &self.shell {
            builder = builder.shell(shell);
        }
        if let Some(reason) = &self.reason {
            builder = builder.reason(reason);
        }
        if let Some(grace) = self.kill_grace {
            builder = builder.kill_grace(grace);
        }
        builder
            .envs(self.env.iter().cloned())
            .labels(self.label.iter().cloned())
            .limits(ResourceLimits { memory_bytes: self.memory, max_processes: self.max_processes, cpus: self.cpus })
            .trace(TraceContext::from_environment())
    }
}

fn parse_cpus(text: &str) -> Result<f64, String> {
    let cpus = text.parse().ok().filter(|cpus: &f64| cpus.is_finite() && *cpus > 0.0);
    cpus.ok_or_else(|| "expected a number greater than 0, such as 0.5 or 2".to_owned())
}
