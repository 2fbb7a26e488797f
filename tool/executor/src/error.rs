//! What can go wrong, named by who failed.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::errno::{self, EAGAIN, EDQUOT, EMFILE, ENFILE, ENOENT, ENOMEM, ENOSPC, ENOTDIR};
use crate::text::{counted, printable};
use crate::{ExecutionId, ExecutionInfo, FileError, FilePath, asked_named_command};

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why an executor could not run a command, or could not follow it to its end.
///
/// A command that ran is never an error, whatever its exit code.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// The request is malformed; nothing ran.
    #[error(transparent)]
    Invalid(#[from] InvalidCommand),
    /// The command could not be started; nothing ran.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// Something could not be done with a file.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file arrived other than it was sent, by its SHA-256; nothing was changed.
    #[error("{path}: the SHA-256 is not the expected one; nothing was changed")]
    Corrupted {
        /// Which file.
        path: FilePath,
    },
    /// There is no such upload of this caller, or it was given up.
    #[error("no upload {0}: start again")]
    NoUpload(ExecutionId),
    /// There is no request of this id for an approval, or not for this caller.
    #[error("no request {0}: it has expired, the agent was restarted, or you may not see it")]
    NoApproval(String),
    /// The machine cannot do what a field of the request asks for; nothing ran.
    #[error("{field}: {reason}")]
    Unsupported {
        /// The field, as the proto names it, such as `limits.cpus`.
        field: Cow<'static, str>,
        /// What the machine lacks, in words for the caller.
        reason: String,
    },
    /// The executor does not know who asks, or not any more: nothing ran, or what ran for this call is ended.
    #[error("{reason}")]
    Unauthenticated {
        /// Why not, in words for the caller.
        reason: String,
    },
    /// A rule denies it: nothing ran, or what ran for this call is ended, since it is denied now.
    #[error("{reason}")]
    Denied {
        /// The name of the rule; `None`: it has none.
        rule: Option<String>,
        /// Why, in words for the caller. What an agent answered has the conditions in it.
        reason: String,
        /// The name of the rule that came nearest to permitting it.
        nearest: Option<String>,
        /// Its conditions that do not hold, or those of the rules that forbid it, with values of the command.
        missing: Vec<String>,
    },
    /// A rule permits it once another identity has approved it; nothing ran. Then it can be tried again.
    #[error("{reason}")]
    ApprovalRequired {
        /// The request for the approval, which is pending.
        approval_id: String,
        /// The rules that ask for it.
        rule: String,
        /// That, in words for the caller.
        reason: String,
    },
    /// A limit is reached; nothing ran.
    #[error("{reason}")]
    Exhausted {
        /// The limit, in words for the caller.
        reason: String,
        /// When to try again, if that is known.
        retry_after: Option<Duration>,
    },
    /// There is no such execution, or it is someone else's.
    #[error("no execution {0}")]
    NotFound(ExecutionId),
    /// The id was used before; nothing ran.
    #[error("execution id \"{0}\" is in use by a different command: choose another id, or attach to that execution")]
    AlreadyExists(ExecutionId),
    /// The same command runs already, and [`crate::DuplicatePolicy::ReuseRunning`] was asked for; nothing ran.
    #[error("execution {} runs the same command already", .0.id)]
    AlreadyRunning(Box<ExecutionInfo>),
    /// The execution is not in a state for this; nothing was done.
    #[error("{reason}")]
    FailedPrecondition {
        /// Why not, in words for the caller.
        reason: String,
    },
    /// A position or an offset is beyond the end; nothing was done.
    #[error("{field}: is beyond the end of the {} ({})", stream_of(field), counted(*end, "byte"))]
    OutOfRange {
        /// The field, as the proto names it.
        field: Cow<'static, str>,
        /// The largest that it may be now.
        end: u64,
    },
    /// The deadline passed before the end could be reported.
    #[error("the deadline passed before the command's end was reported")]
    DeadlineExceeded,
    /// The executor is shutting down; nothing ran.
    #[error("the agent is shutting down; nothing ran")]
    ShuttingDown,
    /// The executor could not be reached; nothing ran.
    #[error("{endpoint} is unreachable")]
    Unreachable {
        /// What was to be reached.
        endpoint: String,
        /// The cause.
        source: Source,
    },
    /// This side and the executor did not agree on who they are (TLS); nothing ran.
    #[error("TLS authentication with {endpoint} failed")]
    Untrusted {
        /// What was to be reached.
        endpoint: String,
        /// The cause.
        source: Source,
    },
    /// The connection broke while the command ran. It is ended there, unless it was to continue or the executor is gone.
    #[error("the connection to {endpoint} was lost")]
    Lost {
        /// What had been reached.
        endpoint: String,
        /// The cause.
        source: Source,
    },
    /// The executor itself failed, or did not keep to the protocol.
    #[error("{0}")]
    Internal(String),
}

