//! One execution, from its start to the end of its last process: a straight line in one task.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{info, warn};

use super::Shared;
use super::containment::Containment;
use super::process::{self, Reaped, Status};
use super::pump::{self, Pump, Pumped};
use super::registry::Record;
use super::spawn::Child;
use super::working_directory::Report;
use crate::{
    Command, Descendants, Event, ExecutorError, ExitCause, Exited, OutputStream, Signal, SpawnError, SpawnStage,
    Started,
};

/// What one execution is made of.
pub(super) struct Supervisor {
    pub(super) shared: Arc<Shared>,
    pub(super) record: Arc<Record>,
    pub(super) command: Command,
    /// Gets all events but the first.
    pub(super) events: mpsc::Sender<Event>,
    /// Cancelled when the caller no longer wants it.
    pub(super) cancel: CancellationToken,
    /// Held until no process is left that was not asked to stay.
    pub(super) tracked: TaskTrackerToken,
}

/// A main process that runs.
struct Main {
    pid: rustix::process::Pid,
    pidfd: AsyncFd<OwnedFd>,
    containment: Containment,
    started: Instant,
}

/// How it ended; the output may not have been read yet.
struct Ending {
    cause: ExitCause,
    reaped: Reaped,
    wall_time: Duration,
    survivors: u32,
}

impl Supervisor {
    /// Runs the execution. `started` gets its start, or why there was none.
    pub(super) async fn run(self, started: oneshot::Sender<Result<Started, ExecutorError>>) {
        let (main, pipes, report) = match self.start().await {
            Ok(parts) => parts,
            Err(error) => {
                info!(%error, "not started");
                self.shared.registry.release(&self.record);
                let _ = started.send(Err(error));
                return;
            }
        };
        let start_time = SystemTime::now();
        let pid = u32::try_from(main.pid.as_raw_nonzero().get()).unwrap_or(0);
        info!(pid, "started");
        self.record.started(pid, start_time, main.containment.clone());
        let _ = started.send(Ok(Started { id: self.record.id.clone(), pid, start_time }));

        let exited = CancellationToken::new();
        let (ending, [stdout, stderr]) = tokio::join!(self.follow(&main, &exited), self.carry(pipes, &exited));
        self.finish(main, ending, [stdout, stderr], report).await;
    }

    async fn start(&self) -> Result<(Main, Pipes, Option<Report>), ExecutorError> {
        let report = match self.command.report_working_directory() {
            true => Some(Report::new(&self.shared.state_dir).map_err(prepare)?),
            false => None,
        };
        let spec = self.shared.defaults.resolve(&self.command, &self.record.id, report.as_ref());
        let shared = Arc::clone(&self.shared);
        // entering a directory or loading a program may take long, on a network file system
        let child = tokio::task::spawn_blocking(move || shared.spawner.spawn(&spec)).await;
        let child: Child = child.map_err(|error| ExecutorError::Internal(error.to_string()))??;
        let started = Instant::now();
        let containment = Containment::new(child.pid, self.record.id.clone());
        let pidfd = match process::watch(child.pidfd) {
            Ok(pidfd) => pidfd,
            Err(error) => {
                containment.end(Duration::ZERO, std::future::pending()).await;
                let _ = process::reap(child.pid);
                return Err(prepare(error));
            }
        };
        let main = Main { pid: child.pid, pidfd, containment, started };
        Ok((main, Pipes { stdin: child.stdin, stdout: child.stdout, stderr: child.stderr }, report))
    }

    /// From the start to the end of the processes. Cancels `exited` when no more output is to be waited for.
    async fn follow(&self, main: &Main, exited: &CancellationToken) -> Ending {
        let (forced, mut survivors) = tokio::select! {
            biased;
            () = process::ended(&main.pidfd) => (None, None),
            (cause, grace) = self.stop(main.started) => {
                (Some(cause), Some(main.containment.end(grace, self.hurry()).await))
            }
        };
        process::ended(&main.pidfd).await;
        let wall_time = main.started.elapsed();
        if forced.is_none() && self.command.descendants() == Descendants::Kill {
            survivors = Some(main.containment.end(self.grace(), self.stop_now()).await);
        }
        exited.cancel();
        let survivors = match survivors {
            Some(survivors) => survivors,
            None => main.containment.survivors().await,
        };
        main.containment.leader_goes(survivors).await;
        let reaped = process::reap(main.pid).unwrap_or_else(|error| {
            warn!(%error, "the exit status was lost: something else in this process reaps its children");
            Reaped::unknown()
        });
        let cause = forced.unwrap_or(match reaped.status {
            Status::Code(code) => ExitCause::Exited(code),
            Status::Signal(_) => ExitCause::Signaled,
        });
        Ending { cause, reaped, wall_time, survivors }
    }

