//! One execution, from its start to the end of its last process: a straight line in one task.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{info, warn};

use super::containment::Guard;
use super::process::{self, Ended, Status};
use super::pump::{self, Pump, Pumped};
use super::registry::{self, Record};
use super::start::{Main, NotStarted, Pipes};
use super::working_directory::Report;
use super::{PAUSE, Shared};
use crate::{Command, Descendants, Event, ExecutorError, ExitCause, Exited, OutputStream, Signal, Started};

/// After a call's deadline: how long its reader is waited for.
const DELIVERY_TIME: Duration = Duration::from_secs(10);

/// What one execution is made of.
pub(super) struct Supervisor {
    pub(super) shared: Arc<Shared>,
    pub(super) record: Arc<Record>,
    pub(super) command: Arc<Command>,
    /// Gets all events but the first.
    pub(super) events: mpsc::Sender<Event>,
    /// Cancelled when the caller no longer wants it.
    pub(super) cancel: CancellationToken,
    /// Cancelled when the caller is no longer waited for, also not to read its output.
    pub(super) abandoned: CancellationToken,
    /// Held until no process is left that was not asked to stay.
    pub(super) tracked: TaskTrackerToken,
    /// Held until no process is left.
    pub(super) permit: OwnedSemaphorePermit,
}

/// How the main process ended; the output may not have been read yet.
struct Ending {
    cause: ExitCause,
    ended: Ended,
    wall_time: Duration,
    survivors: u32,
}

impl Supervisor {
    /// Runs the execution. `started` gets its start, or why there was none.
    pub(super) async fn run(self, started: oneshot::Sender<Result<Started, ExecutorError>>) {
        let (main, pipes, report) = match self.start().await {
            Ok(parts) => parts,
            Err(NotStarted::Failed(error)) => {
                log_failure(&error);
                self.shared.registry.release(&self.record);
                let _ = started.send(Err(error));
                return;
            }
            Err(NotStarted::GivenUp(error, late)) => {
                log_failure(&error);
                let _ = started.send(Err(error));
                late.end().await;
                self.shared.registry.release(&self.record);
                return;
            }
        };
        let start_time = SystemTime::now();
        let pid = u32::try_from(main.pid.as_raw_nonzero().get()).unwrap_or(0);
        info!(pid, "started");
        let (user, working_directory) = (main.user.clone(), main.working_directory.clone());
        self.record.started(registry::Main { pid, start_time, user, working_directory }, main.containment.clone());
        let _ = started.send(Ok(Started { id: self.record.id.clone(), pid, start_time }));

        let exited = CancellationToken::new();
        let (ending, output) = tokio::join!(self.follow(&main, &exited), self.carry(pipes, &exited));
        self.finish(main.containment, ending, output, report).await;
    }

