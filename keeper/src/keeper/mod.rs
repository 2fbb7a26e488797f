//! The loop: what happens, and what is done about it. `agents` is one agent after the other, `dying` the end of one, `processes` what was
//! started, `starts` and `ahead` how that is made, `reports` what the agent is told of it, `reexec` the keeper's own upgrade.

mod agents;
mod ahead;
mod dying;
mod processes;
mod reexec;
mod reports;
mod source;
mod starts;

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, getegid, geteuid, getrlimit, set_dumpable_behavior, setrlimit,
};
use telexec_spawn::{exit, rlimits};

use self::ahead::Ahead;
use self::dying::Dying;
use self::reports::MAX_BACKLOG;
use self::source::Source;
use crate::agent::Agent;
use crate::agent_user::{AgentUser, leaders, pid_of};
use crate::channel::{ReceiveError, Received};
use crate::children::{Child, Children};
use crate::given::{Given, close_by_thread, close_dropped};
use crate::paused::Paused;
use crate::signals::Signals;
use crate::syslog::StartLog;
use crate::users::Users;
use crate::wire::{Report, Request};
use crate::{init, log, notify, signals};

/// How many requests are answered before others have their turn.
const REQUESTS_AT_ONCE: usize = 32;
const EVENTS_AT_ONCE: usize = 64;
/// Until the service manager is told again.
const SAY_DELAY: Duration = Duration::from_millis(100);
/// Until something is tried again for which the system lacks memory, processes or descriptors.
const RESOURCE_DELAY: Duration = Duration::from_secs(1);
/// From a request to end until another one kills an agent that has not.
const REPEAT_DELAY: Duration = Duration::from_secs(2);
/// From an agent's handing over until it is looked whether it is dying.
const HAND_OVER_DELAY: Duration = Duration::from_millis(200);
/// For an agent to end that has closed the channel.
const DEAF_TIMEOUT: Duration = Duration::from_secs(5);

/// What the agent may ask for, and what is logged of it.
#[derive(Debug, Default)]
pub struct Terms {
    /// As whom they run; `None`: as anyone.
    pub users: Option<Users>,
    /// Nothing that they execute gives them privileges.
    pub no_new_privileges: bool,
    /// A Unix socket, to which each start is logged.
    pub syslog: Option<OsString>,
}

/// Starts the agent with this command line, and does what it asks for, within these limits, until it has
/// ended and is not to be started again.
/// `agent_user`: as whom it runs (`None`: as this process). `state`: the descriptor with what the program before this one has
/// left. Returns the code to exit with. Takes over the process's signals: for a process that does nothing else.
///
/// # Errors
/// The agent cannot be started, or the system lacks what this needs.
pub fn keep(command: &[OsString], terms: Terms, agent_user: Option<AgentUser>, state: Option<RawFd>) -> io::Result<u8> {
    let limit = getrlimit(Resource::Nofile);
    let files = Rlimit { current: limit.maximum, ..limit };
    // what it was given may be secret, and its agent's; execve(2) undoes this for commands
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let kept = Keeper::new(command, terms, agent_user, state.is_some()).and_then(|mut keeper| {
        match state {
            Some(state) => keeper.resume(state)?,
            None => {
                keeper.agent.spare_keeper();
                keeper.start_agent()?;
            }
        }
        // a SIGCHLD of before this program is gone, since the default action of that is to ignore it
        keeper.reap_strangers();
        // not before: the agent is to have what this process was given
        let _ = setrlimit(Resource::Nofile, files);
        let code = keeper.run();
        keeper.children.kill_bound();
        keeper.end_starter();
        keeper.agent.user.iter().for_each(AgentUser::remove_cgroups);
        code
    });
    if let Err(error) = &kept {
        // before the machine is switched off
        log::line(&error.to_string());
    }
    init::end_if_init();
    kept
}

