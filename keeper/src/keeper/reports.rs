//! What the agent is told, as it has room for it.

use rustix::event::epoll;
use rustix::io::Errno;

use super::{Keeper, Source};
use crate::wire::Report;

/// Reports that an agent does not take.
pub(super) const MAX_BACKLOG: usize = 8192;

/// If the agent is gone, nobody wants to know.
fn may_work_later(errno: Errno) -> bool {
    !matches!(errno, Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)
}

impl Keeper {
    pub(super) fn report(&mut self, report: Report) {
        let Some(running) = &self.agent.running else { return };
        if !self.backlog.is_empty() {
            return self.backlog.push_back(report);
        }
        if running.channel.report(&report).is_err_and(may_work_later) {
            self.backlog.push_back(report);
            self.await_room();
        }
    }

    pub(super) fn send_backlog(&mut self) {
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
