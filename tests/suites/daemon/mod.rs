//! `telexecd` as a program: how it is configured, what it inherits, logs and leaves, and how it ends.

mod configuration;
mod deploy;
mod handover;
mod health;
mod inheritance;
mod init;
mod logs;
mod memory;
mod shutdown;
mod sockets;
mod untaken_log;

/// Runs `telexecd` to its end: its exit code, and what it wrote to standard error.
async fn telexecd(args: &[&str], environment: &[(&str, &str)]) -> (i32, String) {
    let mut command = tokio::process::Command::from(telexec_tests::telexecd());
    command.args(args).envs(environment.iter().copied()).stdin(std::process::Stdio::null()).kill_on_drop(true);
    let output = telexec_tests::within(command.output()).await.unwrap();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}
