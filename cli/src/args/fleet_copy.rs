//! The command lines of `telexec fleet cp` and `telexec fleet get`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use telexec_executor::FilePath;

use super::{CopyArgs, HostArgs, ScheduleArgs};
use crate::config::ConnectArgs;

#[derive(Debug, Args)]
#[command(
    override_usage = "telexec fleet cp [FLAGS] -w HOSTS FILE... PATH",
    after_long_help = "\
Each host gets all files, as by `telexec cp`. A relative PATH is relative to the user's home directory there. A host that \
fails is reported while others are copied to; repeat the command with the hosts that failed.

Exit codes: 0 copied to all hosts, 1 otherwise, 2 invalid command line or configuration, 130 after Ctrl-C.",
    after_help = "\
Examples:
  telexec fleet cp -w 'web[01-32]' nginx.conf /etc/nginx/
  telexec fleet cp -r -l www-data -w @web site /var/www"
)]
pub(crate) struct FleetCpArgs {
    /// Files here, then the file or directory to copy them to
    #[arg(required = true, value_name = "FILE")]
    #[arg(value_parser = OsStringValueParser::new().try_map(named))]
    pub(crate) files: Vec<OsString>,
    #[command(flatten)]
    pub(crate) common: FleetCopyArgs,
}

#[derive(Debug, Args)]
#[command(
    after_long_help = "\
Below DIR each host has a directory of its name, in which characters that do not fit become _. What is there already is \
replaced, but symbolic links there are not followed.

Exit codes: 0 copied from all hosts, 1 otherwise, 2 invalid command line or configuration, 130 after Ctrl-C.",
    after_help = "\
Examples:
  telexec fleet get -w @web /etc/nginx/nginx.conf configs     # configs/web01/nginx.conf, …
  telexec fleet get -r -w @db /var/log/postgresql logs"
)]
pub(crate) struct FleetGetArgs {
    /// File or directory of each host
    #[arg(value_name = "PATH", value_parser = OsStringValueParser::new().try_map(named))]
    pub(crate) path: OsString,
    /// Directory here
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    #[command(flatten)]
    pub(crate) common: FleetCopyArgs,
}

#[derive(Debug, Args)]
pub(crate) struct FleetCopyArgs {
    #[command(flatten)]
    pub(crate) copy: CopyArgs,
    /// Print the outcome of each host as a JSON line
    #[arg(long)]
    pub(crate) json: bool,
    /// Print no progress, no failures and no summary
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) hosts: HostArgs,
    #[command(flatten)]
    pub(crate) schedule: ScheduleArgs,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

impl FleetGetArgs {
    pub(crate) fn path(&self) -> FilePath {
        FilePath::new(self.path.clone().into_vec())
    }
}

/// Standard input could be sent to one host only.
fn named(text: OsString) -> Result<OsString, String> {
    match text.as_encoded_bytes() {
        b"-" => Err("standard input and output are not for many hosts: use a file; one called - is ./-".to_owned()),
        b"" => Err("is empty".to_owned()),
        _ => Ok(text),
    }
}
