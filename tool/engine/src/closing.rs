//! How an engine ends: with all that runs, or for another one that continues it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::warn;

use crate::LocalExecutor;
use crate::state::disk::DISK_TIMEOUT;

/// How long it may take to write what the next engine is to find: up to the most that is remembered, and until it is on
/// disk.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(20);

/// How long processes may take to end after SIGKILL.
const END_TIMEOUT: Duration = Duration::from_secs(2);

impl LocalExecutor {
    /// Returns when its [`keeper`](crate::LocalConfig::keeper) is gone: nothing can be started any more. Never without one.
    pub async fn keeper_lost(&self) {
        match &self.shared.kept {
            Some(kept) => kept.lost.cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Whether its [`keeper`](crate::LocalConfig::keeper) responds, which is noticed when it does not start a command for thirteen
    /// seconds: until it responds again, nothing is started. `None`: there is no keeper.
    pub fn keeper_responds(&self) -> Option<watch::Receiver<bool>> {
        self.shared.kept.as_ref().map(|kept| kept.responding.subscribe())
    }

    /// Refuses new commands from now on.
    pub fn close(&self) {
        self.shared.permits.close();
    }

    /// Returns once no execution runs. Does not keep new ones from starting.
    pub async fn idle(&self) {
        self.shared.tracker.close();
        self.shared.tracker.wait().await;
    }

    /// Refuses new commands and ends those that run, with [`telexec_executor::ExitCause::Shutdown`]; returns when none
    /// of their processes is left. No grace is longer than [`crate::LocalConfig::kill_grace`] from now on. Processes that an
    /// earlier exit left behind on purpose stay.
    pub async fn shutdown(&self) {
        self.close();
        self.shared.shutdown.cancel();
        if tokio::time::timeout(self.shared.kill_grace, self.idle()).await.is_err() {
            self.shared.hurry.cancel();
            self.idle().await;
        }
        // not left to the last owner's drop, which a process that exits now may not reach
        let shared = Arc::clone(&self.shared);
        let _ = self.shared.context.workers.run("", move || shared.cgroups.remove()).await;
    }

    /// Prepares for another agent of the same [`keeper`](crate::LocalConfig::keeper) to take the place of this one. What would end
    /// with this agent gets as long as `limit` to end by itself, while calls are served as usual; then it is ended, with
    /// [`telexec_executor::ExitCause::Shutdown`], and nothing new is started. After that this process is to
    /// [`leave`](Self::leave) and to exit without dropping anything: what still runs is for the next agent.
    pub async fn hand_over(&self, limit: Duration) {
        if tokio::time::timeout(limit, self.shared.registry.none_bound()).await.is_err() {
            warn!(running = self.shared.registry.bound().len(), "ending the commands that are bound to a call");
        }
        self.close();
        self.shared.registry.bound().iter().for_each(|record| record.shutdown.cancel());
        let grace = self.shared.max_kill_grace.saturating_add(END_TIMEOUT);
        if tokio::time::timeout(grace, self.shared.registry.none_bound()).await.is_err() {
            warn!(running = self.shared.registry.bound().len(), "gave up waiting for processes to end");
        }
        self.shared.hands_over.cancel();
    }

    /// Leaves the ended executions that it remembers, with the output that is kept of them, to the next engine on the
    /// same [`crate::LocalConfig::state_dir`]; or removes all, if that is a temporary one or cannot be written to. For a
    /// process that exits now: nothing may be started any more. Returns after some seconds, also where the file system
    /// does not answer.
    ///
    /// Of commands that only their caller could follow there is no output then. What processes they left behind is not
    /// known any more. An engine that goes without this leaves nothing.
    pub async fn leave(&self) {
        let (shared, journal, disk) =
            (Arc::clone(&self.shared), Arc::clone(&self.shared.journal), self.shared.spool.directory().disk());
        let left = async {
            // a file system that is slow is waited for, but not one that does not answer
            disk.run_within(DISK_TIMEOUT, "", move || journal.end()).await?;
            disk.run_within(LEAVE_TIMEOUT, "", move || shared.leave()).await
        };
        if let Err(error) = left.await {
            warn!(%error, "the next agent will not know the executions that have ended");
        }
    }
}
