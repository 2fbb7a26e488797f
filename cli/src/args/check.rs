//! The command line of `telexec check`.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::ExecArgs;

#[derive(Debug, Args)]
#[command(
    // what matters only to a command that runs
    mut_args(|arg| match arg.get_id().as_str() {
        "detach_keys" | "wait_approval" | "receipt_file" | "id" | "queue" | "reconnect" => arg.hide(true),
        "json" => arg.help("Print one JSON object"),
        _ => arg,
    }),
)]
pub(crate) struct CheckArgs {
    /// Check for an identity such as unix:uid=1000, if CheckAs is permitted
    #[arg(long = "as", value_name = "IDENTITY", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) identity: Option<String>,
    #[command(flatten)]
    pub(crate) exec: ExecArgs,
}
