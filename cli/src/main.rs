//! `telexec`: the operator's command.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = telexec_cli::Cli::parse();
    ExitCode::from(telexec_cli::run(cli))
}
