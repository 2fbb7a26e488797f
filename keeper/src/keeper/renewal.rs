//! The program of the keeper itself: with an upgrade, that on disk takes the place of the one that runs.

use std::convert::Infallible;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use rustix::io::{FdFlags, fcntl_setfd};

use super::{Keeper, Source};
use crate::children::Children;
use crate::state::{self, State};
use crate::{STATE, exec, given, log};

/// For what the last agent has passed to be closed: that would hold up execve(2), for as long as the agent likes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
const CLOSE_DELAY: Duration = Duration::from_millis(10);

impl Keeper {
    /// An agent has handed over.
    pub(super) fn renew_soon(&mut self) {
        self.renew_until = Some(Instant::now() + CLOSE_TIMEOUT);
    }

    /// Runs the program on disk, if that is to be, which starts the agent. False: not yet. No agent runs.
    pub(super) fn renew(&mut self) -> bool {
        let Some(until) = self.renew_until else { return true };
        let is_closed = given::count() == self.children.count_held();
        if !is_closed && Instant::now() < until {
            self.agent.again_at = Some(Instant::now() + CLOSE_DELAY);
            return false;
        }
        self.renew_until = None;
        let renewed = match is_closed {
            true => leave(&self.children, self.agent.oom_score.as_deref()),
            false => Err(io::Error::other("what the last agent has passed is not closed yet")),
        };
        let Err(error) = renewed;
        log::line(&format!("the keeper's program stays the one that runs: {error}"));
        true
    }

    /// Goes on with what the program before this one has left; the agent is started next.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn resume(&mut self, state: RawFd) -> io::Result<()> {
        let text = io::read_to_string(std::fs::File::from(exec::inherited(state)?))?;
        let State { oom_score, children } = state::decode(&text, exec::inherited)?;
        self.children = children;
        self.agent.resume(oom_score);
        // those that have ended meanwhile are seen by that
        for number in self.children.numbers() {
            self.watch(number, |child| Some(&child.pidfd), Source::End(number));
        }
        self.reap_strangers();
        Ok(())
    }
}

/// Runs the program on disk in place of this one: with the same arguments, and what is held.
fn leave(children: &Children, oom_score: Option<&str>) -> io::Result<Infallible> {
    let file = memfd_create("telexec-keeper", MemfdFlags::CLOEXEC)?;
    let text = state::encode(children, oom_score);
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = rest.get(written..).unwrap_or_default();
    }
    seek(&file, SeekFrom::Start(0))?;
    let arguments = arguments(file.as_raw_fd())?;
    let inherited = || state::descriptors(children).chain([file.as_fd()]);
    let error = match inherited().try_for_each(|file| fcntl_setfd(file, FdFlags::empty())) {
        Ok(()) => exec::replace_program(&arguments),
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
