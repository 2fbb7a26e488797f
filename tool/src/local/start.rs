//! The start of one execution: from its command to a process that runs, or to nothing.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

use super::Shared;
use super::containment::Containment;
use super::process;
use super::spawn::{Child, SpawnSpec};
use super::supervise::{Supervisor, at};
use super::working_directory::Report;
use crate::{ExecutionId, ExecutorError, SpawnError, SpawnStage};

/// A main process that runs.
pub(super) struct Main {
    pub(super) pid: rustix::process::Pid,
    pub(super) pidfd: AsyncFd<OwnedFd>,
    pub(super) containment: Containment,
    pub(super) started: Instant,
}

/// This side's ends of its pipes.
pub(super) struct Pipes {
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

impl Supervisor {
    /// Starts the command. On an error nothing of it is left, or will be.
    pub(super) async fn start(&self) -> Result<(Main, Pipes, Option<Report>), ExecutorError> {
        let report = match self.command.report_working_directory() {
            true => Some(Report::new(&self.shared.state_dir).map_err(prepare)?),
            false => None,
        };
        let spec = self.shared.defaults.resolve(&self.command, &self.record.id, report.as_ref());
        let child = self.spawn(spec).await?;
        let started = Instant::now();
        let containment = Containment::new(child.pid, self.record.id.clone(), Arc::clone(&self.shared.census));
        let pidfd = match process::watch(child.pidfd) {
            Ok(pidfd) => pidfd,
            Err(error) => {
                end_now(containment).await;
                return Err(prepare(error));
            }
        };
        let main = Main { pid: child.pid, pidfd, containment, started };
        Ok((main, Pipes { stdin: child.stdin, stdout: child.stdout, stderr: child.stderr }, report))
    }

    /// Entering a directory or loading a program may take long, or for ever, on a network file system: it is waited for
    /// off the runtime's threads, and no longer than the call lasts.
    async fn spawn(&self, spec: SpawnSpec) -> Result<Child, ExecutorError> {
        let given_up = self.given_up();
        tokio::pin!(given_up);
        let slot = tokio::select! {
            biased;
            error = &mut given_up => return Err(error),
            slot = Arc::clone(&self.shared.starts).acquire_owned() => slot,
        };
        let shared = Arc::clone(&self.shared);
        let mut spawning = tokio::task::spawn_blocking(move || {
            let _slot = slot;
            shared.spawner.spawn(&spec)
        });
        tokio::select! {
            child = &mut spawning => Ok(child.map_err(|error| ExecutorError::Internal(error.to_string()))??),
            error = &mut given_up => {
                tokio::spawn(end_late(spawning, self.record.id.clone(), Arc::clone(&self.shared)));
                Err(error)
            }
        }
    }

    async fn given_up(&self) -> ExecutorError {
        tokio::select! {
            () = at(self.command.deadline()) => ExecutorError::DeadlineExceeded,
            // nobody is there to see it
            () = self.cancel.cancelled() => ExecutorError::Internal("cancelled before it was started".into()),
            () = self.shared.shutdown.cancelled() => ExecutorError::ShuttingDown,
        }
    }
}

/// Ends what may still be started after its call was given up.
async fn end_late(spawning: JoinHandle<Result<Child, SpawnError>>, id: ExecutionId, shared: Arc<Shared>) {
    if let Ok(Ok(child)) = spawning.await {
        end_now(Containment::new(child.pid, id, Arc::clone(&shared.census))).await;
    }
}

async fn end_now(containment: Containment) {
    containment.end(Duration::ZERO, std::future::pending()).await;
    containment.release();
}

fn prepare(error: std::io::Error) -> ExecutorError {
    SpawnError {
        stage: SpawnStage::Prepare,
        subject: "the command's pipes and files".into(),
        errno: error.raw_os_error().unwrap_or(libc::EIO),
        missing_interpreter: false,
    }
    .into()
}
