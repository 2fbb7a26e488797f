//! The loop: what happens, and what is done about it.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, geteuid, getrlimit, set_dumpable_behavior, setrlimit,
};
use telexec_spawn::{CgroupEntry, Forked, Image, Step, exit, fork, rlimits};

use crate::agent::{Agent, Next, Past};
use crate::channel::{ReceiveError, Received};
use crate::children::{Child, Children, is_cgroup, listed};
use crate::signals::Signals;
use crate::users::Users;
use crate::wire::{Report, Request, Start};
use crate::{init, log, notify};

/// How many requests are answered before others have their turn.
const REQUESTS_AT_ONCE: usize = 32;
const EVENTS_AT_ONCE: usize = 64;
/// Until an end is looked for again that a debugger has not seen.
const RETRY_DELAY: Duration = Duration::from_millis(10);
/// The same, where its end was told as unknown.
const LONG_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Until the service manager is told again.
const SAY_DELAY: Duration = Duration::from_millis(100);
/// For an agent to end that has closed the channel.
const DEAF_TIMEOUT: Duration = Duration::from_secs(5);
/// Reports that an agent does not take.
const MAX_BACKLOG: usize = 8192;
/// Until orphans are searched for that ended children hide.
const SEARCH_DELAY: Duration = Duration::from_millis(200);

/// Starts the agent with this command line, and does what it asks for, as these users only (`None`: as anyone), until it has
/// ended and is not to be started again.
/// Returns the code to exit with. Takes over the process's signals: for a process that does nothing else.
///
/// # Errors
/// The agent cannot be started, or the system lacks what this needs.
pub fn keep(command: &[OsString], users: Option<Users>) -> io::Result<u8> {
    let limit = getrlimit(Resource::Nofile);
    let files = Rlimit { current: limit.maximum, ..limit };
    // what it was given may be secret, and its agent's; execve(2) undoes this for commands
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let kept = Keeper::new(command, users).and_then(|mut keeper| {
        keeper.start_agent()?;
        // not before: the agent is to have what this process was given
        let _ = setrlimit(Resource::Nofile, files);
        let code = keeper.run();
        keeper.children.kill_bound();
        code
    });
    if let Err(error) = &kept {
        // before the machine is switched off
        log::line(&error.to_string());
    }
    init::end_if_init();
    kept
}

/// If the agent is gone, nobody wants to know.
fn may_work_later(errno: Errno) -> bool {
    !matches!(errno, Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)
}

struct Keeper {
    epoll: OwnedFd,
    signals: Signals,
    null: OwnedFd,
    rlimits: [telexec_spawn::rlimits::Limit; rlimits::KINDS],
    agent: Agent,
    users: Option<Users>,
    /// The user of this process.
    own: u32,
    children: Children,
    /// Reports for which the agent had no room.
    backlog: VecDeque<Report>,
    /// Children that have ended, but not for their debuggers.
    unsettled: BTreeSet<u64>,
    retry_at: Option<Instant>,
    search_at: Option<Instant>,
    /// What the service manager had no room for.
    unsaid: Option<&'static str>,
    say_at: Option<Instant>,
    /// The agent has closed the channel: it is ended then, if it has not ended.
    deaf_until: Option<Instant>,
    /// It was asked to end, by a signal.
    was_asked: bool,
    code: Option<u8>,
}

/// Where an event comes from.
#[derive(Clone, Copy)]
enum Source {
    Signals,
    Channel,
    Agent,
    Start(u64),
    End(u64),
}

impl Source {
    fn data(self) -> epoll::EventData {
        let (kind, number) = match self {
            Self::Signals => (0, 0),
            Self::Channel => (1, 0),
            Self::Agent => (2, 0),
            Self::Start(number) => (3, number),
            Self::End(number) => (4, number),
        };
        epoll::EventData::new_u64(number << 3 | kind)
    }

    fn of(data: epoll::EventData) -> Option<Self> {
        let (kind, number) = (data.u64() & 7, data.u64() >> 3);
        match kind {
            0 => Some(Self::Signals),
            1 => Some(Self::Channel),
            2 => Some(Self::Agent),
            3 => Some(Self::Start(number)),
            4 => Some(Self::End(number)),
            _ => None,
        }
    }
}

