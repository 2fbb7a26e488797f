//! Taking orphans from the process table: what the first process of a container or a virtual machine owes all others.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, getpid};

use super::{children, control};
use crate::wait::RETRY_DELAY;
use telexec_spawn::exit;

/// Reaps the orphans that are given to this process. For programs that are agents and nothing else: every child that
/// was not started by a [`LocalExecutor`](crate::LocalExecutor) is taken for an orphan.
#[derive(Debug)]
pub struct Reaper {
    /// How many times in a row something hid the orphans.
    hidden: AtomicU32,
}

/// How many times in a row that may be: an ended main process is soon reaped by its engine, and hides orphans until
/// then. After that a slower way finds them.
const MAX_HIDDEN: u32 = 10;

impl Reaper {
    /// From now on, orphans among the descendants of this process are given to it, as they are anyway if it is the
    /// first of its pid namespace. See PR_SET_CHILD_SUBREAPER, prctl(2).
    ///
    /// # Errors
    /// The kernel is older than that.
    pub fn new() -> io::Result<Self> {
        exit::adopt_orphans()?;
        Ok(Self { hidden: AtomicU32::new(0) })
    }

    /// Reaps the orphans that have ended; to be called after a SIGCHLD. False: call it again soon, without waiting for
    /// another signal, since there may be more.
    ///
    /// # Errors
    /// /proc cannot be read, for want of descriptors or memory; trying again helps.
    pub fn reap(&self) -> io::Result<bool> {
        if children::reap_strangers() {
            self.hidden.store(0, Ordering::Relaxed);
            return Ok(true);
        }
        if self.hidden.fetch_add(1, Ordering::Relaxed) < MAX_HIDDEN {
            return Ok(false);
        }
        children::reap_hidden_strangers()?;
        self.hidden.store(0, Ordering::Relaxed);
        Ok(true)
    }

    /// This process is the first one: the machine, or the container, ends with it.
    pub fn is_init(&self) -> bool {
        getpid() == Pid::INIT
    }

    /// Asks all other processes to end (SIGTERM), and returns when they have, or after `grace`. Only for an init: all
    /// others leave alone what is not theirs.
    pub async fn end_all(&self, grace: Duration) {
        if !self.is_init() {
            return;
        }
        control::ask_all_to_end();
        let _ = tokio::time::timeout(grace, async {
            while !self.is_alone() {
                tokio::time::sleep(RETRY_DELAY).await;
            }
        })
        .await;
    }

    /// Every process that has lost its parent is a child of the first one.
    fn is_alone(&self) -> bool {
        let _ = self.reap();
        exit::any_ended().is_err()
    }
}
