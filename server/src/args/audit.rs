//! `telexecd audit`.

use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::stdio::stdout;
use rustix::termios::tcgetwinsize;
use telexec_executor::Program;
use telexec_executor::text::printable;

use super::Args;
use crate::audit::{
    Format, NOT_FOUND, Outcome, Playback, Query, Which, digest, list_collected, play, search_files, verify_files,
    verify_recordings,
};
use crate::config::ConfigError;
use crate::identity::patterns::NamePatterns;
use crate::invalid::InvalidSetting;
use crate::logging;

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

/// How executions end.
const CAUSES: [&str; 8] = [
    "exited",
    "signaled",
    "timed_out",
    "cancelled",
    "deadline_exceeded",
    "out_of_memory",
    "agent_shutdown",
    "not_started",
];

/// Subcommands of `audit`.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum AuditAction {
    /// Verify an audit log: print the first record that was modified or is missing, if any
    #[command(
        after_help = "Prints the number of records, the last hash, and the starts without an end; exits with 0, with \
1 if the chain is broken or has no record, a record that --expect or --keeper-log requires is missing or different, or a recording was \
changed or is missing, with 2 if a file cannot be read, and with 78 if no file is given or configured, or the configuration is invalid. Anyone \
who can write the file can also \
shorten it, or replace it by a new, valid chain: from time to time save the last hash on another machine, and give it to \
the next verification; or have the keeper log each start (keeper_syslog in the agent's configuration).\n\n\
Examples:\n  \
telexecd audit verify /var/log/telexec/audit.log\n  \
telexecd audit verify --expect \"$LAST_HASH\" /var/log/telexec/audit.log\n  \
telexecd audit verify --keeper-log keeper.log /var/log/telexec/audit.log"
    )]
    Verify {
        /// Require a record with this hash: the last one of an earlier verification
        #[arg(long, value_name = "HASH")]
        expect: Option<String>,
        /// Log written by the keeper (keeper_syslog): require the record of each start in it; - is standard input
        #[arg(long, value_name = "LOG")]
        keeper_log: Option<PathBuf>,
        /// Verify the recordings beside FILE too, if the chain is valid: name those that were changed, or are missing or incomplete
        #[arg(long)]
        recordings: bool,
        /// With --recordings: older ones may be missing, as with audit.recordings.max_age; 0s: none may
        #[arg(long, value_name = "DUR", default_value = "90d", value_parser = humantime::parse_duration)]
        max_age: Duration,
        /// Log file, whose rotated files are found beside it; or all files, oldest first [default: audit.file of --config]
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Search an audit log: print the records that all of the given options match
    #[command(
        after_help = "Prints a line per record: time, event, identity, execution ID, and what was asked for or came of it. The chain is not verified: see verify.\n\n\
TIME is such as 2026-11-26, 2026-11-26T08:30:00Z, or a duration before now, such as 30m or 2d.\n\n\
Exit codes: 0 found, 1 nothing found, 2 invalid command line, a file cannot be read, or has lines that are no records, 78 no \
file is given or configured, or the configuration is invalid.\n\n\
Examples:\n  \
telexecd audit search --identity 'ops-*' --since 2d /var/log/telexec/audit.log\n  \
telexecd audit search --event denied --event refused --config /etc/telexec/telexecd.toml\n  \
telexecd audit search --cause timed_out --since 1d /var/log/telexec/audit.log\n  \
telexecd audit search --text @restart-web --json /var/log/telexec/audit.log | jq .reason"
    )]
    Search(SearchArgs),
    /// Show an execution in an audit log: print its records in full
    #[command(
        after_help = "Prints the records with this execution ID, and those that request or review its approval: a \
heading with event, number and time, and a line per field, named as in the log, without the hashes. The heading of a start says if \
it has no end: the command is running, or its end could not be recorded. The chain is not verified: see verify.\n\n\
Exit codes: 0 found, 1 nothing found, 2 invalid command line, a file cannot be read, or has lines that are no records.\n\n\
Examples:\n  \
telexecd audit show /var/log/telexec/audit.log deploy-42\n  \
telexecd audit show --json /var/log/telexec/audit.log deploy-42 | jq 'select(.event == \"end\") | .exit_code'"
    )]
    Show {
        /// Print the records as they are in the log: a JSON object per line
        #[arg(long)]
        json: bool,
        /// Log file, whose rotated files are found beside it
        #[arg(value_name = "FILE")]
        log: PathBuf,
        /// ID of an execution, or of the approval it had; if there is none with just this ID, the executions whose IDs begin with it
        #[arg(value_name = "ID", value_parser = clap::builder::NonEmptyStringValueParser::new())]
        id: String,
    },
    /// Play the recording of an execution, after verifying that it is the one in the audit log
    #[command(
        after_help = "What a rule with the annotation @record permits is recorded; `telexecd audit search --recorded` lists it. \
The recordings are in FILE.recordings, in the format asciicast v2. What is typed at a password prompt is recorded as \
asterisks.\n\n\
Escape sequences that a terminal would answer, or that would change its settings, title or clipboard, are left out. If standard \
output is not a terminal, only the text is printed, without pauses. Ctrl-C ends it.\n\n\
DUR is such as 500ms or 2s. N is from 0.01 to 1000.\n\n\
Exit codes: 0 played, 1 no such recording, or not the one in the log, 2 invalid command line, or a file cannot be read.\n\n\
Examples:\n  \
telexecd audit play --max-idle 2s /var/log/telexec/audit.log 0198c3a2-7d1e-7c5f-9b1a-2f6d8e4c1a90\n  \
telexecd audit play --input /var/log/telexec/audit.log deploy-42 | less"
    )]
    Play(PlayArgs),
    /// List the audit logs of other agents that are collected here
    #[command(
        after_help = "Prints a line per part of a log in which no record is missing: the agent's identity, the numbers of its first and \
last records, when its newest file was last written, and its current file, for audit verify, search and show. An agent has more than one \
part if records were removed there before they were sent, or if its log was begun anew or changed. The chains are not verified: see \
verify.\n\n\
Exit codes: 0 listed, 1 there is none, 2 invalid command line, or something cannot be read, 78 no directory is given or \
configured, or the configuration is invalid.\n\n\
Examples:\n  \
telexecd audit collected /var/lib/telexec-collected\n  \
telexecd audit collected --silent-for 2d /var/lib/telexec-collected\n  \
telexecd audit collected --config /etc/telexec/telexecd.toml"
    )]
    Collected {
        /// List only agents from which nothing has arrived for this duration, such as 2d
        #[arg(long, value_name = "DUR", value_parser = humantime::parse_duration)]
        silent_for: Option<Duration>,
        /// Directory of the collector [default: audit_collector.directory of --config]
        #[arg(value_name = "DIR")]
        directory: Option<PathBuf>,
    },
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
    /// Event; may be repeated. denied finds all that was denied, whatever the event
    #[arg(long, value_name = "EVENT", value_parser = EVENTS)]
    event: Vec<String>,
    /// Execution ID, or its beginning
    #[arg(long, value_name = "ID", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    id: Option<String>,
    /// Text in the command, its programs, @NAME, directory, names of variables or reason, a path or a host; finds the ends of such
    /// commands too
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    text: Option<String>,
    /// Label of the command; finds the ends of such commands too; may be repeated: all must match
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_label)]
    label: Vec<(String, String)>,
    /// User that the command was to run as, or ran as; finds the starts of such commands too
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    user: Option<String>,
    /// Identity that approved the command, or a pattern; finds the ends of such commands too; may be repeated
    #[arg(long, value_name = "PATTERN")]
    approved_by: Vec<String>,
    /// How the command ended; finds the starts of such commands too; may be repeated
    #[arg(long, value_name = "CAUSE", value_parser = CAUSES)]
    cause: Vec<String>,
    /// Exit code of the command itself (of timeouts, signals and programs not found see --cause); finds the starts of such commands
    /// too; may be repeated
    #[arg(long, value_name = "N")]
    exit_code: Vec<u8>,
    /// Only starts without an end: commands that are running, and those whose ends could not be recorded
    #[arg(long, conflicts_with_all = ["cause", "exit_code"])]
    unfinished: bool,
    /// Only what was recorded
    #[arg(long)]
    recorded: bool,
    /// From this time on
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<SystemTime>,
    /// Before this time
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<SystemTime>,
    /// Print the records as they are in the log: a JSON object per line
    #[arg(long)]
    json: bool,
    /// Log file, whose rotated files are found beside it; or all files, oldest first [default: audit.file of --config]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Arguments of `audit play`.
