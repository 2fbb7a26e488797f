//! `telexec`: the operator's command.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    telexec_cli::complete();
    let cli = telexec_cli::Cli::parse();
    ExitCode::from(telexec_cli::run(cli))
}