    /// Waits for the first reason to end it, and says how long it may take to end by itself.
    async fn stop(&self, started: Instant) -> (ExitCause, Duration) {
        let timeout = self.shared.timeout(&self.command).and_then(|timeout| started.checked_add(timeout));
        tokio::select! {
            () = self.record.kill.cancelled() => (ExitCause::Signaled, Duration::ZERO),
            () = at(timeout) => (ExitCause::TimedOut, self.grace()),
            () = at(self.command.deadline()) => (ExitCause::DeadlineExceeded, self.grace()),
            () = self.cancel.cancelled() => (ExitCause::Cancelled, self.grace()),
            () = self.shared.shutdown.cancelled() => (ExitCause::Shutdown, self.grace()),
        }
    }

    fn grace(&self) -> Duration {
        self.command.kill_grace().unwrap_or(self.shared.kill_grace)
    }

    /// A reason to cut a grace short.
    async fn hurry(&self) {
        tokio::select! {
            () = self.record.kill.cancelled() => {}
            () = self.shared.hurry.cancelled() => {}
        }
    }

    /// A reason to cut short the grace of descendants after a normal exit.
    async fn stop_now(&self) {
        tokio::select! {
            () = self.hurry() => {}
            () = at(self.command.deadline()) => {}
        }
    }

    /// Carries input and output until `exited`, and what is left after it.
    async fn carry(&self, pipes: Pipes, exited: &CancellationToken) -> [Pumped; 2] {
        let pump = Pump {
            events: &self.events,
            position: &self.record.position,
            max_output_bytes: match self.command.max_output_bytes() {
                0 => self.shared.max_output_bytes,
                bytes => bytes,
            },
            exited,
        };
        let output = async {
            tokio::join!(pump.run(pipes.stdout, OutputStream::Stdout), pump.run(pipes.stderr, OutputStream::Stderr))
        };
        let input = async {
            feed(pipes.stdin, self.command.stdin().clone()).await;
            std::future::pending().await
        };
        tokio::select! {
            (stdout, stderr) = output => [stdout, stderr],
            never = input => never,
        }
    }

    /// Tells the end, and looks after what was left running.
    async fn finish(self, main: Main, ending: Ending, [stdout, stderr]: [Pumped; 2], report: Option<Report>) {
        let exited = Exited {
            cause: ending.cause,
            signal: match ending.reaped.status {
                Status::Code(_) => None,
                Status::Signal(signal) => signal,
            },
            core_dumped: ending.reaped.core_dumped,
            wall_time: ending.wall_time,
            user_time: ending.reaped.user_time,
            system_time: ending.reaped.system_time,
            max_rss_bytes: ending.reaped.max_rss_bytes,
            stdout: stdout.totals,
            stderr: stderr.totals,
            surviving_processes: ending.survivors,
            working_directory: report.and_then(|report| report.read()),
            end_time: SystemTime::now(),
        };
        log_end(&exited);
        let lingers = ending.survivors > 0;
        self.shared.registry.ended(&self.record, exited.clone(), lingers);
        drop(self.tracked);
        let _ = self.events.send(Event::Exited(exited)).await;
        drop(self.events);
        if lingers {
            let rests = [stdout.rest, stderr.rest].into_iter().flatten().map(pump::discard);
            let outlive = async {
                tokio::join!(main.containment.outlive(), futures_util::future::join_all(rests));
            };
            tokio::select! {
                () = outlive => self.shared.registry.outlived(&self.record),
                // they were asked to stay; only this executor goes
                () = self.shared.shutdown.cancelled() => {}
            }
        }
    }
}

struct Pipes {
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

/// Writes the input and its end; a command that reads no more is no error.
async fn feed(stdin: Option<OwnedFd>, input: Bytes) {
    if let Some(Ok(mut pipe)) = stdin.map(pipe::Sender::from_owned_fd) {
        let _ = pipe.write_all(&input).await;
    }
}

/// Never, if there is no such moment.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
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

fn log_end(exited: &Exited) {
    info!(
        cause = exited.cause.as_str(),
        exit_code = exited.exit_code(),
        signal = exited.signal.map_or(0, Signal::number),
        wall_ms = u64::try_from(exited.wall_time.as_millis()).unwrap_or(u64::MAX),
        stdout_bytes = exited.stdout.bytes,
        stderr_bytes = exited.stderr.bytes,
        survivors = exited.surviving_processes,
        "ended"
    );
}
