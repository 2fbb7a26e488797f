//! What was started: from its start to the end, and what was given to this process.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use telexec_spawn::{CgroupEntry, Chown, Forked, Image, Step, can_be_born_in_a_cgroup, exit, fork};

use super::{Keeper, Source};
use crate::children::{Child, is_cgroup, listed};
use crate::given::Given;
use crate::log;
use crate::users::DYNAMIC;
use crate::wire::{Report, Start};

/// Until an end is looked for again that a debugger has not seen.
const RETRY_DELAY: Duration = Duration::from_millis(10);
/// The same, where its end was told as unknown.
const LONG_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Until orphans are searched for that ended children hide.
const SEARCH_DELAY: Duration = Duration::from_millis(200);

/// What comes with a start.
struct Descriptors {
    streams: Vec<Given>,
    executable: Option<Given>,
    chown: Option<Given>,
    joins: Vec<Given>,
    held: Vec<Given>,
}

impl Descriptors {
    /// `None`: the kernel has left out those for which there was no room.
    fn of(start: &Start, descriptors: Vec<Given>) -> Option<Self> {
        if descriptors.len() != start.descriptors() {
            return None;
        }
        let mut descriptors = descriptors.into_iter();
        let streams = descriptors.by_ref().take(start.streams()).collect();
        let mut one = |is_there: bool| if is_there { descriptors.next() } else { None };
        let (executable, chown) = (one(start.executable), one(start.chown));
        let joins = descriptors.by_ref().take(usize::from(start.joins)).collect();
        Some(Self { streams, executable, chown, joins, held: descriptors.collect() })
    }
}

/// Has the process enter its cgroup of version 2 by being born there, or by itself; the latter is returned.
fn enter(cgroups: &mut CgroupEntry, cgroup: Option<OwnedFd>) -> Result<Option<OwnedFd>, Errno> {
    if can_be_born_in_a_cgroup() {
        cgroups.birthplace = cgroup;
        return Ok(None);
    }
    if let Some(directory) = &cgroup {
        cgroups.joins.push(openat(directory, "cgroup.procs", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?);
    }
    Ok(cgroup)
}

/// On a clock that all processes share, which counts while the machine sleeps.
fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl Keeper {
    /// Makes the process. What becomes of it is seen later.
    pub(super) fn start(&mut self, start: Start, descriptors: Vec<Given>) -> Result<(), (Step, Errno)> {
        let Descriptors { streams, executable, chown, joins, held } =
            Descriptors::of(&start, descriptors).ok_or((Step::Clone, Errno::MFILE))?;
        let (user, is_private) = (start.credentials.as_ref(), start.private_directories.is_some());
        if !self.ceiling.users.as_ref().is_none_or(|users| users.allow(user, is_private, self.own.0)) {
            return Err((Step::Setuid, Errno::PERM));
        }
        // dynamic users have them, and nobody else
        if is_private && !user.is_some_and(|user| DYNAMIC.contains(&user.uid)) {
            return Err((Step::Unshare, Errno::PERM));
        }
        let mut chowns = Vec::new();
        if let Some(agent) = &self.agent.user {
            agent.permit(start.credentials.as_ref(), joins.len())?;
            let owner = start.credentials.as_ref().map_or(self.own, |user| (user.uid, user.gid));
            chowns =
                agent.chowns(&streams, start.terminal, chown.as_ref(), owner).map_err(|errno| (Step::Setuid, errno))?;
        }
        let joins = joins.into_iter().filter_map(Given::into_inner).collect();
        let mut cgroups = CgroupEntry { birthplace: None, joins };
        let (streams, executable) = (self.streams(&streams), executable.as_ref().map(AsRawFd::as_raw_fd));
        if let Some(number) = self.waiting_in(&start.cgroup) {
            let image = self.image(&start, streams, executable, &chowns, &cgroups);
            let report = self.ahead.as_ref().and_then(|ahead| ahead.start(&image));
            if let Some(report) = report {
                self.leaves(number);
                self.has_begun(number, report, &start, held);
                return Ok(());
            }
            self.end_waiting();
        }
        let cgroup = self.cgroup(&start.cgroup).map_err(|errno| (Step::Cgroup, errno))?;
        let entered = enter(&mut cgroups, cgroup).map_err(|errno| (Step::Cgroup, errno))?;
        let image = self.image(&start, streams, executable, &chowns, &cgroups);
        let Forked { pid, pidfd, report } = fork(&image).map_err(|errno| (Step::Clone, errno))?;
        let number = self.children.add(Child::new(pid, pidfd, cgroups.birthplace.or(entered)));
        self.has_begun(number, report, &start, held);
        Ok(())
    }

    /// This child is on its way to its program.
    fn has_begun(&mut self, number: u64, report: OwnedFd, start: &Start, held: Vec<Given>) {
        if let Some(child) = self.children.name(number, start.id) {
            child.starting = Some(report);
            child.survives = start.survives;
            child.held = held.into_iter().map(Some).collect();
        }
        self.watch(number, |child| child.starting.as_ref(), Source::Start(number));
    }

    fn image<'a>(
        &'a self,
        start: &'a Start,
        streams: [RawFd; 3],
        executable: Option<RawFd>,
        chowns: &'a [Chown],
        cgroups: &'a CgroupEntry,
    ) -> Image<'a> {
        let is_private = start.private_directories.is_some();
        Image {
            candidates: &start.candidates,
            executable,
            argv: &start.argv,
            environment: &start.environment,
            working_directory: &start.working_directory,
            streams,
            terminal: start.terminal,
            cgroups,
            chowns,
            rlimits: &self.rlimits,
            credentials: start.credentials.as_ref(),
            private_directories: start.private_directories,
            no_new_privileges: is_private || start.no_new_privileges || self.ceiling.no_new_privileges,
            fault: None,
        }
    }

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
        let _ = epoll::delete(&self.epoll, report);
        child.starting = None;
        self.has_left(number);
        let Some(child) = self.children.get(number) else { return };
        match outcome {
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

    /// Where it is to be born: for an agent of another user below the directory that was delegated to that.
    pub(super) fn cgroup(&self, path: &CStr) -> Result<Option<OwnedFd>, Errno> {
        let directory = match &self.agent.user {
            Some(agent) => agent.execution_cgroup(path)?,
            None if path.is_empty() => return Ok(None),
            None => openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?,
        };
        if is_cgroup(&directory) { Ok(Some(directory)) } else { Err(Errno::INVAL) }
    }

    fn streams(&self, given: &[Given]) -> [RawFd; 3] {
        let raw = |fd: &Given| fd.as_raw_fd();
        match given {
            [terminal] => [raw(terminal); 3],
            [stdout, stderr] => [self.null.as_raw_fd(), raw(stdout), raw(stderr)],
            [stdin, stdout, stderr, ..] => [raw(stdin), raw(stdout), raw(stderr)],
            [] => [self.null.as_raw_fd(); 3],
        }
    }
}
