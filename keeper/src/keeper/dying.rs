//! An agent that is dying, and does not get to it: one of its threads waits in the kernel for a command, which no signal ends, as
//! when the command holds the lock of its pipe. Its sockets stay open meanwhile, and no other agent can take its place.

use std::time::{Duration, Instant};

use super::Keeper;
use crate::agent_user::AgentUser;
use crate::log;
use crate::paused::{Paused, kill_descendants};

/// How often it is asked whether its first thread has ended, while there are commands: there is no event for that.
pub(super) const LOOK_DELAY: Duration = Duration::from_secs(1);
/// From then until commands are paused, which has them let go of what they hold while they wait themselves.
const PAUSE_DELAY: Duration = Duration::from_millis(500);
/// From then until those are killed that cannot be paused.
const KILL_DELAY: Duration = Duration::from_secs(1);
/// From then until all are killed.
const KILL_ALL_DELAY: Duration = Duration::from_secs(2);

/// What is done next, and when.
#[derive(Clone, Copy)]
pub(super) struct Dying {
    pub(super) at: Instant,
    step: Step,
}

#[derive(Clone, Copy)]
enum Step {
    Pause,
    Kill,
    KillAll,
    KillAgain,
}

impl Step {
    fn after(self, delay: Duration) -> Option<Dying> {
        Some(Dying { at: Instant::now() + delay, step: self })
    }
}

impl Keeper {
    pub(super) fn look_whether_dying(&mut self) {
        if self.agent.is_dying() {
            self.children.kill_lost();
            self.dying = Step::Pause.after(PAUSE_DELAY);
        } else {
            self.look_at = Some(Instant::now() + LOOK_DELAY);
        }
    }

    /// It should be dead by now.
    pub(super) fn help_dying(&mut self, Dying { step, .. }: Dying) {
        self.drop_starter();
        let spared: Vec<_> = self.agent.pid().into_iter().collect();
        self.dying = match step {
            Step::Pause => {
                log::line("the agent cannot end, since commands hold up one of its threads: pausing all commands");
                let paused = self.paused.get_or_insert_default();
                self.children.iter().filter_map(|child| child.cgroup.as_ref()).for_each(|cgroup| paused.freeze(cgroup));
                paused.stop_others(&spared);
                Step::Kill.after(KILL_DELAY)
            }
            Step::Kill => {
                log::line("the agent still cannot end: killing the commands that cannot be paused");
                self.paused.iter().for_each(Paused::kill_what_runs);
                Step::KillAll.after(KILL_ALL_DELAY)
            }
            Step::KillAll | Step::KillAgain => {
                if matches!(step, Step::KillAll) {
                    log::line("the agent still cannot end: killing all commands");
                }
                self.children.abandon_all();
                kill_descendants(&spared);
                self.agent.user.iter().for_each(AgentUser::kill_all);
                Step::KillAgain.after(KILL_ALL_DELAY)
            }
        };
    }

    pub(super) fn is_dead(&mut self) {
        (self.dying, self.look_at) = (None, None);
        self.paused.take().into_iter().for_each(Paused::resume);
    }
}
