//! A process that is made ahead of its start, by a starter: in the cgroup where the next start is likely to be, or in that of a
//! start that waits for it. Starts that come meanwhile wait for their turn, since a child of this process takes more time of the
//! processors; but not for long.

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use telexec_spawn::{Starter, Step, exit};

use super::starts::Permitted;
use super::{Keeper, Source};
use crate::children::Child;
use crate::wire::Report;

/// How long a process waits for its start, and a starter for its use. Whoever looks at the process sees that it has run since it was
/// made; and both are in the cgroups and on the processors where this process was then.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a starter is used, for the same reason.
const MAX_AGE: Duration = Duration::from_secs(10);
/// How long a start waits for its process: far longer than that takes, unless it or the starter is held up. Then it does without, and
/// what is made after all may be taken for a process of the command, until it is killed.
const START_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the first start in the queue waits for its turn: somewhat longer than that usually takes.
const QUEUE_TIMEOUT: Duration = Duration::from_millis(5);
/// How many may wait.
const MAX_QUEUED: usize = 8;

/// The starter, and the one process that it has made, or is about to make.
pub(super) struct Ahead {
    starter: Starter,
    made: Made,
    /// Starts that wait for their turn, first come first served.
    queue: VecDeque<Permitted>,
    /// The first of them waits until then.
    queue_until: Instant,
    /// It has waited so long: none waits until the process that was in its way has left.
    is_held_up: bool,
    /// When the starter was made.
    born: Instant,
    /// When both are given up, unless a process is on its way to its program.
    until: Instant,
}

enum Made {
    Nothing,
    /// It has not said yet which process it is.
    Soon {
        cgroup: CString,
        directory: OwnedFd,
        then: Then,
    },
    /// It waits for what it becomes, as the child with this number, which has no id.
    Waiting {
        cgroup: CString,
        directory: OwnedFd,
        number: u64,
    },
    /// It is on its way to its program.
    Leaving {
        number: u64,
    },
    /// It was killed, and counts as a process of its cgroup until it is reaped: a start there waits for that.
    Ending {
        cgroup: CString,
        number: u64,
        next: Option<Box<Permitted>>,
    },
}

/// What is to become of a process that is made soon.
enum Then {
    Wait,
    Start(Box<Permitted>),
    End,
}

impl Keeper {
    /// Has a process made ahead of a start in this cgroup. Where that cannot be done, or one waits for a start that is yet to
    /// come, the start makes it, or says why not.
    pub(super) fn prepare(&mut self, cgroup: CString) {
        if self.ahead.is_none() {
            let Ok(starter) = Starter::new(&self.rlimits) else { return };
            if epoll::add(&self.epoll, &starter, Source::Starter.data(), epoll::EventFlags::IN).is_err() {
                return;
            }
            let born = Instant::now();
            self.ahead = Some(Ahead {
                starter,
                made: Made::Nothing,
                queue: VecDeque::new(),
                queue_until: born,
                is_held_up: false,
                born,
                until: born + IDLE_TIMEOUT,
            });
        }
        self.make(cgroup, Then::Wait);
    }

    /// Has the starter make a process; returns what was to become of it, if it does not.
    fn make(&mut self, cgroup: CString, then: Then) -> Option<Then> {
        if !matches!(&self.ahead, Some(Ahead { made: Made::Nothing, .. })) {
            return Some(then);
        }
        let Ok(directory) = self.cgroup(&cgroup) else { return Some(then) };
        // one in the cgroup of this process is made by this process: the starter may be in another one
        let Some(directory) = directory else { return Some(then) };
        let Some(Ahead { starter, made, until, .. }) = &mut self.ahead else { return Some(then) };
        if starter.make(&directory).is_err() {
            self.give_up_starter();
            return Some(then);
        }
        *until = Instant::now() + if matches!(then, Then::Wait) { IDLE_TIMEOUT } else { START_TIMEOUT };
        *made = Made::Soon { cgroup, directory, then };
        None
    }