impl ExecutorError {
    /// A denial without a rule that is named; `reason` is worded for the caller.
    pub fn denied(reason: impl Into<String>) -> Self {
        Self::Denied { rule: None, reason: reason.into(), nearest: None, missing: Vec::new() }
    }
}

/// What a position of this name is in.
fn stream_of(field: &str) -> &'static str {
    if field == "offset" { "input" } else { "output" }
}

/// A malformed field of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct InvalidCommand {
    /// The field, as the proto names it, such as `argv[1]`.
    pub field: Cow<'static, str>,
    /// What is wrong with it.
    pub reason: Cow<'static, str>,
}

impl InvalidCommand {
    /// `field` is wrong because of `reason`.
    pub fn new(field: impl Into<Cow<'static, str>>, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }
}

/// A command that could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {} {}: {}", self.stage.action(), printable(&self.subject), self.cause())]
pub struct SpawnError {
    /// The step that failed.
    pub stage: SpawnStage,
    /// What it failed on: the directory of [`SpawnStage::Chdir`]; the user of [`SpawnStage::User`],
    /// [`SpawnStage::Setgroups`], [`SpawnStage::Setgid`] and [`SpawnStage::Setuid`]; otherwise the program.
    pub subject: String,
    /// The system's error number, as Linux counts them.
    pub errno: i32,
    /// The program is there, but the interpreter that its first line or its format names is not.
    pub missing_interpreter: bool,
}

impl SpawnError {
    fn cause(&self) -> Cow<'static, str> {
        if self.missing_interpreter {
            return "its interpreter is missing".into();
        }
        if self.stage == SpawnStage::User && self.is_not_found() {
            return "no such user".into();
        }
        if self.stage == SpawnStage::Exec && self.is_not_found() && asked_named_command(&[&self.subject]).is_some() {
            return "no such named command".into();
        }
        errno::text(self.errno).into()
    }

    /// The name of the error number, such as `ENOENT`; the number itself if it has no common name.
    pub fn errno_name(&self) -> Cow<'static, str> {
        errno::name(self.errno)
    }

    /// The error number with this name (or this text as a number), as Linux counts them.
    pub fn errno_from_name(name: &str) -> Option<i32> {
        errno::from_name(name)
    }

    /// The program, shell, user or directory does not exist (rather than: cannot be used).
    pub fn is_not_found(&self) -> bool {
        match self.stage {
            SpawnStage::User => self.errno == ENOENT,
            SpawnStage::Chdir | SpawnStage::Exec => matches!(self.errno, ENOENT | ENOTDIR) && !self.missing_interpreter,
            // what is missing here is the agent's own
            SpawnStage::Prepare
            | SpawnStage::Cgroup
            | SpawnStage::Clone
            | SpawnStage::Setsid
            | SpawnStage::Dup
            | SpawnStage::CloseRange
            | SpawnStage::Rlimit
            | SpawnStage::Unshare
            | SpawnStage::Mount
            | SpawnStage::Setgroups
            | SpawnStage::Setgid
            | SpawnStage::Setuid => false,
        }
    }

    /// The machine is out of processes, memory, descriptors, namespaces or mounts, or the agent's disk is full.
    pub fn is_exhausted(&self) -> bool {
        let has_no_space = match self.stage {
            SpawnStage::Prepare => matches!(self.errno, ENOSPC | EDQUOT),
            // see namespaces(7), and fs.mount-max of proc(5)
            SpawnStage::Unshare | SpawnStage::Mount => self.errno == ENOSPC,
            _ => false,
        };
        has_no_space || matches!(self.errno, EAGAIN | ENOMEM | ENFILE | EMFILE)
    }
}