impl Keeper {
    fn new(command: &[OsString], users: Option<Users>) -> io::Result<Self> {
        exit::adopt_orphans()?;
        let null = std::fs::File::open("/dev/null")?.into();
        let (epoll, signals) = (epoll::create(epoll::CreateFlags::CLOEXEC)?, Signals::new()?);
        epoll::add(&epoll, &signals, Source::Signals.data(), epoll::EventFlags::IN)?;
        Ok(Self {
            epoll,
            signals,
            null,
            rlimits: rlimits::defaults(),
            agent: Agent::new(command),
            users,
            own: geteuid().as_raw(),
            children: Children::default(),
            backlog: VecDeque::new(),
            unsettled: BTreeSet::new(),
            retry_at: None,
            search_at: None,
            unsaid: None,
            say_at: None,
            deaf_until: None,
            was_asked: false,
            code: None,
        })
    }

    fn start_agent(&mut self) -> io::Result<()> {
        self.agent.start()?;
        self.deaf_until = None;
        let Some(running) = &self.agent.running else { return Ok(()) };
        let watched = epoll::add(&self.epoll, &running.channel, Source::Channel.data(), epoll::EventFlags::IN)
            .and_then(|()| epoll::add(&self.epoll, &running.pidfd, Source::Agent.data(), epoll::EventFlags::IN));
        Ok(watched.inspect_err(|_| self.agent.abandon())?)
    }