    /// Has the process that the starter has made, or makes, become this: now, soon, or when it is its turn. Returns it if that cannot be.
    pub(super) fn start_ahead(&mut self, permitted: Permitted) -> Option<Permitted> {
        self.hear_starter();
        let cgroup = &permitted.start.cgroup;
        let Some(Ahead { made, until, queue, queue_until, is_held_up, .. }) = &mut self.ahead else {
            return Some(permitted);
        };
        match made {
            Made::Waiting { cgroup: its, number, .. } if its == cgroup => {
                let number = *number;
                self.start_waiting(number, permitted)
            }
            Made::Soon { cgroup: its, then: then @ Then::Wait, .. } if its == cgroup => {
                *until = Instant::now() + START_TIMEOUT;
                *then = Then::Start(Box::new(permitted));
                None
            }
            Made::Nothing => match self.make(cgroup.clone(), Then::Start(Box::new(permitted))) {
                Some(Then::Start(permitted)) => Some(*permitted),
                _ => None,
            },
            Made::Ending { cgroup: its, next: next @ None, .. } if its == cgroup => {
                *next = Some(Box::new(permitted));
                None
            }
            Made::Leaving { .. } | Made::Soon { then: Then::Start(_), .. }
                if queue.len() < MAX_QUEUED && !*is_held_up =>
            {
                if queue.is_empty() {
                    *queue_until = Instant::now() + QUEUE_TIMEOUT;
                }
                queue.push_back(permitted);
                None
            }
            Made::Waiting { .. } | Made::Soon { .. } | Made::Leaving { .. } | Made::Ending { .. } => Some(permitted),
        }
    }

    /// Has the process that waits become this. If that cannot be, it is ended, and another one is made in its place later. Returns the
    /// start if that must be done at once.
    fn start_waiting(&mut self, number: u64, permitted: Permitted) -> Option<Permitted> {
        let has_ended = !self.children.get(number).is_some_and(|child| runs(child.pid));
        let started = match self.ahead.take() {
            Some(mut ahead) => {
                let started = if has_ended { None } else { ahead.starter.start(&self.image(&permitted)) };
                self.ahead = Some(ahead);
                started
            }
            None => None,
        };
        let Some(report) = started else {
            self.end_waiting();
            if let Some(Ahead { made: Made::Ending { next, .. }, .. }) = &mut self.ahead {
                *next = Some(Box::new(permitted));
                return None;
            }
            return Some(permitted);
        };
        if let Some(Ahead { made, .. }) = &mut self.ahead
            && let Made::Waiting { directory, .. } = std::mem::replace(made, Made::Leaving { number })
            && let Some(child) = self.children.get(number)
        {
            child.cgroup = Some(directory);
        }
        self.has_begun(number, report, permitted);
        None
    }

    /// The starter may have something to say.
    pub(super) fn hear_starter(&mut self) {
        let Some(Ahead { starter, made, .. }) = &mut self.ahead else { return };
        let said = match starter.made() {
            Ok(pid) => pid,
            Err(Errno::AGAIN) => return,
            Err(_) => return self.give_up_starter(),
        };
        if !matches!(made, Made::Soon { .. }) {
            // it was answered before
            return;
        }
        let Made::Soon { cgroup, directory, then } = std::mem::replace(made, Made::Nothing) else { return };
        // If its end was seen before, it is no child any more. Without its cgroup until it is started: to kill that would kill
        // what was started there meanwhile.
        let child = said.and_then(|pid| Some(Child::new(pid, own_pidfd(pid)?, None)));
        if child.is_none() && said.is_some_and(runs) {
            // descriptors have run out
            *made = Made::Soon { cgroup, directory, then };
            return self.give_up_starter();
        }
        // it counts in its cgroup until then
        said.filter(|_| child.is_none()).into_iter().for_each(|pid| drop(exit::reap(pid)));
        let number = child.map(|child| self.children.add(child));
        if let (Some(number), Some(Ahead { made, until, .. })) = (number, &mut self.ahead) {
            *made = Made::Waiting { cgroup, directory, number };
            *until = Instant::now() + IDLE_TIMEOUT;
            self.watch_end(number);
        }
        match (then, number) {
            (Then::Wait, _) => {}
            (Then::Start(permitted), Some(number)) => {
                if let Some(permitted) = self.start_waiting(number, *permitted) {
                    self.start_now(permitted);
                }
            }
            (Then::Start(permitted), None) => self.start_now(*permitted),
            (Then::End, _) => self.end_waiting(),
        }
        // there is a turn if it has made none
        self.start_queued();
    }