struct Keeper {
    epoll: OwnedFd,
    signals: Signals,
    null: OwnedFd,
    rlimits: [telexec_spawn::rlimits::Limit; rlimits::KINDS],
    agent: Agent,
    terms: Terms,
    start_log: Option<StartLog>,
    /// The user and the group of this process.
    own: (u32, u32),
    children: Children,
    /// What is made ahead of the next start; `None`: nothing was yet.
    ahead: Option<Ahead>,
    /// Reports for which the agent had no room.
    backlog: VecDeque<Report>,
    /// Children that have ended, but not for their debuggers.
    unsettled: BTreeSet<u64>,
    retry_at: Option<Instant>,
    search_at: Option<Instant>,
    /// Until then no thread closes what the agent has passed.
    closer_at: Option<Instant>,
    /// What the service manager had no room for.
    unsaid: Option<&'static str>,
    say_at: Option<Instant>,
    /// The agent has closed the channel: it is ended then, if it has not ended.
    deaf_until: Option<Instant>,
    /// It is looked then whether the agent is dying.
    look_at: Option<Instant>,
    /// The agent is dying.
    dying: Option<Dying>,
    /// What is stopped for that.
    paused: Option<Paused>,
    /// The agent is ended then, if it does not serve.
    ready_by: Option<Instant>,
    /// The keeper executes its program on disk before the next agent starts; given up after this.
    reexec_by: Option<Instant>,
    /// When it was first asked to end, by a signal.
    asked_at: Option<Instant>,
    /// It was asked again, and has killed the agent.
    is_urgent: bool,
    /// An agent was started to end what one has left that was ending it.
    has_retried: bool,
    /// Locked while this process lives: others take a directory that is not locked for a dead keeper's.
    _lock: Option<OwnedFd>,
    /// The agent is to end as soon as it serves.
    stop_when_ready: Option<Signal>,
    code: Option<u8>,
}

/// Without these there is no loop.
struct Basics {
    epoll: OwnedFd,
    signals: Signals,
    null: OwnedFd,
}

impl Basics {
    fn new() -> io::Result<Self> {
        exit::adopt_orphans()?;
        let null = std::fs::File::open("/dev/null")?.into();
        let (epoll, signals) = (epoll::create(epoll::CreateFlags::CLOEXEC)?, Signals::new()?);
        epoll::add(&epoll, &signals, Source::Signals.data(), epoll::EventFlags::IN)?;
        Ok(Self { epoll, signals, null })
    }
}

impl Keeper {
    /// `continues`: it is waited for what the system lacks, since an error would end what runs.
    fn new(command: &[OsString], terms: Terms, agent_user: Option<AgentUser>, continues: bool) -> io::Result<Self> {
        let Basics { epoll, signals, null } = loop {
            match Basics::new() {
                Ok(basics) => break basics,
                Err(error) if continues => {
                    log::line(&format!("waiting for resources of the system: {error}"));
                    std::thread::sleep(RESOURCE_DELAY);
                }
                Err(error) => return Err(error),
            }
        };
        let lock = agent_user.as_ref().and_then(|user| user.lock().ok());
        // after the signals, which it takes none of
        let closer_at = close_by_thread().is_err().then(Instant::now);
        Ok(Self {
            epoll,
            signals,
            null,
            rlimits: rlimits::defaults(),
            agent: Agent::new(command, agent_user),
            start_log: terms.syslog.as_deref().and_then(|path| StartLog::new(path, 0)),
            terms,
            own: (geteuid().as_raw(), getegid().as_raw()),
            children: Children::default(),
            ahead: None,
            backlog: VecDeque::new(),
            unsettled: BTreeSet::new(),
            retry_at: None,
            search_at: None,
            closer_at,
            unsaid: None,
            say_at: None,
            deaf_until: None,
            look_at: None,
            dying: None,
            paused: None,
            ready_by: None,
            reexec_by: None,
            asked_at: None,
            is_urgent: false,
            has_retried: false,
            _lock: lock,
            stop_when_ready: None,
            code: None,
        })
    }

