//! Files, for callers: by a process of the run-as user, since the kernel then decides what may be opened, and a file system
//! that hangs holds up nobody else.
//!
//! The process is this program itself (`helper`), started by the engine as a command is. It asks before it touches a file
//! (`session`): the policy decides about the path that the file really has, and the audit log has what came of it. An upload
//! that loses its call is kept for a while (`upload`). `service` is the RPCs, of which `transfer` does many in one call,
//! `sftp` carries another protocol, `search` and `watch` have many answers; `wire` turns them into tasks.

mod frames;
mod helper;
mod judge;
mod search;
mod service;
mod session;
mod sftp;
mod transfer;
mod upload;
mod watch;
mod wire;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

pub(crate) use self::service::FileRpcs;

/// Holds a short file with what is said of it; longer pieces go past it.
const OUTPUT_BYTES: usize = 16 * 1024;
/// The argument that makes a program the process that reads and writes files.
const ARGUMENT: &str = "--serve-files";

/// Reads and writes files for the agent that has started this process, if one has: to be called first in each program for
/// which [`Config::serves_files`](crate::Config::serves_files) is set. `None`: this process is something else.
pub fn serve_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let is_asked = arguments.next().is_some_and(|argument| argument == ARGUMENT) && arguments.next().is_none();
    is_asked.then(|| {
        // what it is told is for the agent alone, also among the processes of its user
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        telexec_files::remove_temporary_names_on_sigterm();
        let output = BufWriter::with_capacity(OUTPUT_BYTES, Output);
        let served = telexec_files::serve(std::io::stdin().lock(), output);
        served.map_or_else(
            |error| {
                eprintln!("{error}");
                ExitCode::FAILURE
            },
            |()| ExitCode::SUCCESS,
        )
    })
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
