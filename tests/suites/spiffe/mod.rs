//! Certificates from the SPIFFE Workload API.

mod agents_known;
mod callers_known;
mod configuration;
mod programs;
mod rotation;

use std::time::Duration;

use telexec_client::{ConnectError, ConnectOptions, Target, TlsOptions};
use telexec_executor::ExecutorError;
use telexec_executor::text::error_chain;
use telexec_tests::{Agent, AgentBuilder, Pair, TrustDomain, WorkloadServer, within};

/// The path of the agent's ID.
const AGENT: &str = "agents/web-1";
/// That of a caller.
const CALLER: &str = "ops/anna";

/// An agent and a caller in one trust domain, each with a Workload API of its own.
struct Mesh {
    domain: TrustDomain,
    agent_api: WorkloadServer,
    caller_api: WorkloadServer,
    agent: Agent,
}

impl Mesh {
    fn start() -> Self {
        Self::start_with("", |builder| builder)
    }

    /// With more lines for `[spiffe]`.
    fn start_with(more: &str, with: impl FnOnce(AgentBuilder) -> AgentBuilder) -> Self {
        let domain = TrustDomain::new("example.org");
        let (agent_api, caller_api) = (WorkloadServer::with(&domain, AGENT), WorkloadServer::with(&domain, CALLER));
        let agent = with(agent(&agent_api, more)).start();
        Self { domain, agent_api, caller_api, agent }
    }

    fn agent_id(&self) -> String {
        self.domain.id(AGENT)
    }

    /// As the caller.
    async fn connect(&self) -> telexec_client::Agent {
        connect(&self.agent, self.caller_api.options(&self.agent_id())).await.unwrap()
    }

    /// As the holder of this certificate, who trusts the agent's trust domain.
    async fn connect_as(&self, pair: &Pair) -> Result<telexec_client::Agent, ConnectError> {
        let files = TlsOptions::new(&pair.cert, &pair.key, self.domain.ca().cert());
        connect(&self.agent, TlsOptions { server_name: Some(self.agent_id()), ..files }).await
    }

    /// Why the holder of this certificate is refused, as the agent logs it.
    async fn refusal(&self, pair: &Pair) -> String {
        let before = self.refusals().len();
        let error = self.connect_as(pair).await.unwrap_err();
        assert!(matches!(error, ConnectError::Untrusted { .. }), "{error:?}");
        telexec_tests::until("the refusal is logged", async || self.refusals().len() > before).await;
        self.refusals()[before].clone()
    }

    fn refusals(&self) -> Vec<String> {
        self.agent.log().lines().filter(|line| line.contains("TLS: ")).map(str::to_owned).collect()
    }
}

/// One that is to be, on TCP.
fn agent(api: &WorkloadServer, more: &str) -> AgentBuilder {
    Agent::builder().listen("tcp://127.0.0.1:0").config(table(&api.socket(), more))
}

fn table(socket: &str, more: &str) -> String {
    format!("[spiffe]\nsocket = {socket:?}\ncallers = [\"spiffe://*/ops/*\"]\n{more}\n")
}

async fn connect(agent: &Agent, tls: TlsOptions) -> Result<telexec_client::Agent, ConnectError> {
    let target: Target = agent.uri().parse().unwrap();
    let options = ConnectOptions { tls: Some(tls), ..Default::default() };
    within(telexec_client::Agent::connect(&target, options)).await
}

/// Who the agent says that this is.
async fn identity(agent: &telexec_client::Agent) -> Result<String, ExecutorError> {
    within(agent.info()).await.map(|info| info.identity)
}

/// Checks that a message, in which `…` stands for anything, is in docs/SPIFFE.md, and in what was written.
fn documented(message: &str, written: &str) {
    let page = include_str!("../../../docs/SPIFFE.md");
    assert!(page.contains(&format!("`{message}`")), "not on the page: {message}");
    let mut rest = written;
    for piece in message.split('…').map(str::trim).filter(|piece| !piece.is_empty()) {
        let Some((_, after)) = rest.split_once(piece) else { panic!("{piece:?} of {message:?} is not in:\n{written}") };
        rest = after;
    }
}

/// An error with all its causes.
fn text(error: &ConnectError) -> String {
    error_chain(error)
}

/// Until a certificate expires that is short-lived: enough to be used first.
const SHORT: Duration = Duration::from_secs(6);
