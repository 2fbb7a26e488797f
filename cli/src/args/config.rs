//! The command line of `telexec config`.

use clap::Args;

use crate::config::ConnectArgs;

#[derive(Debug, Args)]
#[command(after_help = "\
The file is $TELEXEC_CONFIG, $XDG_CONFIG_HOME/telexec/config.toml or ~/.config/telexec/config.toml.
`man telexec.toml` documents its keys.

Examples:
  telexec config show
  telexec config show --json | jq -r '.targets | keys[]'
  $EDITOR \"$(telexec config path)\"")]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) action: ConfigAction,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum ConfigAction {
    /// Print the effective configuration, with flags, environment and defaults; contains no secrets
    Show {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        connect: Box<ConnectArgs>,
    },
    /// Print the path of the configuration file
    Path,
}
