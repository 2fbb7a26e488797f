//! `telexec`: the operator's command.

mod args; // the command line and its help
mod commands; // the subcommands
mod config; // the configuration file, and connection settings from it
mod connect; // from a target to a connected agent
mod follow; // output and input of a running execution
mod output; // messages, JSON, tables, exit codes
mod syntax; // parsers: targets, sets of hosts, durations
mod terminal; // the terminal, standard input and signals of this process

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(all(target_os = "linux", target_env = "gnu", target_feature = "crt-static"))]
    telexec_engine::look_up_in_files();
    #[cfg(target_os = "linux")]
    if let Some(code) = telexec_server::serve_if_asked() {
        return code;
    }
    commands::complete();
    ExitCode::from(commands::run(args::parse()))
}
