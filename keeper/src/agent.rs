//! The agent's process: started, and again when it has crashed.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::agent_user::AgentUser;
use crate::channel::Channel;
use crate::paused::state;
use crate::{VARIABLE, notify, signals, wire};

/// Between the crashes of an agent that does not live long: doubled from one to the next.
const MIN_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(1);
/// Whom sockets were passed to: see sd_listen_fds(3).
const SOCKETS_OF: &str = "LISTEN_PID";
const SOCKETS: &str = "LISTEN_FDS";
/// EX_CONFIG of sysexits.h: trying again does not help.
const BAD_CONFIG: i32 = 78;
/// As many in a row end before they serve: then whoever has started this is to know.
const MAX_FAILURES: u32 = 10;
/// One that has lived longer is started again at once.
const LONG_LIFE: Duration = Duration::from_secs(10);

/// The agent, which may run.
pub(crate) struct Agent {
    command: Vec<OsString>,
    /// `None`: it runs as this process does.
    pub(crate) user: Option<AgentUser>,
    /// What its processes are to have, while this one has less to fear.
    pub(crate) oom_score: Option<String>,
    pub(crate) running: Option<Running>,
    /// One has served, since this process runs.
    pub(crate) was_ready: bool,
    /// In a row, that have not.
    failures: u32,
    /// It was asked to end.
    is_stopping: bool,
    /// It ends for another one to take its place.
    hands_over: bool,
    delay: Duration,
    pub(crate) again_at: Option<Instant>,
}

/// An agent that runs.
pub(crate) struct Running {
    child: Child,
    pub(crate) pidfd: OwnedFd,
    pub(crate) channel: Channel,
    since: Instant,
    /// It serves.
    is_ready: bool,
}

/// An agent that has ended.
pub(crate) struct Past {
    pub(crate) next: Next,
    /// It was asked to end, or ends since that is what it was started for.
    pub(crate) was_asked: bool,
    /// It has ended for another one to take its place.
    pub(crate) was_handed_over: bool,
    /// Its process, which is no more.
    pub(crate) pid: u32,
    pub(crate) status: ExitStatus,
    pub(crate) pidfd: OwnedFd,
    pub(crate) channel: Channel,
}

/// What is to be done now.
pub(crate) enum Next {
    /// End, with this code.
    End(u8),
    /// Start it again.
    Again,
}

impl Agent {
    pub(crate) fn new(command: &[OsString], user: Option<AgentUser>) -> Self {
        Self {
            command: command.to_vec(),
            user,
            oom_score: None,
            running: None,
            was_ready: false,
            failures: 0,
            is_stopping: false,
            hands_over: false,
            delay: MIN_DELAY,
            again_at: None,
        }
    }

    /// None has been started yet.
    pub(crate) fn spare_keeper(&mut self) {
        self.oom_score = spare_this_process();
    }