    fn run(&mut self) -> io::Result<u8> {
        let mut events = Vec::with_capacity(EVENTS_AT_ONCE);
        loop {
            events.clear();
            let waited = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), self.timeout().as_ref());
            match waited {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                // the fields are not aligned
                let data = event.data;
                match Source::of(data) {
                    Some(Source::Signals) => self.take_signals(),
                    Some(Source::Channel) => self.answer(),
                    Some(Source::Agent) => self.look_at_agent(),
                    Some(Source::Start(number)) => self.look_at_start(number),
                    Some(Source::End(number)) => self.look_at_end(number),
                    None => {}
                }
            }
            self.do_what_is_due();
            if let Some(code) = self.code {
                return Ok(code);
            }
        }
    }

    /// Until something is due; `None`: nothing is.
    fn timeout(&self) -> Option<Timespec> {
        let due = [self.retry_at, self.search_at, self.say_at, self.deaf_until, self.agent.again_at];
        let due = due.into_iter().flatten().min()?;
        Timespec::try_from(due.saturating_duration_since(Instant::now())).ok()
    }

    fn do_what_is_due(&mut self) {
        let now = Instant::now();
        let is_due = |at: &mut Option<Instant>| at.take_if(|at| *at <= now).is_some();
        if is_due(&mut self.retry_at) {
            std::mem::take(&mut self.unsettled).into_iter().for_each(|number| self.look_at_end(number));
        }
        if is_due(&mut self.search_at) {
            self.reap_hidden_strangers();
        }
        if is_due(&mut self.say_at)
            && let Some(state) = self.unsaid.take()
        {
            self.say(state);
        }
        if is_due(&mut self.deaf_until) {
            self.reject();
        }
        if is_due(&mut self.agent.again_at)
            && let Err(error) = self.start_agent()
        {
            log::line(&format!("the agent cannot be started again: {error}"));
            self.agent.failed();
        }
    }

    fn take_signals(&mut self) {
        while let Some(signal) = self.signals.next() {
            match signal {
                libc::SIGCHLD => self.reap_strangers(),
                libc::SIGHUP => drop(self.agent.signal(Signal::HUP)),
                signal => {
                    let signal = match (self.was_asked, signal) {
                        // it was asked before, and has not ended
                        (true, _) => Signal::KILL,
                        (false, libc::SIGINT) => Signal::INT,
                        (false, _) => Signal::TERM,
                    };
                    self.was_asked = true;
                    self.agent.stops();
                    if !self.agent.signal(signal) {
                        self.code = Some(0);
                    }
                }
            }
        }
    }

    fn look_at_agent(&mut self) {
        let Some(Past { next, status, pidfd, channel }) = self.agent.ended() else { return };
        self.unwatch(&pidfd);
        self.unwatch(&channel);
        self.backlog.clear();
        match next {
            Next::End(code) => self.code = Some(code),
            Next::Again => {
                log::line(&format!(
                    "the agent has ended ({status}): what was bound to it is ended, and it is started again"
                ));
                for number in self.children.lose_agent() {
                    self.reap(number);
                }
            }
        }
    }

    /// Does what the agent asks for.
    fn answer(&mut self) {
        self.send_backlog();
        for _ in 0..REQUESTS_AT_ONCE {
            if self.backlog.len() > MAX_BACKLOG {
                return self.await_room();
            }
            let Some(running) = &self.agent.running else { return };
            match running.channel.next_request() {
                Ok(Received::Message(request, descriptors)) => self.take(request, descriptors),
                // its end says more, and is awaited first
                Ok(Received::End) => {
                    self.unwatch(&running.channel);
                    self.deaf_until = Some(Instant::now() + DEAF_TIMEOUT);
                    return;
                }
                Err(ReceiveError::Io(_)) => return,
                Err(ReceiveError::Malformed) => return self.reject(),
            }
        }
    }

    /// The agent does not hold to the protocol: it has a fault, or another one speaks for it.
    fn reject(&mut self) {
        log::line("the agent has asked for what cannot be asked for: it is ended");
        self.agent.signal(Signal::KILL);
    }

    fn take(&mut self, request: Request, descriptors: Vec<OwnedFd>) {
        match request {
            Request::Ready => {
                self.agent.serves();
                self.say("READY=1");
            }
            Request::Stopping => {
                self.agent.stops();
                self.say("STOPPING=1");
            }
            Request::Start(start) if self.children.has_id(start.id) => self.reject(),
            Request::Start(start) => {
                let id = start.id;
                if let Err((step, errno)) = self.start(*start, descriptors) {
                    self.report(Report::NotStarted { id, step, errno: errno.raw_os_error() });
                }
            }
            Request::Outlives(id) => {
                if let Some(child) = self.child(id) {
                    child.outlives = true;
                }
            }
            Request::Cancel(id) => {
                if let Some(child) = self.child(id).filter(|child| child.starting.is_some()) {
                    child.kill();
                }
            }
            Request::Release(id) => {
                let Some(number) = self.children.number(id) else { return };
                let Some(child) = self.children.get(number) else { return };
                child.is_released = true;
                if child.exit.is_some() {
                    self.reap(number);
                }
            }
            Request::InFile { .. } => self.reject(),
        }
    }

    fn child(&mut self, id: u64) -> Option<&mut Child> {
        let number = self.children.number(id)?;
        self.children.get(number)
    }

    /// Makes the process. What becomes of it is seen later.
    fn start(&mut self, start: Start, descriptors: Vec<OwnedFd>) -> Result<(), (Step, Errno)> {
        if descriptors.len() != start.descriptors() {
            // the kernel leaves out those for which there is no room
            return Err((Step::Clone, Errno::MFILE));
        }
        if !self.users.as_ref().is_none_or(|users| users.allow(start.credentials.as_ref(), self.own)) {
            return Err((Step::Setuid, Errno::PERM));
        }
        let mut descriptors = descriptors.into_iter();
        let streams: Vec<_> = descriptors.by_ref().take(start.streams()).collect();
        let birthplace = if start.birthplace { descriptors.next() } else { None };
        if birthplace.as_ref().is_some_and(|birthplace| !is_cgroup(birthplace)) {
            return Err((Step::Cgroup, Errno::INVAL));
        }
        let executable = if start.executable { descriptors.next() } else { None };
        let cgroups = CgroupEntry { birthplace, joins: descriptors.collect() };
        let image = Image {
            candidates: &start.candidates,
            executable: executable.as_ref().map(AsRawFd::as_raw_fd),
            argv: &start.argv,
            environment: &start.environment,
            working_directory: &start.working_directory,
            streams: self.streams(&streams),
            terminal: start.terminal,
            cgroups: &cgroups,
            rlimits: &self.rlimits,
            credentials: start.credentials.as_ref(),
            fault: None,
        };
        let Forked { pid, pidfd, report } = fork(&image).map_err(|errno| (Step::Clone, errno))?;
        let child = Child {
            id: Some(start.id),
            pid,
            pidfd,
            starting: Some(report),
            failure: None,
            looks: 0,
            exit: None,
            is_released: false,
            outlives: false,
            cgroup: cgroups.birthplace,
        };
        let number = self.children.add(child);
        self.watch(number, |child| child.starting.as_ref(), Source::Start(number));
        Ok(())
    }

    /// Waits for an event of a child. What cannot be waited for is killed, and looked at until it is gone.
    fn watch(&mut self, number: u64, file: impl Fn(&Child) -> Option<&OwnedFd>, source: Source) {
        let Some(child) = self.children.get(number) else { return };
        let Some(file) = file(child) else { return };
        if epoll::add(&self.epoll, file, source.data(), epoll::EventFlags::IN).is_err() {
            child.kill();
            log::line("a process was killed: its end cannot be waited for, for want of memory or of epoll watches");
            self.look_again(number);
        }
    }

    /// Not left to its close: a child that is held up on its way to its program has a copy, for which events would go on.
    fn unwatch(&self, file: impl AsFd) {
        let _ = epoll::delete(&self.epoll, file);
    }

    fn look_again(&mut self, number: u64) {
        let is_known = self.children.get(number).is_some_and(|child| child.exit.is_some());
        // then a debugger has it, and nobody waits for it
        let at = Instant::now() + if is_known { LONG_RETRY_DELAY } else { RETRY_DELAY };
        self.unsettled.insert(number);
        self.retry_at = Some(self.retry_at.map_or(at, |earlier| earlier.min(at)));
    }

    fn say(&mut self, state: &'static str) {
        if !notify::say(state) {
            self.unsaid = Some(state);
            self.say_at = Some(Instant::now() + SAY_DELAY);
        }
    }

    /// It runs its program, or never will.
    fn look_at_start(&mut self, number: u64) {
        let Some(child) = self.children.get(number) else { return };
        let Some(report) = &child.starting else { return };
        let Some(outcome) = Forked::outcome(report) else { return };
        let _ = epoll::delete(&self.epoll, report);
        child.starting = None;
        match outcome {
            Ok(()) => {
                let pid = child.pid.as_raw_nonzero().get();
                if self.own != 0 {
                    // until it ran its program, its files in /proc were root's: it could not do that itself
                    let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), "0");
                }
                let started = child.id.map(|id| Report::Started { id, pid });
                started.into_iter().for_each(|started| self.report(started));
            }
            Err((step, errno)) => child.failure = Some((step, errno.raw_os_error())),
        }
        self.watch(number, |child| Some(&child.pidfd), Source::End(number));
    }

    /// It has ended, or may have.
    fn look_at_end(&mut self, number: u64) {
        self.look_at_start(number);
        let Some(child) = self.children.get(number) else { return };
        if child.starting.is_some() {
            return self.look_again(number);
        }
        if child.exit.is_none() {
            // asked again where a debugger holds it up
            let _ = epoll::delete(&self.epoll, &child.pidfd);
            match child.look() {
                Some(exit) => child.exit = Some(exit),
                None => return self.look_again(number),
            }
        }
        match (child.id, child.exit, child.failure, child.is_released) {
            (Some(id), Some(exit), None, false) => self.report(Report::Exited { id, exit }),
            _ => self.reap(number),
        }
    }

    /// Takes a child that has ended from the process table. One that could not be started is reported only then.
    fn reap(&mut self, number: u64) {
        let Some(child) = self.children.get(number) else { return };
        if !exit::reap(child.pid).unwrap_or(true) {
            child.is_released = true;
            return self.look_again(number);
        }
        let removed = self.children.remove(number);
        if let Some(Child { id: Some(id), failure: Some((step, errno)), .. }) = removed {
            self.report(Report::NotStarted { id, step, errno });
        }
    }

    fn report(&mut self, report: Report) {
        let Some(running) = &self.agent.running else { return };
        if !self.backlog.is_empty() {
            return self.backlog.push_back(report);
        }
        if running.channel.report(&report).is_err_and(may_work_later) {
            self.backlog.push_back(report);
            self.await_room();
        }
    }

    fn send_backlog(&mut self) {
        while let (Some(report), Some(running)) = (self.backlog.front(), &self.agent.running) {
            if running.channel.report(report).is_err_and(may_work_later) {
                return self.await_room();
            }
            self.backlog.pop_front();
            if self.backlog.is_empty() {
                self.await_room();
            }
        }
    }

    /// For what is in the backlog; with too much of it nothing is read that would lead to more.
    fn await_room(&self) {
        let Some(running) = &self.agent.running else { return };
        let events = match self.backlog.len() {
            0 => epoll::EventFlags::IN,
            1..=MAX_BACKLOG => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            _ => epoll::EventFlags::OUT,
        };
        let _ = epoll::modify(&self.epoll, &running.channel, Source::Channel.data(), events);
    }

    /// Orphans that were given to this process and have ended.
    fn reap_strangers(&mut self) {
        while let Ok(Some(pid)) = exit::any_ended() {
            if self.children.has_pid(pid) || self.agent.pid() == Some(pid) {
                // it hides others
                self.search_at.get_or_insert(Instant::now() + SEARCH_DELAY);
                return;
            }
            let _ = exit::reap(pid);
        }
    }

    fn reap_hidden_strangers(&mut self) {
        let agent = self.agent.pid();
        for pid in listed().unwrap_or_default() {
            if !self.children.has_pid(pid) && agent != Some(pid) {
                let _ = exit::reap(pid);
            }
        }
    }

    fn streams(&self, given: &[OwnedFd]) -> [RawFd; 3] {
        let raw = |fd: &OwnedFd| fd.as_raw_fd();
        match given {
            [terminal] => [raw(terminal); 3],
            [stdout, stderr] => [raw(&self.null), raw(stdout), raw(stderr)],
            [stdin, stdout, stderr, ..] => [raw(stdin), raw(stdout), raw(stderr)],
            [] => [raw(&self.null); 3],
        }
    }
}
