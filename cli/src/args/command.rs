//! The command to run, on one host or on many.

use std::time::Duration;

use clap::{Args, ValueEnum};
use telexec_executor::{
    Command, CommandBuilder, Descendants, ResourceLimits, TraceContext, USER_SHELL, asked_named_command, parse_size,
};

use crate::output::LOGIN_SHELL;
use crate::syntax::{EnvFile, Variable, parse_duration, parse_pair, parse_variable, read_env_file};

/// Less is a mistake.
const MIN_MEMORY_BYTES: u64 = 64 * 1024;

#[derive(Debug, Args)]
pub(crate) struct CommandArgs {
    /// Run this shell command
    #[arg(id = "command", short = 'c', value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "argv")]
    pub(crate) text: Option<String>,
    /// Program to run, without a shell, or @NAME; what follows is its arguments
    #[arg(trailing_var_arg = true, value_names = ["PROGRAM", "ARG"])]
    pub(crate) argv: Vec<String>,
    /// Set a variable, or pass on the caller's own; may be repeated
    #[arg(short = 'e', long, value_name = "NAME[=VALUE]", value_parser = parse_variable)]
    pub(crate) env: Vec<Variable>,
    /// Read variables from a file of NAME=VALUE lines; may be repeated
    #[arg(long, value_name = "FILE", value_parser = read_env_file)]
    pub(crate) env_file: Vec<EnvFile>,
    /// Send standard error to standard output, in the order of writing
    #[arg(long, hide_short_help = true)]
    pub(crate) merge: bool,
    /// Time from SIGTERM to SIGKILL when ending the command [default: the agent's, 2s]
    #[arg(long, hide_short_help = true, value_name = "DUR", value_parser = parse_duration)]
    pub(crate) kill_grace: Option<Duration>,
    /// What becomes of processes that the command leaves behind when it exits [default: keep]
    #[arg(long, hide_short_help = true, value_name = "POLICY", hide_default_value = true, default_value = "keep")]
    pub(crate) descendants: DescendantPolicy,
    /// Memory limit, for all processes of the command together
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub(crate) memory: Option<u64>,
    /// Limit on concurrent processes and threads
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_processes: Option<u32>,
    /// CPU limit: 0.5 is half of one CPU, 2 is two CPUs
    #[arg(long, value_name = "N", value_parser = parse_cpus)]
    pub(crate) cpus: Option<f64>,
    /// Keep programs such as sudo from raising the command's privileges
    #[arg(long, hide_short_help = true)]
    pub(crate) no_new_privileges: bool,
    /// Run the shell as a login shell
    #[arg(long, hide_short_help = true, conflicts_with = "argv")]
    pub(crate) login: bool,
    /// Shell for -c; '$SHELL' is the user's own [default: the agent's, bash]
    #[arg(long, hide_short_help = true, value_name = "SHELL", conflicts_with = "argv")]
    pub(crate) shell: Option<String>,
    /// Reason, for the agent's policy and audit log
    #[arg(long, hide_short_help = true, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Set a label, for filters of `telexec ps` and the audit log; may be repeated
    #[arg(long, hide_short_help = true, value_name = "NAME=VALUE", value_parser = parse_pair)]
    pub(crate) label: Vec<(String, String)>,
}

/// What an exit does to processes that are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DescendantPolicy {
    Keep,
    Kill,
}

impl CommandArgs {
    /// Whether there is a program or a text.
    pub(crate) fn is_given(&self) -> bool {
        self.text.is_some() || !self.argv.is_empty()
    }

    /// Whether it is a named command of the agent's, which has a user of its own.
    pub(crate) fn is_named(&self) -> bool {
        asked_named_command(&self.argv).is_some()
    }

    /// The command as text.
    pub(crate) fn to_text(&self) -> String {
        self.text.clone().unwrap_or_else(|| self.argv.join(" "))
    }

    /// The variables of the files, then those that replace them.
    pub(crate) fn environment(&self) -> impl Iterator<Item = &Variable> {
        self.env_file.iter().flat_map(|file| &file.0).chain(&self.env)
    }

    /// What to run; without a command a login shell.
    fn program(&self) -> CommandBuilder {
        match (&self.text, &self.shell) {
            (Some(text), None) => Command::shell(text).login(self.login),
            (Some(text), Some(shell)) => Command::shell(text).login(self.login).shell(shell),
            (None, _) if !self.argv.is_empty() => Command::argv(self.argv.iter().cloned()),
            (None, Some(shell)) if shell != USER_SHELL => Command::argv([shell, "-l"]),
            (None, _) => Command::shell(LOGIN_SHELL).shell("/bin/sh"),
        }
    }

    /// A builder with the settings of these flags.
    pub(crate) fn builder(&self) -> CommandBuilder {
        let mut builder = self.program();
        if let Some(reason) = &self.reason {
            builder = builder.reason(reason);
        }
        if let Some(grace) = self.kill_grace {
            builder = builder.kill_grace(grace);
        }
        builder
            .envs(self.environment().cloned())
            .merge_output(self.merge)
            .no_new_privileges(self.no_new_privileges)
            .descendants(match self.descendants {
                DescendantPolicy::Keep => Descendants::Keep,
                DescendantPolicy::Kill => Descendants::Kill,
            })
            .labels(self.label.iter().cloned())
            .limits(ResourceLimits { memory_bytes: self.memory, max_processes: self.max_processes, cpus: self.cpus })
            .trace(TraceContext::from_environment())
    }
}

/// A number of bytes in which no program runs lacks its unit.
fn parse_memory(text: &str) -> Result<u64, String> {
    let lacks_unit = |bytes: &u64| *bytes < MIN_MEMORY_BYTES && text.bytes().all(|byte| byte.is_ascii_digit());
    match parse_size(text)? {
        bytes if lacks_unit(&bytes) => Err(format!("that is {bytes} bytes: for megabytes write {text}M")),
        bytes => Ok(bytes),
    }
}

fn parse_cpus(text: &str) -> Result<f64, String> {
    let cpus = text.parse().ok().filter(|cpus: &f64| cpus.is_finite() && *cpus > 0.0);
    cpus.ok_or_else(|| "expected a number greater than 0, such as 0.5 or 2".to_owned())
}
