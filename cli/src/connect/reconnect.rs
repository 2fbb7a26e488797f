//! Executions that survive a lost connection: `--reconnect`.

use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use telexec_client::{Agent, Resume};
use telexec_executor::{ExecutionId, Executor, ExecutorError, Input};
use tokio::sync::watch;

use crate::syntax::{Destination, parse_duration};

/// Before a call is repeated whose connection was lost.
const RETRY_DELAY: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ReconnectArgs {
    /// After a lost connection, try to connect again for this long; 0: never
    ///
    /// The agent waits as long before it ends the command of a client that does not come back, at most its
    /// max_disconnect_grace (5m unless configured). It notices after 30 s that a client is stopped (Ctrl-Z, a closed lid).
    #[arg(long, hide_short_help = true, value_name = "DUR", default_value = "30s", value_parser = parse_duration)]
    #[arg(help_heading = "Connection", env = "TELEXEC_RECONNECT", hide_env_values = true)]
    pub(crate) reconnect: Duration,
}

/// The machine of an agent, across lost connections.
pub(crate) struct Link {
    pub(crate) executor: Box<dyn Executor>,
    pub(crate) outages: Outages,
}

/// Whether a connection is lost, and may come back.
#[derive(Clone)]
pub(crate) struct Outages {
    /// `None`: it never comes back.
    lost: Option<watch::Receiver<bool>>,
    /// How long to wait for it.
    pub(crate) limit: Duration,
}

impl ReconnectArgs {
    /// With zero nothing is tried again.
    pub(crate) fn resume(self) -> Resume {
        Resume { give_up_after: self.reconnect, ..Resume::default() }
    }

    /// An agent in this process cannot be lost, and what carries a NATS target makes up for losses itself.
    pub(crate) fn link(self, agent: &Agent, target: &Destination) -> Link {
        let limit = self.reconnect;
        if limit.is_zero() || matches!(target, Destination::Local) || agent.resumes_by_itself() {
            return Link { executor: Box::new(agent.executor()), outages: Outages { lost: None, limit } };
        }
        let executor = agent.executor().resuming(self.resume());
        let lost = Some(executor.outages());
        Link { executor: Box::new(executor), outages: Outages { lost, limit } }
    }
}

impl Link {
    /// Writes to the standard input of an execution. Repeated while the connection is lost: what was written already is not
    /// written twice.
    pub(crate) async fn write(
        &self,
        id: &ExecutionId,
        data: Bytes,
        close: bool,
        offset: u64,
    ) -> Result<u64, ExecutorError> {
        self.repeat(|| {
            let input = Input { data: data.clone(), offset: Some(offset), close };
            self.executor.write_input(id, input)
        })
        .await
    }

    /// Repeats a call while the connection is lost, and may come back.
    pub(crate) async fn repeat<T, F>(&self, call: impl Fn() -> F) -> Result<T, ExecutorError>
    where
        F: Future<Output = Result<T, ExecutorError>>,
    {
        loop {
            let done = call().await;
            if !(self.outages.may_end() && is_lost(&done)) {
                return done;
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }
}

/// Whether a call failed with its connection.
pub(crate) fn is_lost<T>(done: &Result<T, ExecutorError>) -> bool {
    use ExecutorError::{Lost, Unreachable, Untrusted};
    matches!(done, Err(Lost { .. } | Unreachable { .. } | Untrusted { .. }))
}

impl Outages {
    /// Whether a lost connection may come back.
    pub(crate) fn may_end(&self) -> bool {
        self.lost.is_some()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.as_ref().is_some_and(|lost| *lost.borrow())
    }

    /// Waits until a connection is lost, or is there again.
    pub(crate) async fn until(&mut self, wanted: bool) {
        let reached = match &mut self.lost {
            Some(lost) => lost.wait_for(|lost| *lost == wanted).await.is_ok(),
            None => false,
        };
        if !reached {
            std::future::pending().await
        }
    }
}