    fn run(&mut self) -> io::Result<u8> {
        let mut events = Vec::with_capacity(EVENTS_AT_ONCE);
        loop {
            close_dropped();
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
                    Some(Source::Starter) => self.hear_starter(),
                    None => {}
                }
                // what is asked for now changes nothing
                if self.code.is_some() {
                    break;
                }
            }
            // an agent that hands over is followed once all is closed
            close_dropped();
            self.do_what_is_due();
            if let Some(code) = self.code {
                return Ok(code);
            }
        }
    }

    /// Until something is due; `None`: nothing is.
    fn timeout(&self) -> Option<Timespec> {
        let due = [
            self.retry_at,
            self.search_at,
            self.closer_at,
            self.say_at,
            self.deaf_until,
            self.look_at.filter(|_| self.children.has_any()),
            self.dying.map(|dying| dying.at),
            self.ready_by,
            self.starter_until(),
            self.children.next_kill(),
            self.agent.again_at,
        ];
        let due = due.into_iter().flatten().min()?;
        Timespec::try_from(due.saturating_duration_since(Instant::now())).ok()
    }

    fn do_what_is_due(&mut self) {
        if self.code.is_some() {
            return;
        }
        let now = Instant::now();
        let is_due = |at: &mut Option<Instant>| at.take_if(|at| *at <= now).is_some();
        if is_due(&mut self.retry_at) {
            std::mem::take(&mut self.unsettled).into_iter().for_each(|number| self.look_at_end(number));
        }
        for pid in self.children.kill_overdue(now) {
            log::line(&format!("killed process {} past its timeout: the agent did not end it", pid.as_raw_nonzero()));
        }
        if is_due(&mut self.search_at) {
            self.reap_hidden_strangers();
        }
        if is_due(&mut self.closer_at) && close_by_thread().is_err() {
            self.closer_at = Some(Instant::now() + RESOURCE_DELAY);
        }
        if is_due(&mut self.say_at)
            && let Some(state) = self.unsaid.take()
        {
            self.say(state);
        }
        if is_due(&mut self.deaf_until) {
            self.reject();
        }
        if is_due(&mut self.look_at) {
            self.look_whether_dying();
        }
        if let Some(dying) = self.dying.take_if(|dying| dying.at <= now) {
            self.help_dying(dying);
        }
        if is_due(&mut self.ready_by) {
            self.replace_agent();
        }
        if self.starter_until().is_some_and(|until| until <= now) {
            self.expire_starter();
        }
        if is_due(&mut self.agent.again_at)
            && !self.awaits_reexec()
            && let Err(error) = self.start_agent()
        {
            log::line(&format!("cannot start another agent: {error}"));
            self.agent.failed();
        }
    }

    fn take_signals(&mut self) {
        while let Some(signal) = self.signals.next() {
            match signal {
                libc::SIGCHLD => self.reap_strangers(),
                // before it serves they would end it
                libc::SIGHUP if self.agent.is_ready() => drop(self.agent.signal(Signal::HUP)),
                libc::SIGUSR2 if self.agent.is_ready() => drop(self.agent.signal(Signal::USR2)),
                libc::SIGHUP | libc::SIGUSR2 => {}
                signal => {
                    // it was asked before, and has not ended; timeout(1), for one, asks twice at once
                    let is_again = self.asked_at.is_some_and(|first| first.elapsed() >= REPEAT_DELAY);
                    let signal = match (is_again, signal) {
                        (true, _) => Signal::KILL,
                        (false, libc::SIGINT) => Signal::INT,
                        (false, _) => Signal::TERM,
                    };
                    self.stop(signal);
                }
            }
        }
    }

    /// Was asked to end.
    fn stop(&mut self, signal: Signal) {
        self.asked_at.get_or_insert_with(Instant::now);
        self.agent.stops();
        if signal == Signal::KILL {
            self.is_urgent = true;
            log::line("asked to end again: killing the agent; commands in the background run on untracked");
        } else if self.agent.running.is_some() && !self.agent.is_ready() {
            // until then it may ignore it
            self.stop_when_ready = Some(signal);
            if !self.children.to_hand_over().is_empty() {
                // what is handed to an agent on its way is to be ended in order
                return;
            }
        }
        if !self.agent.signal(signal) {
            self.start_to_stop(signal);
        }
    }

    /// Does what the agent asks for.
    fn answer(&mut self) {
        self.send_backlog();
        for _ in 0..REQUESTS_AT_ONCE {
            if self.backlog.len() > MAX_BACKLOG {
                return self.await_room();
            }
            if self.holds_too_much() {
                return self.reject();
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

    /// What an agent that has ended had asked for before. Nobody waits for what it would start.
    fn answer_last(&mut self) {
        for _ in 0..MAX_BACKLOG {
            let Some(running) = &self.agent.running else { return };
            match running.channel.next_request() {
                Ok(Received::Message(Request::Start(_) | Request::Prepare(_), _)) => {}
                Ok(Received::Message(request, descriptors)) => self.take(request, descriptors),
                Ok(Received::End) | Err(_) => return,
            }
        }
    }

    /// The agent does not hold to the protocol: it has a fault, or another one speaks for it.
    fn reject(&mut self) {
        log::line("the agent violated the protocol: killing it");
        self.agent.signal(Signal::KILL);
    }

    fn take(&mut self, request: Request, descriptors: Vec<Given>) {
        match request {
            Request::Ready => {
                self.agent.serves();
                self.ready_by = None;
                if let Some(signal) = self.stop_when_ready.take() {
                    self.agent.signal(signal);
                }
                self.say("READY=1");
            }
            // one that is not root does not end its keeper
            Request::Stopping if self.agent.user.is_some() && self.asked_at.is_none() => {}
            Request::Stopping => {
                self.agent.stops();
                self.say("STOPPING=1");
            }
            Request::Start(start) if self.children.has_id(start.id) || self.has_soon(start.id) => self.reject(),
            Request::Start(start) => self.start(*start, descriptors),
            Request::Prepare(cgroup) => self.prepare(cgroup),
            Request::Outlives(id) => {
                if let Some(child) = self.child(id) {
                    child.outlives = true;
                }
            }
            Request::Cancel(id) => {
                self.cancel_soon(id);
                if let Some(child) = self.child(id).filter(|child| child.starting.is_some()) {
                    child.kill();
                }
            }
            Request::HandsOver => {
                self.agent.hands_over();
                self.look_at = self.dying.is_none().then(|| Instant::now() + HAND_OVER_DELAY);
                self.deaf_until = Some(Instant::now() + DEAF_TIMEOUT);
            }
            Request::Close { id, number } => self.children.forget(id, Some(number)),
            Request::Forget(id) => self.children.forget(id, None),
            Request::Release(id) | Request::Reap(id) => {
                let holds_all = matches!(request, Request::Reap(_));
                if !holds_all {
                    self.children.hold_first(id);
                }
                let Some(number) = self.children.number(id) else { return };
                let Some(child) = self.children.get(number) else { return };
                child.is_released = true;
                child.holds_all = holds_all;
                if child.exit.is_some() {
                    self.reap(number);
                }
            }
            Request::Signal(signal) => self.signal(signal, descriptors.first()),
            Request::InFile { .. } => self.reject(),
        }
    }

    /// For an agent that may not do so itself.
    fn signal(&self, signal: i32, pidfd: Option<&Given>) {
        let user = self.agent.user.as_ref();
        if let (Some(user), Some(pidfd)) = (user, pidfd)
            && let Some(pid) = pid_of(pidfd)
            && (user.has_in_execution(&pid) || self.is_led_by_child(&pid))
        {
            signals::send(pidfd, signal);
        }
    }

    /// Whether a process is in the session or the process group of a child, which may have left its cgroup.
    fn is_led_by_child(&self, pid: &str) -> bool {
        leaders(pid).into_iter().flatten().any(|leader| self.children.has_pid(leader))
    }

    fn child(&mut self, id: u64) -> Option<&mut Child> {
        let number = self.children.number(id)?;
        self.children.get(number)
    }

    fn say(&mut self, state: &'static str) {
        if !notify::say(state) {
            self.unsaid = Some(state);
            self.say_at = Some(Instant::now() + SAY_DELAY);
        }
    }
}