    /// The program before this one had one, which has handed over.
    pub(crate) fn resume(&mut self, oom_score: Option<String>) {
        self.oom_score = oom_score;
        self.was_ready = true;
        self.again_at = Some(Instant::now());
    }

    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        self.again_at = None;
        self.user.as_ref().map_or(Ok(()), AgentUser::end_leftovers)?;
        let (channel, its) = Channel::pair()?;
        let its = its.as_fd();
        let (program, arguments) = self.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).env(VARIABLE, format!("{}:{}", its.as_raw_fd(), wire::VERSION));
        // what it says goes by this process, which the service manager knows
        command.env_remove(notify::VARIABLE);
        // they are the agent's now, whose id is not known here; those that are not meant for this process are nobody's
        let are_meant = std::env::var(SOCKETS_OF).is_ok_and(|meant| meant == std::process::id().to_string());
        command.env_remove(if are_meant { SOCKETS_OF } else { SOCKETS });
        signals::unblock_in(&mut command);
        if let Some(user) = &self.user {
            let procs = user.entry().map_err(|error| {
                io::Error::new(error.kind(), format!("the agent's cgroup in {}: {error}", user.cgroups.display()))
            })?;
            // not a terminal that others type at
            command.stdin(Stdio::null());
            signals::become_user_in(&mut command, &user.credentials, procs);
        }
        // nothing else is started meanwhile
        fcntl_setfd(its, FdFlags::empty())?;
        let mut child = command.spawn().map_err(|error| {
            let user = self.user.as_ref().map_or_else(String::new, |user| format!(" as uid {}", user.credentials.uid));
            io::Error::new(error.kind(), format!("cannot start {}{user}: {error}", program.display()))
        })?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        if let Some(score) = &self.oom_score {
            let _ = std::fs::write(format!("/proc/{}/oom_score_adj", child.id()), score);
        }
        self.user.iter_mut().for_each(|user| user.note_cgroup(child.id()));
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| {
            let _ = child.kill();
            io::Error::other(format!("pidfd_open(2) does not work here: {error}; Linux 5.9 or later has it, unless a seccomp filter forbids it"))
        })?;
        self.running = Some(Running { child, pidfd, channel, since: Instant::now(), is_ready: false });
        Ok(())
    }

    pub(crate) fn serves(&mut self) {
        self.was_ready = true;
        self.failures = 0;
        self.running.iter_mut().for_each(|running| running.is_ready = true);
    }

    /// Ends one that cannot be used.
    pub(crate) fn abandon(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }

    /// It serves, and takes signals.
    pub(crate) fn is_ready(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.is_ready)
    }

    pub(crate) fn hands_over(&mut self) {
        self.hands_over = true;
    }

    pub(crate) fn stops(&mut self) {
        self.is_stopping = true;
    }

    /// Sends it a signal. False: it does not run.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        let pid = self.pid();
        // it is not reaped, so its id is its own
        pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
    }

    /// Its first thread has ended.
    pub(crate) fn is_dying(&self) -> bool {
        self.pid().and_then(state) == Some('Z')
    }

    pub(crate) fn pid(&self) -> Option<Pid> {
        self.running.as_ref().and_then(|running| Pid::from_raw(i32::try_from(running.child.id()).unwrap_or(0)))
    }

    /// Takes it from the process table, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<Past> {
        let status = self.running.as_mut()?.child.try_wait().ok()??;
        let Running { child, pidfd, channel, since, is_ready } = self.running.take()?;
        self.failures += u32::from(!is_ready);
        // one that is not root may have seen to it that the next ones fail: it does not end its keeper
        let may_end = self.user.is_none() || !self.was_ready;
        let is_hopeless = may_end && !is_ready && (status.code() == Some(BAD_CONFIG) || self.failures >= MAX_FAILURES);
        // only one that has served was checked to be able to
        let was_handed_over = std::mem::take(&mut self.hands_over) && is_ready;
        let next = match was_handed_over && !self.is_stopping {
            true => {
                self.again_at = Some(Instant::now());
                Next::Again
            }
            false => self.next(status, since.elapsed(), is_hopeless),
        };
        let was_asked = self.is_stopping || status.success();
        Some(Past { next, was_asked, was_handed_over, pid: child.id(), status, pidfd, channel })
    }

    fn next(&mut self, status: ExitStatus, life: Duration, is_hopeless: bool) -> Next {
        // one that cannot serve will not the next time either: whoever has started this is to know
        let is_asked_for = status.success() && self.user.is_none();
        if self.is_stopping || !self.was_ready || is_asked_for || is_hopeless {
            let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            return Next::End(u8::try_from(code).unwrap_or(1));
        }
        self.delay = if life > LONG_LIFE { MIN_DELAY } else { (2 * self.delay).min(MAX_DELAY) };
        self.again_at = Some(Instant::now() + if life > LONG_LIFE { Duration::ZERO } else { self.delay });
        Next::Again
    }

    /// So many have not served, that what earlier ones have left may be why.
    pub(crate) fn keeps_failing(&self) -> bool {
        self.user.is_some() && self.was_ready && self.failures >= MAX_FAILURES
    }

    /// It could not be started again.
    pub(crate) fn failed(&mut self) {
        self.delay = (2 * self.delay).min(MAX_DELAY);
        self.again_at = Some(Instant::now() + self.delay);
    }
}

/// All depends on this process, which takes next to no memory; returns what others are to have, if that is another score.
fn spare_this_process() -> Option<String> {
    const SCORE: &str = "/proc/self/oom_score_adj";
    let before = std::fs::read_to_string(SCORE).ok()?;
    std::fs::write(SCORE, "-1000").ok()?;
    Some(before)
}