    /// When the starter is to be given up, or the queue.
    pub(super) fn starter_until(&self) -> Option<Instant> {
        let Ahead { made, until, queue, queue_until, .. } = self.ahead.as_ref()?;
        let queue_until = (!queue.is_empty()).then_some(*queue_until);
        // a program may take as long as it likes to be loaded
        let until = (!matches!(made, Made::Leaving { .. })).then_some(*until);
        [until, queue_until].into_iter().flatten().min()
    }

    /// It is not used, or held up, or what waits for its turn does so no longer.
    pub(super) fn expire_starter(&mut self) {
        match &mut self.ahead {
            Some(Ahead { queue, queue_until, is_held_up, .. })
                if !queue.is_empty() && *queue_until <= Instant::now() =>
            {
                *is_held_up = true;
                std::mem::take(queue).into_iter().for_each(|permitted| self.start_now(permitted));
            }
            Some(Ahead { made: Made::Waiting { .. }, .. }) => self.end_waiting(),
            _ => self.give_up_starter(),
        }
    }

    /// This child has ended, and its report is still open: with what it was to become, which a starter that is stopped does not
    /// take from the socket.
    pub(super) fn end_starter_of(&self, number: u64) {
        if let Some(Ahead { starter, made: Made::Leaving { number: its }, .. }) = &self.ahead
            && *its == number
        {
            starter.kill();
        }
    }

    /// Whether this child has ended before it got what it was to become.
    pub(super) fn has_not_begun(&self, number: u64) -> bool {
        self.ahead.as_ref().is_some_and(|Ahead { starter, made, .. }| {
            matches!(made, Made::Leaving { number: its } if *its == number) && !starter.has_begun()
        })
    }

    /// Whether a start with this id waits for its process.
    pub(super) fn has_soon(&self, id: u64) -> bool {
        self.ahead.as_ref().is_some_and(|ahead| ahead.queue.iter().any(|permitted| permitted.start.id == id))
            || self.is_next(id)
    }

    /// Whether the process that is made soon, or once one has ended, is for the start with this id.
    fn is_next(&self, id: u64) -> bool {
        match self.ahead.as_ref().map(|ahead| &ahead.made) {
            Some(Made::Soon { then: Then::Start(permitted), .. } | Made::Ending { next: Some(permitted), .. }) => {
                permitted.start.id == id
            }
            _ => false,
        }
    }

    /// The start with this id is not wanted any more, if it waits for its process.
    pub(super) fn cancel_soon(&mut self, id: u64) {
        if self.has_soon(id) {
            if self.is_next(id) {
                self.end_waiting();
            }
            self.ahead.iter_mut().for_each(|ahead| ahead.queue.retain(|permitted| permitted.start.id != id));
            self.report(Report::NotStarted { id, step: Step::Clone, errno: Errno::CANCELED.raw_os_error() });
        }
    }

