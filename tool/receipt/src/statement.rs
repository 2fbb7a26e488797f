//! What a receipt says.

use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};
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
/// The name of the subject that is standard error.
pub const STDERR: &str = "stderr";

/// An in-toto statement, version 1, about one execution. In JSON its names are in camel case, and what is not known or
/// does not apply is left out.
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

    /// With the SHA-256 of these bytes.
    pub fn of(name: &str, bytes: &[u8]) -> Self {
        Self::sha256(name, hex(digest(&SHA256, bytes).as_ref()))
    }
}

/// One execution: who asked for what, what ran, and how it ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Receipt {
    /// Its id.
    pub execution_id: String,
    /// Where it ran.
    pub agent: Agent,
    /// Who asked for it.
    pub caller: Caller,
    /// Why it was permitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// What was asked for.
    pub request: Request,
    /// What ran.
    pub start: Start,
    /// How it ended.
    pub end: End,
    /// An agent was restarted while it ran: nobody has seen all of its output, which has no digest.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub agent_restarted: bool,
}

/// An agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Agent {
    /// The name of its machine (uname(2)).
    pub host: String,
    /// Its version.
    pub version: String,
}

/// A caller, as the agent has authenticated it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Caller {
    /// Its identity.
    pub identity: String,
    /// How it was connected: `mtls`, `unix`, `vsock` or `tcp`.
    pub transport: String,
    /// The SHA-256 of its certificate, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_sha256: Option<String>,
}

/// What the agent's policy has decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Policy {
    /// The rules that permit it, the first 16.
    pub rules: Vec<String>,
    /// The other identity that has approved it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<String>,
}

/// What was asked for. The values of the environment are not in it, and neither is input.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Request {
    /// The shell text. It is left out, and so are the arguments, if it is long: the subject [`COMMAND`] has its digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Or the program and its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// The length of what the subject [`COMMAND`] is the digest of.
    pub command_bytes: u64,
    /// The name of the named command that it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub named_command: Option<String>,
    /// The shell of the text, if it was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// As a login shell.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub login: bool,
    /// The names of the variables that were set. They are left out if they are many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<Vec<String>>,
    /// How many they are.
    pub environment_count: usize,
    /// It began with an empty environment.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub clear_environment: bool,
    /// How much input was given with the request: the subject [`STDIN`].
    pub stdin_bytes: u64,
    /// More input could be sent while it ran, of which nothing is known here.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub accepts_input: bool,
    /// It had a terminal.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub terminal: bool,
    /// Standard error is in standard output.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub merge_output: bool,
    /// The reason that its caller gave.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The main process, as it was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Start {
    /// Its number.
    pub pid: u32,
    /// When, by the agent's clock, as RFC 3339 has it.
    pub time: String,
    /// The user that it ran as.
    pub user: String,
    /// Where it was started.
    pub working_directory: String,
}

/// How it ended. See the message `Exited` of the protocol.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct End {
    /// When, by the agent's clock, as RFC 3339 has it.
    pub time: String,
    /// Why: `exited`, `signaled`, `timed_out`, `cancelled`, `deadline_exceeded`, `out_of_memory` or `agent_shutdown`.
    pub cause: String,
    /// -1 where there is none.
    pub exit_code: i32,
    /// The signal that ended the main process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// It left a core dump.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub core_dumped: bool,
    /// From its start to its end, by a clock that does not jump.
    pub wall_seconds: f64,
    /// Processes that were left running.
    pub surviving_processes: u32,
    /// Standard output.
    pub stdout: Stream,
    /// Standard error.
    pub stderr: Stream,
}

/// What the agent has read of a stream: the subject [`STDOUT`] or [`STDERR`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Stream {
    /// All of it.
    pub bytes: u64,
    /// What the caller did not get of that, by its own or the agent's limit: the digest is of all bytes.
    #[serde(skip_serializing_if = "is_zero")]
    pub dropped_bytes: u64,
    /// A process that was left running could write more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
