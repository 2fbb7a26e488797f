//! What a receipt says.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};

use aws_lc_rs::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use crate::key::hex;

pub(crate) const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
pub(crate) const PREDICATE_TYPE: &str = "urn:telexec:receipt:v1";

/// The name of the subject that is the command: the shell text, or the arguments with a NUL after each.
pub const COMMAND: &str = "command";
/// The name of the subject that is the input which was given with the request.
pub const STDIN: &str = "stdin";
/// The name of the subject that is standard output.
pub const STDOUT: &str = "stdout";
/// The name of the subject that is standard error, unless that is in standard output (merged, or on a terminal).
pub const STDERR: &str = "stderr";

/// An in-toto statement, version 1, about one execution. In JSON its names are in camel case, and what is not known, false
/// or zero is left out where the field may be missing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Statement {
    #[serde(rename = "_type")]
    statement_type: String,
    /// What went in and what came out, by digest: [`COMMAND`], [`STDIN`], [`STDOUT`], [`STDERR`].
    pub subject: Vec<Subject>,
    predicate_type: String,
    /// The rest.
    pub predicate: Receipt,
}

impl Statement {
    /// A statement about these.
    pub fn new(subject: Vec<Subject>, predicate: Receipt) -> Self {
        let (statement_type, predicate_type) = (STATEMENT_TYPE.to_owned(), PREDICATE_TYPE.to_owned());
        Self { statement_type, subject, predicate_type, predicate }
    }

    /// The SHA-256 of the subject of this name, in hexadecimal; `None`: the agent does not know it.
    pub fn sha256(&self, name: &str) -> Option<&str> {
        let subject = self.subject.iter().find(|subject| subject.name == name)?;
        subject.digest.get("sha256").map(String::as_str)
    }
}

impl Statement {
    /// # Errors
    /// What contradicts itself.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let names: BTreeSet<_> = self.subject.iter().map(|subject| &subject.name).collect();
        if names.len() < self.subject.len() {
            return Err("a subject has two digests");
        }
        let Request { command, argv, .. } = &self.predicate.request;
        let bytes = match (command, argv) {
            (None, None) => return Ok(()),
            (Some(_), Some(_)) => return Err("it has a shell text and arguments"),
            (Some(text), None) => text.clone().into_bytes(),
            (None, Some(argv)) => argv.iter().flat_map(|argument| argument.bytes().chain([0])).collect(),
        };
        let is_digest_of = |digest: &str| sha256(&*bytes).is_ok_and(|own| own.eq_ignore_ascii_case(digest));
        match self.sha256(COMMAND) {
            Some(digest) if is_digest_of(digest) => Ok(()),
            _ => Err("the digest of the command is another"),
        }
    }
}

/// Something with a digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// Its name.
    pub name: String,
    /// By the name of the algorithm, in hexadecimal.
    pub digest: BTreeMap<String, String>,
}

impl Subject {
    /// With this SHA-256, in hexadecimal.
    pub fn sha256(name: &str, digest: impl Into<String>) -> Self {
        Self { name: name.to_owned(), digest: [("sha256".to_owned(), digest.into())].into() }
    }
}

/// The SHA-256 of all that is read, in hexadecimal.
///
/// # Errors
/// It cannot be read.
pub fn sha256(mut bytes: impl Read) -> io::Result<String> {
    let (mut context, mut buffer) = (Context::new(&SHA256), vec![0; 64 * 1024]);
    loop {
        match bytes.read(&mut buffer) {
            Ok(0) => return Ok(hex(context.finish().as_ref())),
            Ok(read) => context.update(buffer.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// One execution: who asked for what, what ran, and how it ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// Its id.
    pub execution_id: String,
    /// Which agent started it.
    pub agent: Agent,
    /// Who asked for it.
    pub caller: Caller,
    /// Why it was permitted; `None`: the agent has no policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// What was asked for.
    pub request: Request,
    /// What ran.
    pub start: Start,
    /// How it ended.
    pub end: End,
    /// The agent was restarted while it ran: no single agent process has read all of its output, which has no digest; and where
    /// it ended meanwhile, the time of its end is that at which the next agent saw it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub agent_restarted: bool,
}

/// An agent, by its own account: the key says which one it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    /// The name of its machine (uname(2)).
    pub host: String,
    /// Its version.
    pub version: String,
}

/// A caller, as the agent has authenticated it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Caller {
    /// Its identity.
    pub identity: String,
    /// How it was connected: `mtls`, `tls`, `unix`, `vsock` or `tcp`.
    pub transport: String,
    /// The SHA-256 of its certificate, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_sha256: Option<String>,
    /// The identity of the gateway that has presented the caller's token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presented_by: Option<String>,
}

/// What the agent's policy has decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// The rules that permit it, as many as take 4 KiB.
    pub rules: Vec<String>,
    /// How many they are.
    pub rule_count: usize,
    /// The other identity that has approved it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<String>,
}

/// What was asked for, without values of variables, input, labels and the disconnect policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// The shell text; `None`: it is not one, or takes more than 16 KiB. The subject [`COMMAND`] has its digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The program and its arguments; likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// The length of what the subject [`COMMAND`] is the digest of.
    pub command_bytes: u64,
    /// The name of the named command that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named_command: Option<String>,
    /// The shell of the text; `None`: the agent's, or one whose path takes more than 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// As a login shell.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub login: bool,
    /// The names of the variables that the request set; `None`: they take more than 4 KiB. The agent adds some of its own, see
    /// `ExecuteRequest.environment` of the protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<Vec<String>>,
    /// How many they are.
    pub environment_count: usize,
    /// They were added to an empty environment, not to that of the user.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub clear_environment: bool,
    /// How much input was given with the request: the subject [`STDIN`].
    pub stdin_bytes: u64,
    /// More input could be sent while it ran, of which nothing is known here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accepts_input: bool,
    /// It had a terminal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminal: bool,
    /// Standard error is in standard output.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub merge_output: bool,
    /// Nothing that it executes gains privileges.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_new_privileges: bool,
    /// The timeout that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_milliseconds: Option<u64>,
    /// The limits that were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// The reason that its caller gave.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The most that all processes of the command might use together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_processes: Option<u32>,
    /// Processors' worth of time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
}

/// The main process, as it was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Start {
    /// Its number.
    pub pid: u32,
    /// When, by the agent's clock, as RFC 3339 has it.
    pub time: String,
    /// The user that it ran as.
    pub user: String,
    /// Where it was started; `None`: the path takes more than 6 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_directory: Option<String>,
}

/// How it ended. See the message `Exited` of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct End {
    /// When all of it was over, its output too, by the agent's clock, as RFC 3339 has it.
    pub time: String,
    /// Why: `exited`, `signaled`, `timed_out`, `cancelled`, `deadline_exceeded`, `out_of_memory` or `agent_shutdown`.
    pub cause: String,
    /// -1 where there is none.
    pub exit_code: i32,
    /// The signal that ended the main process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// It left a core dump.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub core_dumped: bool,
    /// From the start to the end of the main process, by a clock that does not jump.
    pub wall_milliseconds: u64,
    /// Processes that were left running.
    pub surviving_processes: u32,
    /// Standard output.
    pub stdout: Stream,
    /// Standard error.
    pub stderr: Stream,
}

/// What the agent has read of a stream: the subject [`STDOUT`] or [`STDERR`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stream {
    /// All of it.
    pub bytes: u64,
    /// What the caller did not get of that, by its own or the agent's limit: the digest is of all bytes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_bytes: u64,
    /// A process that was left running could write more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