    /// What waits, or will, is not needed any more.
    pub(super) fn end_waiting(&mut self) {
        let Some(Ahead { starter, made, until, .. }) = &mut self.ahead else { return };
        match made {
            Made::Soon { then, .. } => {
                *then = Then::End;
                // one that is frozen may not get to saying which it is
                if let Some(pid) = starter.child().filter(|pid| runs(*pid)) {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            Made::Waiting { cgroup, number, .. } => {
                let (cgroup, number) = (std::mem::take(cgroup), *number);
                *made = Made::Ending { cgroup, number, next: None };
                *until = Instant::now() + START_TIMEOUT;
                self.children.get(number).into_iter().for_each(|child| child.kill());
            }
            Made::Ending { next, .. } => *next = None,
            Made::Nothing | Made::Leaving { .. } => {}
        }
    }

    /// This child runs its program, or has ended: the starter can make another one.
    pub(super) fn has_left(&mut self, number: u64) {
        let Some(Ahead { made, born, until, queue, is_held_up, .. }) = &mut self.ahead else { return };
        let (Made::Waiting { number: its, .. } | Made::Leaving { number: its } | Made::Ending { number: its, .. }) =
            made
        else {
            return;
        };
        if *its != number {
            return;
        }
        let (made, now) = (std::mem::replace(made, Made::Nothing), Instant::now());
        *until = now + IDLE_TIMEOUT;
        *is_held_up = false;
        let is_old = now >= *born + MAX_AGE;
        let is_unused = queue.is_empty() && matches!(made, Made::Ending { next: None, .. });
        if let Made::Ending { next: Some(permitted), .. } = made {
            self.start_now(*permitted);
        }
        if is_old || is_unused {
            self.give_up_starter();
        }
        self.start_queued();
    }

    /// Has the starter make a process for the one that is first in the queue.
    fn start_queued(&mut self) {
        while let Some(Ahead { made: Made::Nothing, queue, queue_until, .. }) = &mut self.ahead
            && let Some(permitted) = queue.pop_front()
        {
            *queue_until = Instant::now() + QUEUE_TIMEOUT;
            let cgroup = permitted.start.cgroup.clone();
            if let Some(Then::Start(permitted)) = self.make(cgroup, Then::Start(Box::new(permitted))) {
                self.start_now(*permitted);
            }
        }
    }

    /// Ends the starter, and what waits.
    pub(super) fn end_starter(&mut self) {
        self.end_waiting();
        if let Some(Ahead { starter, .. }) = self.ahead.take() {
            starter.end();
        }
    }

    /// Ends the starter, and what waits, without waiting for that; and drops starts that wait for it. There is another starter when
    /// it is needed.
    pub(super) fn drop_starter(&mut self) {
        self.end_waiting();
        if let Some(Ahead { starter, made, .. }) = self.ahead.take() {
            self.unwatch(&starter);
            if let Made::Leaving { number } = made
                && let Some(child) = self.children.get(number)
            {
                child.has_not_begun = !starter.has_begun();
            }
        }
    }

    /// The same, but starts that wait for it do without.
    pub(super) fn give_up_starter(&mut self) {
        let queue = self.ahead.as_mut().map(|ahead| std::mem::take(&mut ahead.queue));
        let next = self.ahead.as_mut().and_then(|ahead| match &mut ahead.made {
            Made::Soon { then: then @ Then::Start(_), .. } => match std::mem::replace(then, Then::End) {
                Then::Start(permitted) => Some(permitted),
                Then::Wait | Then::End => None,
            },
            Made::Ending { next, .. } => next.take(),
            Made::Nothing | Made::Soon { .. } | Made::Waiting { .. } | Made::Leaving { .. } => None,
        });
        self.drop_starter();
        next.into_iter()
            .map(|permitted| *permitted)
            .chain(queue.into_iter().flatten())
            .for_each(|permitted| self.start_now(permitted));
    }
}

/// The descriptor of a child of this process that has not ended.
fn own_pidfd(pid: Pid) -> Option<OwnedFd> {
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    runs(pid).then_some(pidfd)
}

/// Whether it is a child of this process that has not ended.
fn runs(pid: Pid) -> bool {
    exit::status(pid).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}
