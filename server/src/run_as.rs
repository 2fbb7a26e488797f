//! Processes of this program as other users: what these do for a caller, the kernel decides about.
//!
//! Each is an internal execution, started by the engine as a command is: contained, limited, ended with its call, in no
//! list, and owned by an identity that no caller has.

use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use telexec_engine::{DYNAMIC_USER, ExecutionObserver, Grant, LocalExecutor, MainProcess};
use telexec_executor::{Command, Execution, ExecutorError, InvalidCommand};

/// This program, wherever it is by now.
const PROGRAM: &str = "/proc/self/exe";
/// A transfer has no timeout of its own, unless the agent's configuration insists on one.
const TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
/// A dynamic user's files would be gone with the process.
const NO_USER: &str = "must name an account on this agent, whose commands run as dynamic users by default";
/// It ends at once, unless a file system hangs where a file that is not complete has a name.
const KILL_GRACE: Duration = Duration::from_secs(2);
/// Holds a short file with what is said of it; longer pieces go past it.
const OUTPUT_BYTES: usize = 16 * 1024;

/// What a process is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Reads and writes files, as it is told over its input.
    Files,
    /// Connects to a Unix socket, and passes the connection over the socket that is its standard input.
    Dial,
}

/// A process that was started. Dropping its execution ends it, in the background.
pub(crate) struct Process {
    pub(crate) execution: Execution,
    /// The identity that owns it.
    pub(crate) owner: String,
    /// The name of the user that it runs as.
    pub(crate) user: String,
}

impl Purpose {
    const ALL: [Self; 2] = [Self::Files, Self::Dial];

    /// The argument that makes a program such a process.
    fn argument(self) -> &'static str {
        match self {
            Self::Files => "--serve-files",
            Self::Dial => "--dial",
        }
    }

    /// Before the identity of the caller: no caller is called so, and none can write to these processes.
    fn owner_prefix(self) -> &'static str {
        match self {
            Self::Files => "files:",
            Self::Dial => "dial:",
        }
    }

    fn serve(self) -> io::Result<()> {
        let input = io::stdin().lock();
        match self {
            Self::Files => {
                telexec_files::remove_temporary_names_on_sigterm();
                telexec_files::serve(input, BufWriter::with_capacity(OUTPUT_BYTES, Output))
            }
            Self::Dial => telexec_files::dial::serve(input),
        }
    }
}

/// Does what the agent has started this process for, if one has: to be called first in each program for which
/// [`Config::serves_files`](crate::Config::serves_files) is set. `None`: this process is something else.
pub fn serve_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let (first, second) = (arguments.next()?, arguments.next());
    let purpose = Purpose::ALL.into_iter().find(|purpose| second.is_none() && first == purpose.argument())?;
    // what it is told is for the agent alone, also among the processes of its user
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    Some(purpose.serve().map_or_else(
        |error| {
            eprintln!("{error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    ))
}

/// Starts one, as `user` or the agent's default, for this identity. Without a `stdin` its input is written to the execution.
///
/// # Errors
/// As of a command.
pub(crate) async fn start(
    engine: &LocalExecutor,
    purpose: Purpose,
    identity: &str,
    user: Option<&str>,
    stdin: Option<OwnedFd>,
) -> Result<Process, ExecutorError> {
    if engine.user() == DYNAMIC_USER && user.is_none_or(|user| user == DYNAMIC_USER) {
        return Err(InvalidCommand::new("user", NO_USER).into());
    }
    let owner = format!("{}{identity}", purpose.owner_prefix());
    let command = Command::argv([PROGRAM, purpose.argument()])
        .accepts_input(stdin.is_none())
        .clear_environment(true)
        .timeout(TIMEOUT)
        .kill_grace(KILL_GRACE);
    let command = user.into_iter().fold(command, |command, user| command.user(user)).build()?;
    let account = Arc::new(OnceLock::new());
    let observers: Vec<Box<dyn ExecutionObserver>> = vec![Box::new(Account(Arc::clone(&account)))];
    let grant =
        Grant { identity: owner.clone(), observers, stdin, internal_of: Some(identity.to_owned()), ..Grant::default() };
    let execution = engine.execute_granted(command, grant).await?;
    Ok(Process { execution, owner, user: account.get().cloned().unwrap_or_default() })
}

/// Learns as whom the process runs.
struct Account(Arc<OnceLock<String>>);

impl ExecutionObserver for Account {
    fn started(&self, main: &MainProcess) {
        let _ = self.0.set(main.user.clone());
    }
}

/// Standard output, whose buffer lines do not end: the standard library's is written at each.
struct Output;

impl Write for Output {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(rustix::stdio::stdout(), data)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
