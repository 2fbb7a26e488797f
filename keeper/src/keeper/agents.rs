//! One agent after the other: how each starts, and what becomes of what it leaves.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::process::{Resource, Signal, getrlimit};

use super::dying::LOOK_DELAY;
use super::{Keeper, Source};
use crate::agent::{Next, Past};
use crate::agent_user::AgentUser;
use crate::children::Lost;
use crate::{given, log};

/// Descriptors that are left for an agent to be started, and for one message.
const SPARE_FILES: usize = 320;
/// How long an agent may take to serve, after an earlier one has.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

impl Keeper {
    pub(super) fn start_agent(&mut self) -> io::Result<()> {
        if self.agent.keeps_failing() || self.holds_too_much() {
            log::line(
                "killing all commands, and forgetting the executions of earlier agents: no agent serves with these",
            );
            self.children.abandon_all();
            self.agent.user.iter().for_each(AgentUser::kill_all);
        }
        self.reexec_if_due();
        self.agent.start()?;
        self.deaf_until = None;
        // whoever has started this process waits for the first one
        self.ready_by = self.agent.was_ready.then(|| Instant::now() + READY_TIMEOUT);
        let Some(running) = &self.agent.running else { return Ok(()) };
        let watched = epoll::add(&self.epoll, &running.channel, Source::Channel.data(), epoll::EventFlags::IN)
            .and_then(|()| epoll::add(&self.epoll, &running.pidfd, Source::Agent.data(), epoll::EventFlags::IN));
        watched.inspect_err(|_| self.agent.abandon())?;
        self.look_at = Some(Instant::now() + LOOK_DELAY);
        self.hand_over();
        Ok(())
    }

    /// An agent that is not root has passed more than leaves room for the next one.
    pub(super) fn holds_too_much(&self) -> bool {
        if self.agent.user.is_none() {
            return false;
        }
        let limit = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
        limit.is_some_and(|limit| given::count() > limit - SPARE_FILES.min(limit / 2))
    }

    /// Returns how many of its commands were killed.
    fn lose_agent(&mut self) -> usize {
        // a starter that an agent has held up holds up no other
        self.drop_starter();
        let Lost { killed, ended } = self.children.lose_agent();
        for number in ended {
            self.reap(number);
        }
        killed
    }

    /// No agent runs: another one ends what the last one has left, and leaves what it remembers.
    pub(super) fn start_to_stop(&mut self, signal: Signal) {
        // asked a second time, it waits for none
        let is_urgent = signal == Signal::KILL;
        if is_urgent || self.children.to_hand_over().is_empty() || self.start_agent().is_err() {
            self.code = Some(0);
        }
        self.stop_when_ready = Some(signal);
    }

    /// The agent was asked to end, once, and commands outlive it.
    fn is_ending_commands(&self) -> bool {
        self.asked_at.is_some() && !self.is_urgent && !self.children.to_hand_over().is_empty()
    }

    /// It does not serve in time.
    pub(super) fn replace_agent(&mut self) {
        log::line(&format!("the agent does not serve after {} s: killing it", READY_TIMEOUT.as_secs()));
        self.agent.signal(Signal::KILL);
    }

    pub(super) fn look_at_agent(&mut self) {
        self.answer_last();
        let Some(Past { next, was_asked, was_handed_over, pid, status, pidfd, channel }) = self.agent.ended() else {
            return;
        };
        self.is_dead();
        self.unwatch(&pidfd);
        self.unwatch(&channel);
        self.backlog.clear();
        (self.deaf_until, self.ready_by) = (None, None);
        match next {
            // it was asked to end while it did
            Next::End(_) if was_handed_over => {
                self.lose_agent();
                self.start_to_stop(Signal::TERM);
            }
            // it has crashed while it ended what it ran
            Next::End(code) if !status.success() && self.is_ending_commands() => {
                self.lose_agent();
                let what =
                    format!("the agent, process {pid}, ended unexpectedly while it was ending commands ({status})");
                if std::mem::replace(&mut self.has_retried, true) {
                    log::line(&format!("{what}: killing them"));
                    self.children.abandon_all();
                    self.agent.user.iter().for_each(AgentUser::kill_all);
                    self.code = Some(code);
                } else {
                    log::line(&what);
                    self.start_to_stop(Signal::TERM);
                }
            }
            Next::End(code) => {
                if !was_asked {
                    log::line(&format!("the agent, process {pid}, ended ({status}): it is not started again"));
                }
                self.code = Some(code);
            }
            Next::Again if was_handed_over => {
                self.lose_agent();
                self.reexec_soon();
                log::line(&format!("the agent, process {pid}, has handed over to the programs on disk"));
            }
            Next::Again => {
                let killed = self.lose_agent();
                let continued = self.children.to_hand_over().len();
                log::line(&format!(
                    "the agent, process {pid}, ended unexpectedly ({status}): killed {killed} commands that were bound to it, \
                     starting another agent, which gets {continued} executions"
                ));
            }
        }
    }
}