#[derive(Clone, Debug, clap::Args)]
pub struct PlayArgs {
    /// Play it this many times as fast as it was recorded
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_speed)]
    speed: f64,
    /// Shorten longer pauses to this duration [default: as recorded]
    #[arg(long, value_name = "DUR", value_parser = humantime::parse_duration)]
    max_idle: Option<Duration>,
    /// Show what was sent to the command too, in angle brackets
    #[arg(long)]
    input: bool,
    /// Who started it; needed if executions of several identities have the same ID
    #[arg(long, value_name = "NAME")]
    identity: Option<String>,
    /// Audit log
    #[arg(value_name = "FILE")]
    log: PathBuf,
    /// Execution ID, or its beginning; of executions with the same ID, the newest is played
    #[arg(value_name = "ID")]
    id: String,
}

impl PlayArgs {
    fn run(&self, out: &mut impl Write) -> io::Result<u8> {
        let Self { speed, max_idle, input, .. } = *self;
        let which = Which { id: &self.id, identity: self.identity.as_deref() };
        play(&self.log, which, Playback { speed, max_idle, input }, out)
    }
}

fn parse_speed(text: &str) -> Result<f64, String> {
    let speed = text.parse::<f64>().ok().filter(|speed| (0.01..=1000.0).contains(speed));
    speed.ok_or_else(|| "expected a number from 0.01 to 1000".to_owned())
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
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
    fn run(&self, args: &Args, out: &mut impl Write) -> Result<u8, Box<dyn Error>> {
        let patterns = |option, all: &[String]| (!all.is_empty()).then(|| NamePatterns::new(option, all)).transpose();
        let has_outcome = self.unfinished || !self.cause.is_empty() || !self.exit_code.is_empty();
        let query = Query {
            identities: patterns("--identity", &self.identity)?,
            labels: self.label.clone(),
            user: self.user.clone(),
            approved_by: patterns("--approved-by", &self.approved_by)?,
            outcome: has_outcome.then(|| match self.unfinished {
                true => Outcome::Unfinished,
                false => Outcome::Ended { causes: self.cause.clone(), exit_codes: self.exit_code.clone() },
            }),
            events: self.event.clone(),
            execution: self.id.clone(),
            text: self.text.clone(),
            recorded: self.recorded,
            since: self.since,
            until: self.until,
            whole: false,
            format: if self.json { Format::Json } else { Format::Line },
        };
        Ok(search_files(&files(args, &self.files)?, &query, out)?)
    }
}

