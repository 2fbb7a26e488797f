//! Starting one process: one resolved spec in, a child or a typed error out.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Gid, Uid, fchown};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::pipe::{PipeFlags, pipe_with};

use super::children::OwnChild;
use super::rlimits;
use super::vfork::{self, CgroupEntry, Credentials, Image};
use crate::{SpawnError, SpawnStage};

/// Everything a process is made from; nothing is left to look up.
#[derive(Default)]
pub(super) struct SpawnSpec {
    /// What the program was called, for errors.
    pub(super) program: String,
    /// Paths to try in this order, as execvp(3) does.
    pub(super) candidates: Vec<CString>,
    pub(super) argv: Vec<CString>,
    pub(super) environment: Vec<CString>,
    pub(super) working_directory: CString,
    /// Make a pipe to its standard input; otherwise that is `/dev/null`.
    pub(super) piped_stdin: bool,
    /// `None`: those of this process.
    pub(super) credentials: Option<Credentials>,
    /// The cgroups that it starts in.
    pub(super) cgroups: CgroupEntry,
    /// The step that is to fail.
    #[cfg(test)]
    pub(super) fault: Option<SpawnStage>,
}

/// A process that runs the program, and this side's ends of its pipes. Dropping it does not end or reap the process.
pub(super) struct Child {
    pub(super) pid: rustix::process::Pid,
    pub(super) pidfd: OwnedFd,
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

/// Starts processes. Blocks until the program runs or could not be started; then nothing of it is left.
pub(super) trait Spawner: Send + Sync {
    fn spawn(&self, spec: &SpawnSpec) -> Result<(OwnChild, Child), SpawnError>;
}

/// Starts processes as children of this one.
pub(super) struct DirectSpawner {
    null: OwnedFd,
    rlimits: [libc::rlimit64; rlimits::KINDS],
}

impl DirectSpawner {
    /// # Errors
    /// `/dev/null` cannot be opened.
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { null: std::fs::File::open("/dev/null")?.into(), rlimits: rlimits::defaults() })
    }
}

impl Spawner for DirectSpawner {
    fn spawn(&self, spec: &SpawnSpec) -> Result<(OwnChild, Child), SpawnError> {
        let prepare = |errno| error(spec, SpawnStage::Prepare, errno);
        let input = spec.piped_stdin.then(pipe).transpose().map_err(prepare)?;
        let (stdout, stdout_end) = pipe().map_err(prepare)?;
        let (stderr, stderr_end) = pipe().map_err(prepare)?;
        let (stdin_end, stdin) = match input {
            Some((read, write)) => (Some(read), Some(write)),
            None => (None, None),
        };
        if let Some(user) = &spec.credentials {
            let ends = stdin_end.iter().chain([&stdout_end, &stderr_end]);
            ends.into_iter().try_for_each(|end| give(end, user)).map_err(prepare)?;
        }
        let stdin_end = above_standard_streams(stdin_end.as_ref().unwrap_or(&self.null).as_fd()).map_err(prepare)?;
        let stdout_end = above_standard_streams(stdout_end.as_fd()).map_err(prepare)?;
        let stderr_end = above_standard_streams(stderr_end.as_fd()).map_err(prepare)?;

        let image = Image {
            candidates: &spec.candidates,
            argv: &spec.argv,
            environment: &spec.environment,
            working_directory: &spec.working_directory,
            streams: [stdin_end.as_raw_fd(), stdout_end.as_raw_fd(), stderr_end.as_raw_fd()],
            cgroups: &spec.cgroups,
            rlimits: &self.rlimits,
            credentials: spec.credentials.as_ref(),
            #[cfg(test)]
            fault: spec.fault,
        };
        let (own, pid, pidfd) = vfork::spawn(&image).map_err(|(stage, errno)| error(spec, stage, errno))?;
        Ok((own, Child { pid, pidfd, stdin, stdout, stderr }))
    }
}

/// Both ends are closed on exec; (read, write).
fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    pipe_with(PipeFlags::CLOEXEC)
}

/// A pipe belongs to who made it, and its new user could not open it as /dev/stdout.
fn give(pipe: &OwnedFd, user: &Credentials) -> Result<(), Errno> {
    fchown(pipe, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))
}

/// A copy with a number that connecting 0, 1 and 2 in turn cannot overwrite (this process may run without them).
fn above_standard_streams(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    fcntl_dupfd_cloexec(fd, 3)
}

fn error(spec: &SpawnSpec, stage: SpawnStage, errno: Errno) -> SpawnError {
    let directory = spec.working_directory.to_string_lossy();
    let subject = match stage {
        SpawnStage::Chdir => directory.to_string(),
        SpawnStage::Setgroups | SpawnStage::Setgid | SpawnStage::Setuid => {
            spec.credentials.as_ref().map_or_else(String::new, |user| user.name.clone())
        }
        _ => spec.program.clone(),
    };
    // execve(2) answers ENOENT for a missing interpreter too
    let exists = |path: &CString| Path::new(directory.as_ref()).join(path.to_string_lossy().as_ref()).is_file();
    let missing_interpreter = stage == SpawnStage::Exec && errno == Errno::NOENT && spec.candidates.iter().any(exists);
    SpawnError { stage, subject, errno: errno.raw_os_error(), missing_interpreter }
}
