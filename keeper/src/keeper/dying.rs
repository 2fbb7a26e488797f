//! An agent that is dying, and does not get to it: one of its threads waits in the kernel for a command, which no signal ends, as
//! when the command holds the lock of its pipe. Its sockets stay open meanwhile, and no other agent can take its place.

use std::time::{Duration, Instant};

use super::Keeper;
use crate::agent_user::AgentUser;
use crate::log;

/// From when its first thread is seen to have ended until commands are paused, which has them let go of what they hold while
/// they wait themselves.
const PAUSE_DELAY: Duration = Duration::from_millis(500);
/// From then until they are killed.
const KILL_DELAY: Duration = Duration::from_secs(2);
/// How often it is asked whether its first thread has ended, while there are commands: there is no event for that.
pub(super) const LOOK_DELAY: Duration = Duration::from_secs(1);

/// How far it is.
#[derive(Clone, Copy)]
pub(super) enum Dying {
    /// Its commands are paused then.
    Pause(Instant),
    /// They are paused, and killed then.
    Kill(Instant),
}

impl Dying {
    pub(super) fn due(self) -> Instant {
        match self {
            Self::Pause(at) | Self::Kill(at) => at,
        }
    }
}

impl Keeper {
    pub(super) fn look_whether_dying(&mut self) {
        if self.agent.is_dying() {
            self.children.kill_lost();
            self.dying = Some(Dying::Pause(Instant::now() + PAUSE_DELAY));
        } else {
            self.look_at = Some(Instant::now() + LOOK_DELAY);
        }
    }

    /// It should be dead by now.
    pub(super) fn help_dying(&mut self, dying: Dying) {
        match dying {
            Dying::Pause(_) => {
                log::line("the agent cannot end, since commands hold up one of its threads: pausing all commands");
                self.children.pause();
            }
            Dying::Kill(_) => {
                log::line("the agent still cannot end: killing all commands");
                self.children.abandon_all();
                self.agent.user.iter().for_each(AgentUser::kill_all);
            }
        }
        self.dying = Some(Dying::Kill(Instant::now() + KILL_DELAY));
    }

    pub(super) fn is_dead(&mut self) {
        (self.dying, self.look_at) = (None, None);
        self.children.resume();
    }
}