    /// From the start to the end of the processes. Cancels `exited` when no more output is to be waited for.
    async fn follow(&self, main: &Main, exited: &CancellationToken) -> Ending {
        let containment = &main.containment;
        let mut forced = tokio::select! {
            biased;
            () = process::ended(&main.pidfd) => None,
            stop = self.stop(main.started) => Some(stop),
        };
        // its end and the request to kill it were there at once: the request is what ended it
        if forced.is_none() && self.record.kill.is_cancelled() {
            forced = Some((ExitCause::Signaled, Duration::ZERO));
        }
        let left = match forced {
            Some((_, grace)) => Some(containment.end(grace, self.hurry()).await),
            None if self.command.descendants() == Descendants::Kill => {
                Some(containment.end(self.grace(), self.hurry()).await)
            }
            None => None,
        };
        let wall_time = main.started.elapsed();
        exited.cancel();
        let survivors = match left {
            Some(refused) => refused,
            None => containment.survivors().await,
        };
        let ended = ended(&main.pidfd, main.pid, survivors).await;
        let cause = match (forced, ended.status) {
            (Some((cause, _)), _) => cause,
            // it may end well all the same
            (None, Status::Code(0)) => ExitCause::Exited(0),
            (None, _) if containment.has_run_out_of_memory() => ExitCause::OutOfMemory,
            (None, Status::Code(code)) => ExitCause::Exited(code),
            (None, Status::Signal(_)) => ExitCause::Signaled,
        };
        Ending { cause, ended, wall_time, survivors }
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

    /// Carries input and output until `exited`, and what is left after it.
    async fn carry(&self, pipes: Pipes, exited: &CancellationToken) -> [Pumped; 2] {
        let max_output_bytes = match self.command.max_output_bytes() {
            0 => self.shared.max_output_bytes,
            bytes => bytes,
        };
        let (events, position, abandoned) = (&self.events, &self.record.position, &self.abandoned);
        let pump = Pump { events, position, max_output_bytes, exited, abandoned };
        let output = async {
            let pumped = tokio::join!(
                pump.run(pipes.stdout, OutputStream::Stdout),
                pump.run(pipes.stderr, OutputStream::Stderr),
            );
            // a command that has closed its output may still read its input
            exited.cancelled().await;
            pumped
        };
        let input = async {
            feed(pipes.stdin, self.command.stdin().clone()).await;
            std::future::pending().await
        };
        let patience = async {
            at(self.command.deadline().and_then(|deadline| deadline.checked_add(DELIVERY_TIME))).await;
            abandoned.cancel();
            std::future::pending().await
        };
        tokio::select! {
            (stdout, stderr) = output => [stdout, stderr],
            never = input => never,
            never = patience => never,
        }
    }

    /// Tells the end, and looks after what was left running.
    async fn finish(self, containment: Guard, ending: Ending, output: [Pumped; 2], report: Option<Report>) {
        let [stdout, stderr] = output;
        let lingers = ending.survivors > 0;
        let exited = exit_record(ending, [&stdout, &stderr], report);
        log_end(&exited);
        let Self { shared, record, events, abandoned, tracked, permit, .. } = self;
        shared.registry.ended(&record, exited.clone(), lingers);
        drop(tracked);
        let tell = async {
            if let Err(TrySendError::Full(exited)) = events.try_send(Event::Exited(exited)) {
                abandoned.run_until_cancelled(events.send(exited)).await;
            }
            drop(events);
        };
        if !lingers {
            containment.release();
            drop(permit);
            return tell.await;
        }
        containment.leave_alone();
        let rests = [stdout.rest, stderr.rest].into_iter().flatten().map(pump::discard);
        let outlive = async {
            tokio::join!(tell, containment.outlive(), futures_util::future::join_all(rests));
        };
        tokio::select! {
            () = outlive => {
                shared.registry.outlived(&record);
                containment.release();
            }
            // they were asked to stay; only this executor goes
            () = shared.shutdown.cancelled() => {}
        }
    }
}

/// How the main process ended. Of one that goes on, since it may not be signalled, that is not known.
async fn ended(pidfd: &AsyncFd<OwnedFd>, pid: rustix::process::Pid, survivors: u32) -> Ended {
    if survivors == 0 {
        process::ended(pidfd).await;
    }
    for _ in 0..LOOKS {
        match process::look(pid) {
            // a debugger is told first
            Err(error) if survivors == 0 && error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(PAUSE).await
            }
            Err(_) => break,
            Ok(ended) => return ended,
        }
    }
    warn!("how the main process ended is not known");
    Ended::unknown()
}

/// How often an end is looked for that is known to be there, with a [`PAUSE`] between.
const LOOKS: usize = 50;

fn exit_record(ending: Ending, [stdout, stderr]: [&Pumped; 2], report: Option<Report>) -> Exited {
    Exited {
        cause: ending.cause,
        signal: match ending.ended.status {
            Status::Code(_) => None,
            Status::Signal(signal) => signal,
        },
        core_dumped: ending.ended.core_dumped,
        wall_time: ending.wall_time,
        user_time: ending.ended.user_time,
        system_time: ending.ended.system_time,
        max_rss_bytes: ending.ended.max_rss_bytes,
        stdout: stdout.totals,
        stderr: stderr.totals,
        surviving_processes: ending.survivors,
        working_directory: report.and_then(|report| report.read()),
        end_time: SystemTime::now(),
    }
}

/// Writes the input and its end; a command that reads no more is no error.
async fn feed(stdin: Option<OwnedFd>, input: Bytes) {
    if let Some(Ok(mut pipe)) = stdin.map(pipe::Sender::from_owned_fd) {
        let _ = pipe.write_all(&input).await;
    }
}

/// Never, if there is no such moment.
pub(super) async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

/// Without the program's name: that is a piece of the command.
fn log_failure(error: &ExecutorError) {
    match error {
        ExecutorError::Spawn(error) => {
            info!(stage = error.stage.as_str(), errno = error.errno_name().as_ref(), "not started");
        }
        error => info!(error = error.to_string(), "not started"),
    }
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
