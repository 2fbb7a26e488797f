//! Executions that outlive their connection.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::StreamExt;
use telexec_client::{Resume, Resuming};
use telexec_executor::{Command, Event, Execution, ExecutionId, Executor, ExecutorError, ExitCause};
use telexec_tests::{Agent, Certs, Proxy, directory, lines, until, within};
use tempfile::TempDir;

mod cuts;
mod ends;
mod grace;
mod starts;

const RESUME: Resume = Resume {
    give_up_after: Duration::from_secs(30),
    initial_delay: Duration::from_millis(1),
    max_delay: Duration::from_millis(20),
};
/// For agents that do not come back.
const SOON_GIVEN_UP: Resume = Resume { give_up_after: Duration::from_millis(300), ..RESUME };
/// For what is to be settled without giving up.
const NEVER_GIVEN_UP: Resume = Resume { give_up_after: Duration::from_secs(24 * 3600), ..RESUME };

/// An agent, a network before it, and what commands leave behind.
struct Scene {
    agent: Agent,
    proxy: Proxy,
    directory: TempDir,
    _certs: Option<Certs>,
}

impl Scene {
    async fn of(agent: Agent, certs: Option<Certs>) -> Self {
        let proxy = Proxy::before(&agent).await;
        Self { agent, proxy, directory: directory(), _certs: certs }
    }

    async fn tcp() -> Self {
        Self::of(Agent::builder().tcp().start(), None).await
    }

    async fn mtls() -> Self {
        let certs = Certs::new();
        Self::of(Agent::builder().mtls(&certs).start(), Some(certs)).await
    }

    async fn unix() -> Self {
        Self::of(Agent::start(), None).await
    }

    async fn executor(&self, resume: Resume) -> Resuming {
        self.agent.connect_through(&self.proxy).await.executor().resuming(resume)
    }

    /// Past the proxy.
    async fn direct(&self) -> impl Executor {
        self.agent.executor().await
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Shell text that notes that it runs.
    fn noted(&self, text: &str) -> String {
        format!("echo ran >> {}; {text}", self.file("runs").display())
    }

    fn runs(&self) -> usize {
        lines(&self.file("runs")).len()
    }

    /// Shell text that waits until [`go_on`](Self::go_on).
    fn wait(&self) -> String {
        format!("until [ -e {} ]; do sleep 0.01; done", self.file("go").display())
    }

    fn go_on(&self) {
        std::fs::write(self.file("go"), "").unwrap();
    }
}

async fn start(executor: &impl Executor, text: &str) -> Execution {
    within(executor.execute(Command::shell(text).build().unwrap())).await.unwrap()
}

/// The rest, after what was read already.
async fn rest(execution: &mut Execution) -> Result<Vec<Event>, ExecutorError> {
    within(execution.collect::<Vec<_>>()).await.into_iter().collect()
}

async fn cause(executor: &impl Executor, id: &ExecutionId) -> ExitCause {
    let mut cause = None;
    until("it has ended", async || {
        cause = executor.get(id).await.unwrap().exited.map(|exited| exited.cause);
        cause.is_some()
    })
    .await;
    cause.unwrap()
}

/// The error and why.
fn causes(error: &ExecutorError) -> String {
    let first: &dyn std::error::Error = error;
    let chain = std::iter::successors(Some(first), |error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
