//! What the agent is told, as it has room for it.

use rustix::event::epoll;
use rustix::io::Errno;

use super::{Keeper, Source};
use crate::agent::Running;
use crate::children::{Children, Held};
use crate::wire::Report;

/// Reports that an agent does not take.
pub(super) const MAX_BACKLOG: usize = 8192;

/// Otherwise the agent is gone, or what goes with the report cannot be sent at all.
fn may_work_later(errno: Errno) -> bool {
    matches!(errno, Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM)
}

fn send(running: &Running, children: &Children, report: &Report) -> Result<(), Errno> {
    let Report::Held { id, .. } = report else { return running.channel.report(report, &[]) };
    // an agent that is told of it late may have forgotten it
    let Some(Held { id, pid, descriptors, .. }) = children.held(*id) else { return Ok(()) };
    let present = descriptors.iter().map(|(number, _)| 1 << number).sum();
    let files: Vec<_> = descriptors.into_iter().map(|(_, file)| file).collect();
    let pid = pid.map_or(0, |pid| pid.as_raw_nonzero().get());
    running.channel.report(&Report::Held { id, pid, present }, &files)
}

impl Keeper {
    /// Tells a new agent of all that is held for it.
    pub(super) fn hand_over(&mut self) {
        for id in self.children.to_hand_over() {
            self.report(Report::Held { id, pid: 0, present: 0 });
            let exit = self.children.held(id).and_then(|held| held.pid.and(held.exit));
            exit.into_iter().for_each(|(exit, at)| self.report(Report::Exited { id, exit, at }));
        }
        self.report(Report::AllHeld);
    }

    pub(super) fn report(&mut self, report: Report) {
        let Some(running) = &self.agent.running else { return };
        if !self.backlog.is_empty() {
            return self.backlog.push_back(report);
        }
        if send(running, &self.children, &report).is_err_and(may_work_later) {
            self.backlog.push_back(report);
            self.await_room();
        }
    }

    pub(super) fn send_backlog(&mut self) {
        while let (Some(report), Some(running)) = (self.backlog.front(), &self.agent.running) {
            if send(running, &self.children, report).is_err_and(may_work_later) {
                return self.await_room();
            }
            self.backlog.pop_front();
            if self.backlog.is_empty() {
                self.await_room();
            }
        }
    }

    /// For what is in the backlog; with too much of it nothing is read that would lead to more.
    pub(super) fn await_room(&self) {
        let Some(running) = &self.agent.running else { return };
        let events = match self.backlog.len() {
            0 => epoll::EventFlags::IN,
            1..=MAX_BACKLOG => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            _ => epoll::EventFlags::OUT,
        };
        let _ = epoll::modify(&self.epoll, &running.channel, Source::Channel.data(), events);
    }
}
