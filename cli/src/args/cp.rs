//! The command line of `telexec cp`.

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use crate::config::ConnectArgs;
use crate::connect::ReconnectArgs;
use crate::syntax::{Location, parse_location};

#[derive(Debug, Args)]
#[command(
    override_usage = "telexec cp [FLAGS] FILE... TARGET:PATH\n       \
                      telexec cp [FLAGS] TARGET:FILE... PATH",
    after_long_help = "\
One side is TARGET:PATH. The path begins after the colon that ends the target: web1:notes, web1:7443:/etc/hosts, \
unix:///run/telexec/agent.sock:/etc/hosts. A relative path is relative to the user's home directory. A file here whose \
name has a colon is written ./a:b. - is standard input or output.

A file has its new name when all of it has arrived, and its SHA-256 was compared: until then, and if the copy fails, \
whoever opens it finds the old file. A file that is replaced keeps its mode and, as far as the user may give files away, \
its owner, and becomes executable if its source is. A new file has the permissions of its source, less the umask. With -r directories and files get the permissions of \
their sources, and symbolic links are copied as such. Holes of files stay holes.

A copy of one file that was interrupted continues where it was when it is repeated: of a copy to a target the agent keeps \
what has arrived for its max_disconnect_grace (5m unless configured), of one from a target .telexec-part-… stays beside the destination until the \
copy is repeated. What was kept is used if its SHA-256 is that of the source.

Exit codes: 0 copied, 1 a file could not be copied (the others are), 2 invalid command line or configuration, 125 refused \
by the agent, 130 after Ctrl-C, 255 the agent is unreachable or the connection was lost.",
    after_help = "\
Examples:
  telexec cp app.tar.gz build-7:/srv/
  telexec cp -r build-7:/var/log/nginx logs
  telexec cp -l www-data index.html unix:///run/telexec/agent.sock:/var/www/
  pg_dump shop | telexec cp - db1:/backup/shop.sql"
)]
pub(crate) struct CpArgs {
    /// Files to copy, then the file or directory to copy them to; one side is TARGET:PATH
    #[arg(required = true, value_name = "FILE")]
    #[arg(value_parser = OsStringValueParser::new().try_map(parse_location))]
    pub(crate) files: Vec<Location>,
    #[command(flatten)]
    pub(crate) copy: CopyArgs,
    /// Show no progress
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// How to copy, to one machine or many.
#[derive(Clone, Debug, Args)]
pub(crate) struct CopyArgs {
    /// Copy directories with all that is in them
    #[arg(short = 'r', short_alias = 'R', long)]
    pub(crate) recursive: bool,
    /// Open the target's files as this user [default: the target's configured user, or the
    /// agent's default user]
    #[arg(short = 'l', short_alias = 'u', long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Read each source twice, so that one that changes while it is sent is not copied
    #[arg(long, conflicts_with = "recursive")]
    pub(crate) checksum: bool,
    #[command(flatten)]
    pub(crate) reconnect: ReconnectArgs,
}
