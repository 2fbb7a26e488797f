//! How an execution ended: by itself, or why it was ended.

use std::io;
use std::time::{Duration, SystemTime};

use telexec_executor::{ExitCause, Exited, OutputStream, Signal, Usage};
use tracing::warn;

use crate::boot_time::instant;
use crate::process::control::{Ended, Status};
use crate::process::own::End;
use crate::start::Main;
use crate::supervise::Supervisor;
use crate::wait::RETRY_DELAY;

/// How shells exit whose last process was ended by SIGKILL.
const KILLED: u8 = 128 + 9;

/// How often the exit status of an ended process is asked for, with a [`RETRY_DELAY`] between.
const EXIT_STATUS_ATTEMPTS: usize = 50;

/// How the main process ended. Its output may not have been read yet.
pub(crate) struct Ending {
    pub(crate) cause: ExitCause,
    pub(crate) ended: Ended,
    /// From its start to its end.
    pub(crate) wall_time: Duration,
    pub(crate) survivors: u32,
}

impl Supervisor {
    /// How it ended.
    pub(crate) async fn ending(&self, main: &Main, wall_time: Duration, survivors: u32) -> Ending {
        let ended = ended(&main.end, survivors).await;
        // an agent that was frozen sees both at once
        let is_wrong =
            |cause: &ExitCause| *cause == ExitCause::TimedOut && self.was_in_time(main, &ended) == Some(true);
        let forced = self.forced.get().filter(|cause| !is_wrong(cause));
        let cause = match (forced, ended.status) {
            // SIGKILL leaves no code: it was faster
            (Some(ExitCause::Signaled), Status::Code(code)) => ExitCause::Exited(code),
            (Some(cause), _) => *cause,
            // one of its processes may have been killed for want of memory, and the command have succeeded all the same
            (None, Status::Code(0)) => ExitCause::Exited(0),
            (None, status) if self.has_run_out_of_memory(main, status) => ExitCause::OutOfMemory,
            (None, Status::Code(code)) => ExitCause::Exited(code),
            (None, Status::Signal(_)) => ExitCause::Signaled,
        };
        Ending { cause, ended, wall_time, survivors }
    }

    /// Whether it ended before its timeout; `None`: it has none, or it is not known when it ended.
    pub(crate) fn was_in_time(&self, main: &Main, ended: &Ended) -> Option<bool> {
        let limit = self.first_timeout.and_then(|timeout| main.started.checked_add(timeout));
        limit.zip(ended.at).map(|(limit, at)| instant(at) < limit)
    }

    /// The kernel ended a process of it for want of memory. A cgroup of its own counts that. Without one it is taken to
    /// be so if the counter of this process's own cgroup has grown, no other execution has been there since before the
    /// start, and the main process was killed or exited as shells do whose command was.
    fn has_run_out_of_memory(&self, main: &Main, status: Status) -> bool {
        let known = main.containment.has_run_out_of_memory();
        known.unwrap_or_else(|| {
            if !matches!(status, Status::Signal(Some(Signal::KILL)) | Status::Code(KILLED)) {
                return false;
            }
            let Some(before) = main.oom_kills_before else { return false };
            let kills = self.shared.cgroups.own_oom_kills();
            kills.is_some_and(|kills| kills > before) && self.shared.registry.is_newest(&self.record)
        })
    }

    pub(crate) fn exit_record(&self, ending: Ending, working_directory: Option<String>, usage: Usage) -> Exited {
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
            stdout: self.totals.of(OutputStream::Stdout),
            stderr: self.totals.of(OutputStream::Stderr),
            surviving_processes: ending.survivors,
            working_directory,
            end_time: SystemTime::now(),
            usage,
            receipt: None,
        }
    }
}

/// How the main process ended; unknown of one that runs on since it may not be signalled.
async fn ended(end: &End, survivors: u32) -> Ended {
    if survivors == 0 {
        end.reached().await;
    }
    for _ in 0..EXIT_STATUS_ATTEMPTS {
        match end.status() {
            // the kernel reports the end to a debugger first
            Err(error) if survivors == 0 && error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(RETRY_DELAY).await
            }
            Err(_) => break,
            Ok(ended) => return ended,
        }
    }
    warn!("how the main process ended is not known");
    Ended::unknown()
}
