//! The command line of `telexec check`.

use clap::Args;

use super::ExecArgs;

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Check for another identity, if the policy permits that (CheckAs)
    #[arg(long = "as", value_name = "IDENTITY")]
    pub(crate) identity: Option<String>,
    #[command(flatten)]
    pub(crate) exec: ExecArgs,
}
