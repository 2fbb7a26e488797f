//! `telexec`: the operator's command.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    #[cfg(all(target_os = "linux", target_env = "gnu", target_feature = "crt-static"))]
    telexec_engine::look_up_in_files();
    telexec_cli::complete();
    let cli = telexec_cli::Cli::parse();
    ExitCode::from(telexec_cli::run(cli))
}
