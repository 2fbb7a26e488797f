//! The start of a process: whether it may be, and how it is made.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Instant;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use telexec_spawn::{CgroupEntry, Chown, Forked, Image, Step, can_be_born_in_a_cgroup, fork};

use super::processes::since_boot;
use super::{Keeper, Source};
use crate::children::{Child, is_cgroup};
use crate::given::{Given, close_dropped};
use crate::users::DYNAMIC;
use crate::wire::{Report, Start};

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

/// A start that may be, with all that it takes.
pub(super) struct Permitted {
    pub(super) start: Start,
    streams: Vec<Given>,
    executable: Option<Given>,
    chowns: Vec<Chown>,
    /// The file that is among these: it stays open until then.
    _chown: Option<Given>,
    /// Without a birthplace yet.
    cgroups: CgroupEntry,
    held: Vec<Given>,
}

impl Keeper {
    /// Makes the process, now or soon. What becomes of it is seen later.
    pub(super) fn start(&mut self, start: Start, descriptors: Vec<Given>) {
        let id = start.id;
        // this process was stopped in the meantime
        if start.start_by.is_some_and(|time| time < since_boot()) {
            return self.report_not_started(id, (Step::Clone, Errno::CANCELED));
        }
        match self.permitted(start, descriptors) {
            Ok(permitted) => {
                if let Some(permitted) = self.start_ahead(permitted) {
                    self.start_now(permitted);
                }
            }
            Err(error) => self.report_not_started(id, error),
        }
    }

    fn report_not_started(&mut self, id: u64, (step, errno): (Step, Errno)) {
        self.report(Report::NotStarted { id, step, errno: errno.raw_os_error() });
    }

    /// Whether it may be.
    fn permitted(&self, start: Start, descriptors: Vec<Given>) -> Result<Permitted, (Step, Errno)> {
        let Descriptors { streams, executable, chown, joins, held } =
            Descriptors::of(&start, descriptors).ok_or((Step::Clone, Errno::MFILE))?;
        let (user, is_private) = (start.credentials.as_ref(), start.private_directories.is_some());
        if !self.terms.users.as_ref().is_none_or(|users| users.allow(user, is_private, self.own.0)) {
            return Err((Step::Setuid, Errno::PERM));
        }
        // dynamic users have them, and nobody else
        if is_private && !user.is_some_and(|user| DYNAMIC.contains(&user.uid)) {
            return Err((Step::Unshare, Errno::PERM));
        }
        let mut chowns = Vec::new();
        if let Some(agent) = &self.agent.user {
            agent.permit(user, joins.len())?;
            let owner = user.map_or(self.own, |user| (user.uid, user.gid));
            chowns =
                agent.chowns(&streams, start.terminal, chown.as_ref(), owner).map_err(|errno| (Step::Setuid, errno))?;
        }
        let joins = joins.into_iter().filter_map(Given::into_inner).collect();
        let cgroups = CgroupEntry { birthplace: None, joins };
        Ok(Permitted { start, streams, executable, chowns, _chown: chown, cgroups, held })
    }

    /// Makes the process as a child with a copy of this memory.
    pub(super) fn start_now(&mut self, mut permitted: Permitted) {
        // it would have copies of these, for as long as it is held up
        close_dropped();
        match self.fork(&mut permitted) {
            Ok((number, report)) => self.has_begun(number, report, permitted),
            Err(error) => self.report_not_started(permitted.start.id, error),
        }
    }

    fn fork(&mut self, permitted: &mut Permitted) -> Result<(u64, OwnedFd), (Step, Errno)> {
        let cgroup = self.cgroup(&permitted.start.cgroup).map_err(|errno| (Step::Cgroup, errno))?;
        let entered = enter(&mut permitted.cgroups, cgroup).map_err(|errno| (Step::Cgroup, errno))?;
        let Forked { pid, pidfd, report } = fork(&self.image(permitted)).map_err(|errno| (Step::Clone, errno))?;
        let cgroup = permitted.cgroups.birthplace.take().or(entered);
        Ok((self.children.add(Child::new(pid, pidfd, cgroup)), report))
    }

    /// This child is on its way to its program.
    pub(super) fn has_begun(&mut self, number: u64, report: OwnedFd, permitted: Permitted) {
        let Permitted { start, held, .. } = permitted;
        if let Some(child) = self.children.name(number, start.id) {
            if let Some(log) = &mut self.start_log {
                log.start(child.pid, start.credentials.as_ref().map_or(self.own.0, |user| user.uid), &start.purpose);
            }
            child.starting = Some(report);
            child.survives = start.survives;
            child.held = held.into_iter().map(Some).collect();
        }
        if let Some(at) = start.time_limit.and_then(|limit| Instant::now().checked_add(limit)) {
            self.children.set_kill_at(number, at);
        }
        self.watch(number, |child| child.starting.as_ref(), Source::Start(number));
    }

    /// What it becomes.
    pub(super) fn image<'a>(&'a self, permitted: &'a Permitted) -> Image<'a> {
        let Permitted { start, streams, executable, chowns, cgroups, .. } = permitted;
        let is_private = start.private_directories.is_some();
        Image {
            candidates: &start.candidates,
            executable: executable.as_ref().map(AsRawFd::as_raw_fd),
            argv: &start.argv,
            environment: &start.environment,
            working_directory: &start.working_directory,
            streams: self.streams(streams),
            terminal: start.terminal,
            cgroups,
            chowns,
            rlimits: &self.rlimits,
            credentials: start.credentials.as_ref(),
            private_directories: start.private_directories,
            no_new_privileges: is_private || start.no_new_privileges || self.terms.no_new_privileges,
            fault: None,
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
