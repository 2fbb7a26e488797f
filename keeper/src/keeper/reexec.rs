//! The keeper's own upgrade: it executes its program on disk, in the same process, between an agent that has handed over and the
//! next one.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Signal, kill_process};

use super::Keeper;
use crate::agent_user::AgentUser;
use crate::children::{Children, listed};
use crate::state::{self, State};
use crate::syslog::StartLog;
use crate::{STATE, exec, given, log};

/// How long the descriptors that the last agent has passed may take to be closed: those still open would hold up execve(2), for
/// as long as that agent likes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
const CLOSE_DELAY: Duration = Duration::from_millis(10);

impl Keeper {
    pub(super) fn reexec_soon(&mut self) {
        self.reexec_by = Some(Instant::now() + CLOSE_TIMEOUT);
    }

    /// Whether the next agent has to wait, until the keeper can execute its program.
    pub(super) fn awaits_reexec(&mut self) -> bool {
        let Some(until) = self.reexec_by else { return false };
        let waits = !self.all_closed() && Instant::now() < until;
        if waits {
            self.agent.again_at = Some(Instant::now() + CLOSE_DELAY);
        }
        waits
    }

    /// Executes the program on disk, if that is due. Returns if it is not, or cannot be: then this program stays.
    pub(super) fn reexec_if_due(&mut self) {
        // one that was asked to end does so with what it is
        if self.reexec_by.take().is_none() || self.asked_at.is_some() {
            return;
        }
        let Err(error) = match self.all_closed() {
            true => {
                let lost = self.start_log.as_ref().map_or(0, StartLog::lost);
                reexec(&self.children, self.agent.oom_score.as_deref(), lost)
            }
            false => Err(io::Error::other("descriptors of the last agent are still being closed")),
        };
        log::line(&format!("this keeper goes on with its old program: {error}"));
    }

    fn all_closed(&self) -> bool {
        given::count() == self.children.count_held()
    }

    /// Continues from the state that the last program has left; the agent is started next.
    ///
    /// # Errors
    /// It cannot be read. Then all that it had started is killed.
    pub(super) fn resume(&mut self, state: RawFd) -> io::Result<()> {
        let State { oom_score, lost_starts, children } = restore(state).inspect_err(|_| self.kill_unknown())?;
        self.start_log = self.terms.syslog.as_deref().and_then(|path| StartLog::new(path, lost_starts));
        self.children = children;
        self.agent.resume(oom_score);
        // the end of one that has ended meanwhile is an event, too
        for number in self.children.numbers() {
            self.watch_end(number);
        }
        log::line(&format!(
            "telexec-keeper {} continues with {} processes",
            env!("CARGO_PKG_VERSION"),
            self.children.numbers().len()
        ));
        Ok(())
    }

    fn kill_unknown(&self) {
        log::line("killing all commands: what the last program has left cannot be read");
        self.agent.user.iter().for_each(AgentUser::kill_all);
        for pid in listed().unwrap_or_default() {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn restore(state: RawFd) -> io::Result<State> {
    let text = io::read_to_string(File::from(exec::inherited(state)?))?;
    state::decode(&text, exec::inherited)
}

/// Executes the program on disk in place of this one: with the same arguments, and what is held.
fn reexec(children: &Children, oom_score: Option<&str>, lost: u64) -> io::Result<Infallible> {
    let mut file = File::from(memfd_create("telexec-keeper", MemfdFlags::CLOEXEC)?);
    file.write_all(state::encode(children, oom_score, lost).as_bytes())?;
    file.rewind()?;
    let arguments = arguments(file.as_raw_fd())?;
    let inherited = || state::descriptors(children).chain([file.as_fd()]);
    let error = match inherited().try_for_each(|file| fcntl_setfd(file, FdFlags::empty())) {
        Ok(()) => {
            let error = exec::replace_program(&arguments);
            let program = arguments.first().map(|program| program.to_string_lossy()).unwrap_or_default();
            io::Error::new(error.kind(), format!("cannot run {program}: {error}"))
        }
        Err(errno) => errno.into(),
    };
    // the agent is not to have them
    inherited().try_for_each(|file| fcntl_setfd(file, FdFlags::CLOEXEC))?;
    Err(error)
}

/// This process's, with the descriptor of the state.
fn arguments(state: RawFd) -> io::Result<Vec<CString>> {
    let mut before = std::env::args_os().map(OsStringExt::into_vec).peekable();
    let program = before.next().unwrap_or_default();
    if before.next_if(|argument| argument == STATE.as_bytes()).is_some() {
        before.next();
    }
    let state = [STATE.into(), state.to_string().into_bytes()];
    let all = [program].into_iter().chain(state).chain(before);
    Ok(all.map(CString::new).collect::<Result<_, _>>()?)
}