/// The steps of starting a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnStage {
    /// Making the pipes and files that it is connected to.
    Prepare,
    /// Looking the user up: getpwnam_r(3), getgrouplist(3).
    User,
    /// Entering its cgroup, which is made for it.
    Cgroup,
    /// Making the process: clone(2).
    Clone,
    /// Making its session: setsid(2).
    Setsid,
    /// Connecting its standard streams: dup2(2).
    Dup,
    /// Closing every other file: close_range(2).
    CloseRange,
    /// Setting its limits: setrlimit(2).
    Rlimit,
    /// Making namespaces of its own: unshare(2).
    Unshare,
    /// Mounting directories of its own: mount(2).
    Mount,
    /// Taking the user's groups: setgroups(2).
    Setgroups,
    /// Taking the user's own group: setgid(2).
    Setgid,
    /// Becoming the user: setuid(2).
    Setuid,
    /// Entering the working directory: chdir(2).
    Chdir,
    /// Becoming the program: execve(2).
    Exec,
}

impl SpawnStage {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Prepare,
        Self::User,
        Self::Cgroup,
        Self::Clone,
        Self::Setsid,
        Self::Dup,
        Self::CloseRange,
        Self::Rlimit,
        Self::Unshare,
        Self::Mount,
        Self::Setgroups,
        Self::Setgid,
        Self::Setuid,
        Self::Chdir,
        Self::Exec,
    ];

    /// Its name, such as `exec`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::User => "user",
            Self::Cgroup => "cgroup",
            Self::Clone => "clone",
            Self::Setsid => "setsid",
            Self::Dup => "dup",
            Self::CloseRange => "close_range",
            Self::Rlimit => "rlimit",
            Self::Unshare => "unshare",
            Self::Mount => "mount",
            Self::Setgroups => "setgroups",
            Self::Setgid => "setgid",
            Self::Setuid => "setuid",
            Self::Chdir => "chdir",
            Self::Exec => "exec",
        }
    }

    /// What could not be done, as it reads after "cannot" and before the subject.
    fn action(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::User => "look up the user",
            Self::Cgroup => "enter the cgroup of",
            Self::Clone => "make a process for",
            Self::Setsid => "make a session for",
            Self::Dup => "connect the standard streams of",
            Self::CloseRange => "close the files that are not for",
            Self::Rlimit => "set the limits of",
            Self::Unshare => "make namespaces for",
            Self::Mount => "mount the temporary directories of",
            Self::Setgroups => "take the groups of the user",
            Self::Setgid => "take the group of the user",
            Self::Setuid => "become the user",
            Self::Chdir => "enter the directory",
            Self::Exec => "run",
        }
    }

    /// The stage with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.as_str() == name)
    }
}

impl fmt::Display for SpawnStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(stage: SpawnStage, subject: &str, errno: i32) -> SpawnError {
        SpawnError { stage, subject: subject.to_owned(), errno, missing_interpreter: false }
    }

    #[test]
    fn failed_starts_read_as_sentences() {
        for (error, text) in [
            (error(SpawnStage::User, "nobody2", ENOENT), "cannot look up the user nobody2: no such user"),
            (error(SpawnStage::Setuid, "nobody", 1), "cannot become the user nobody: operation not permitted"),
            (error(SpawnStage::Chdir, "/a\n", ENOENT), "cannot enter the directory /a\\n: no such file or directory"),
            (error(SpawnStage::Exec, "make", 13), "cannot run make: permission denied"),
            (
                SpawnError { missing_interpreter: true, ..error(SpawnStage::Exec, "a.sh", ENOENT) },
                "cannot run a.sh: its interpreter is missing",
            ),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn only_what_the_caller_named_can_be_not_found() {
        for stage in SpawnStage::ALL {
            let named = [SpawnStage::User, SpawnStage::Chdir, SpawnStage::Exec].contains(&stage);
            assert_eq!(error(stage, "", ENOENT).is_not_found(), named, "{stage}");
        }
        assert!(!error(SpawnStage::User, "", 1).is_not_found());
    }

    #[test]
    fn stages_and_error_numbers_read_back_from_their_names() {
        for stage in SpawnStage::ALL {
            assert_eq!(SpawnStage::from_name(stage.as_str()), Some(stage));
        }
        assert!(errno::NAMES.is_sorted());
        for (number, name) in errno::NAMES {
            assert_eq!(SpawnError::errno_from_name(name), Some(number));
            assert_eq!(error(SpawnStage::Exec, "", number).errno_name(), name);
        }
    }
}
