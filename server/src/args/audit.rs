//! `telexecd audit`.

use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use telexec_executor::Program;

use crate::audit::{Query, digest, search_files, verify_files};
use crate::identity::patterns::NamePatterns;

/// The events of records.
const EVENTS: [&str; 13] = [
    "start",
    "end",
    "not_started",
    "denied",
    "refused",
    "rejected",
    "call",
    "forward",
    "file",
    "more",
    "opened",
    "recovered",
    "closed",
];

/// Subcommands of `audit`.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum AuditAction {
    /// Verify an audit log: print the first record that was modified or is missing, if any
    #[command(
        after_help = "Prints the number of records, the last hash, and the starts without an end; exits with 0, with \
1 if the chain is broken or has no record, and with 2 if a file cannot be read. Anyone who can write the file can also \
shorten it, or replace it by a new, valid chain: from time to time save the last hash on another machine, and give it to \
the next verification.\n\n\
Examples:\n  \
telexecd audit verify /var/log/telexec/audit.log\n  \
telexecd audit verify --expect \"$LAST_HASH\" /var/log/telexec/audit.log"
    )]
    Verify {
        /// Hash that a record must have: the last one of an earlier verification
        #[arg(long, value_name = "HASH")]
        expect: Option<String>,
        /// Log file, whose rotated files are found beside it; or all files, oldest first
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Search an audit log: print the records that all of the given options match
    #[command(
        after_help = "Prints a line per record: time, event, identity, execution ID, and what was asked for or came of it. \
The chain is not verified: see verify.\n\n\
TIME is such as 2026-11-26, 2026-11-26T08:30:00Z, or a duration before now, such as 30m or 2d.\n\n\
Exit codes: 0 found, 1 nothing found, 2 invalid command line, a file cannot be read, or has lines that are no records.\n\n\
Examples:\n  \
telexecd audit search --identity 'ops-*' --since 2d /var/log/telexec/audit.log\n  \
telexecd audit search --event denied --event refused /var/log/telexec/audit.log\n  \
telexecd audit search --text @restart-web --json /var/log/telexec/audit.log | jq .reason"
    )]
    Search(SearchArgs),
    /// Compute the digest that the audit log records when a command is too long to record in full, or redacted
    #[command(after_help = "Prints what a record of the command has as hmac_key (which key it is) and as \
command_hmac_sha256: the HMAC-SHA-256 with the key in FILE.key of the shell text, read from standard input to its end, or \
of the arguments.\n\n\
Examples:\n  \
printf %s 'make deploy' | telexecd audit digest /var/log/telexec/audit.log\n  \
telexecd audit digest /var/log/telexec/audit.log -- make deploy")]
    Digest {
        /// Log file
        #[arg(value_name = "FILE")]
        log: PathBuf,
        /// Program and arguments, instead of a shell text
        #[arg(last = true, value_name = "ARG")]
        argv: Vec<String>,
    },
}

/// Arguments of `audit search`.
#[derive(Clone, Debug, clap::Args)]
pub struct SearchArgs {
    /// Identity, or a pattern of identities as for roles; may be repeated
    #[arg(long, value_name = "PATTERN")]
    identity: Vec<String>,
    /// Event; may be repeated
    #[arg(long, value_name = "EVENT", value_parser = EVENTS)]
    event: Vec<String>,
    /// Execution ID, or its beginning
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Text in the command, its programs, @NAME, directory or reason, a path or a host; finds the ends of such commands too
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    text: Option<String>,
    /// From this time on
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<SystemTime>,
    /// Before this time
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<SystemTime>,
    /// Print the records as they are in the log: a JSON object per line
    #[arg(long)]
    json: bool,
    /// Log file, whose rotated files are found beside it; or all files, oldest first
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// A time as it is in records, a date, or how long ago it was.
fn parse_time(text: &str) -> Result<SystemTime, String> {
    let ago = || SystemTime::now().checked_sub(humantime::parse_duration(text).ok()?);
    let time =
        humantime::parse_rfc3339_weak(text).or_else(|_| humantime::parse_rfc3339_weak(&format!("{text}T00:00:00Z")));
    time.ok()
        .or_else(ago)
        .ok_or_else(|| "expected a time such as 2026-11-26T08:30:00Z, or a duration such as 2d".to_owned())
}

impl SearchArgs {
    fn run(&self, out: &mut impl Write) -> Result<u8, Box<dyn Error>> {
        let identities = (!self.identity.is_empty()).then(|| NamePatterns::new("--identity", &self.identity));
        let query = Query {
            identities: identities.transpose()?,
            events: self.event.clone(),
            execution: self.id.clone(),
            text: self.text.clone(),
            since: self.since,
            until: self.until,
            json: self.json,
        };
        Ok(search_files(&self.files, &query, out)?)
    }
}

impl AuditAction {
    /// Runs it and writes the result to `out`. Returns the exit code.
    ///
    /// # Errors
    /// A pattern is malformed, or the key cannot be read; or `out` cannot be written.
    pub(super) fn run(&self, out: &mut impl Write) -> Result<u8, Box<dyn Error>> {
        match self {
            Self::Verify { expect, files } => Ok(verify_files(files, expect.as_deref(), out)?),
            Self::Search(args) => args.run(out),
            Self::Digest { log, argv } => {
                out.write_all(digest_of(log, argv)?.as_bytes())?;
                Ok(0)
            }
        }
    }
}

fn digest_of(log: &Path, argv: &[String]) -> io::Result<String> {
    let program = match argv {
        [] => Program::Shell { text: io::read_to_string(io::stdin())?, shell: None, login: false },
        argv => Program::Argv(argv.to_vec()),
    };
    let (key, digest) = digest(log, &program)?;
    Ok(format!("hmac_key: {key}\ncommand_hmac_sha256: {digest}\n"))
}