impl AuditAction {
    /// Runs it and writes the result to `out`. Returns the exit code.
    ///
    /// # Errors
    /// A pattern is malformed, or the key cannot be read; no file is given or configured; or `out` cannot be written.
    pub(super) fn run(&self, args: &Args, out: &mut impl Write) -> Result<u8, Box<dyn Error>> {
        match self {
            Self::Verify { expect, keeper_log, recordings, max_age, files: given } => {
                let files = files(args, given)?;
                match verify_files(&files, expect.as_deref(), keeper_log.as_deref(), out)? {
                    0 if *recordings => Ok(verify_recordings(&files, *max_age, out)?),
                    code => Ok(code),
                }
            }
            Self::Search(search) => search.run(args, out),
            Self::Show { json, log, id } => Ok(show(log, id, *json, out)?),
            Self::Play(args) => Ok(args.run(out)?),
            Self::Collected { silent_for, directory } => {
                let configured = || args.config().map(|config| config.audit_collector.map(|found| found.directory));
                let directory = directory.clone().map_or_else(configured, |given| Ok(Some(given)))?;
                let missing = "no DIR is given, and no audit_collector.directory is configured";
                let directory = directory.ok_or_else(|| ConfigError::from(InvalidSetting(missing.to_owned())))?;
                Ok(list_collected(&directory, *silent_for, out)?)
            }
            Self::Digest { log, argv } => {
                out.write_all(digest_of(log, argv)?.as_bytes())?;
                Ok(0)
            }
        }
    }
}

/// The files that are given, or else the one that is configured.
fn files(args: &Args, given: &[PathBuf]) -> Result<Vec<PathBuf>, ConfigError> {
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    let configured = args.config()?.audit.file;
    Ok(vec![configured.ok_or_else(|| InvalidSetting("no FILE is given, and no audit.file is configured".to_owned()))?])
}

fn show(log: &Path, id: &str, json: bool, out: &mut impl Write) -> io::Result<u8> {
    let columns = tcgetwinsize(stdout()).ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
    let format = if json { Format::Json } else { Format::Full { columns } };
    let execution = Some(id.to_owned());
    let code = search_files(&[log.to_owned()], &Query { execution, whole: true, format, ..Query::default() }, out)?;
    if code == NOT_FOUND {
        logging::line(&format!("telexecd: the log has no record of an execution or approval {}", printable(id)));
    }
    Ok(code)
}

fn digest_of(log: &Path, argv: &[String]) -> io::Result<String> {
    let program = match argv {
        [] => Program::Shell { text: io::read_to_string(io::stdin())?, shell: None, login: false },
        argv => Program::Argv(argv.to_vec()),
    };
    let (key, digest) = digest(log, &program)?;
    Ok(format!("hmac_key: {key}\ncommand_hmac_sha256: {digest}\n"))
}
