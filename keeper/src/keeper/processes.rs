//! What was started, until its end, and what was given to this process.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use telexec_spawn::{Forked, Step, exit};

use super::{Keeper, Source};
use crate::children::{Child, listed};
use crate::log;
use crate::wire::Report;

/// Until an end is looked for again that a debugger has not seen.
const RETRY_DELAY: Duration = Duration::from_millis(10);
/// The same, where its end was told as unknown.
const LONG_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Until orphans are searched for that ended children hide.
const SEARCH_DELAY: Duration = Duration::from_millis(200);

/// On a clock that all processes share, which counts while the machine sleeps.
pub(super) fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl Keeper {
    /// Waits for its end.
    pub(super) fn watch_end(&mut self, number: u64) {
        let Some(child) = self.children.get(number) else { return };
        if !std::mem::replace(&mut child.is_watched, true) {
            self.watch(number, |child| Some(&child.pidfd), Source::End(number));
        }
    }

    /// Waits for an event of a child. What cannot be waited for is killed, and looked at until it is gone.
    pub(super) fn watch(&mut self, number: u64, file: impl Fn(&Child) -> Option<&OwnedFd>, source: Source) {
        let Some(child) = self.children.get(number) else { return };
        let Some(file) = file(child) else { return };
        if epoll::add(&self.epoll, file, source.data(), epoll::EventFlags::IN).is_err() {
            child.kill();
            log::line("a process was killed: its end cannot be waited for, for want of memory or of epoll watches");
            self.look_again(number);
        }
    }

    /// Not left to its close: a child that is held up on its way to its program has a copy, for which events would go on.
    pub(super) fn unwatch(&self, file: impl AsFd) {
        let _ = epoll::delete(&self.epoll, file);
    }

    pub(super) fn look_again(&mut self, number: u64) {
        let is_known = self.children.get(number).is_some_and(|child| child.exit.is_some());
        // then a debugger has it, and nobody waits for it
        let at = Instant::now() + if is_known { LONG_RETRY_DELAY } else { RETRY_DELAY };
        self.unsettled.insert(number);
        self.retry_at = Some(self.retry_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// It runs its program, or never will.
    pub(super) fn look_at_start(&mut self, number: u64) {
        let Some(child) = self.children.get(number) else { return };
        let Some(report) = &child.starting else { return };
        let Some(outcome) = Forked::outcome(report) else { return };
        let has_not_begun = child.has_not_begun || self.has_not_begun(number);
        let Some(child) = self.children.get(number) else { return };
        if let Some(report) = child.starting.take() {
            let _ = epoll::delete(&self.epoll, report);
        }
        self.has_left(number);
        let Some(child) = self.children.get(number) else { return };
        match outcome {
            // nothing ran: it was killed, or had no descriptors
            Ok(()) if has_not_begun => child.failure = Some((Step::Clone, Errno::AGAIN.raw_os_error())),
            Ok(()) => {
                let pid = child.pid.as_raw_nonzero().get();
                if self.own.0 != 0 {
                    // until it ran its program, its files in /proc were root's: it could not do that itself
                    let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), "0");
                }
                let started = child.id.map(|id| Report::Started { id, pid });
                started.into_iter().for_each(|started| self.report(started));
            }
            Err((step, errno)) => child.failure = Some((step, errno.raw_os_error())),
        }
        self.watch_end(number);
    }

    /// It has ended, or may have.
    pub(super) fn look_at_end(&mut self, number: u64) {
        self.look_at_start(number);
        let Some(child) = self.children.get(number) else { return };
        if child.starting.is_some() {
            // it has ended, and its pipe is still open elsewhere
            let _ = epoll::delete(&self.epoll, &child.pidfd);
            self.end_starter_of(number);
            return self.look_again(number);
        }
        if child.exit.is_none() {
            // asked again where a debugger holds it up
            let _ = epoll::delete(&self.epoll, &child.pidfd);
            match child.look() {
                Some(exit) => child.exit = Some((exit, since_boot())),
                None => return self.look_again(number),
            }
        }
        match (child.id, child.exit, child.failure, child.is_released) {
            (Some(id), Some((exit, at)), None, false) => self.report(Report::Exited { id, exit, at }),
            _ => self.reap(number),
        }
    }

    /// Takes a child that has ended from the process table. One that could not be started is reported only then.
    pub(super) fn reap(&mut self, number: u64) {
        let Some(child) = self.children.get(number) else { return };
        if !exit::reap(child.pid).unwrap_or(true) {
            child.is_released = true;
            return self.look_again(number);
        }
        let removed = self.children.remove(number);
        self.has_left(number);
        if let Some(Child { id: Some(id), failure: Some((step, errno)), .. }) = removed {
            self.report(Report::NotStarted { id, step, errno });
        }
    }

    /// Orphans that were given to this process and have ended.
    pub(super) fn reap_strangers(&mut self) {
        while let Ok(Some(pid)) = exit::any_ended() {
            if self.children.has_pid(pid) || self.agent.pid() == Some(pid) {
                // it hides others
                self.search_at.get_or_insert(Instant::now() + SEARCH_DELAY);
                return;
            }
            let _ = exit::reap(pid);
        }
    }

    pub(super) fn reap_hidden_strangers(&mut self) {
        let agent = self.agent.pid();
        for pid in listed().unwrap_or_default() {
            if !self.children.has_pid(pid) && agent != Some(pid) {
                let _ = exit::reap(pid);
            }
        }
    }
}
