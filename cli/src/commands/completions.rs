//! `telexec completions`, and answering the scripts that it prints.
//!
//! The scripts call this program, with a variable in its environment, so they are never outdated.

use clap::CommandFactory;
use clap_complete::CompleteEnv;
use clap_complete::env::Shells;

use crate::args::{Cli, CompletionShell};
use crate::output::{self, Failure, exit};

/// Set by the scripts.
const VARIABLE: &str = "TELEXEC_COMPLETE";

/// Answers a completion script and exits; returns if this is not such a call.
pub(crate) fn complete() {
    CompleteEnv::with_factory(Cli::command).var(VARIABLE).complete();
}

/// Prints the completion script of a shell.
pub(crate) fn print(shell: CompletionShell) -> Result<(), Failure> {
    let name = match shell {
        CompletionShell::Bash => "bash",
        CompletionShell::Elvish => "elvish",
        CompletionShell::Fish => "fish",
        CompletionShell::Powershell => "powershell",
        CompletionShell::Zsh => "zsh",
    };
    let shells = Shells::builtins();
    let mut script = Vec::new();
    if let Some(shell) = shells.completer(name) {
        let written = shell.write_registration(VARIABLE, "telexec", "telexec", "telexec", &mut script);
        written.map_err(|error| Failure::new(exit::LOST, &error))?;
    }
    output::print(&script)
}
