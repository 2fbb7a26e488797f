//! Callers with JSON Web Tokens.

mod bad_tokens;
mod callers;
mod configuration;
mod gateways;
mod open_calls;
mod programs;
mod published_keys;
mod strangers;

use std::path::PathBuf;

use telexec_client::{AccessToken, ConnectOptions, Target, TlsOptions};
use telexec_executor::ExecutorError;
use telexec_proto::v1::GetAgentRequest;
use telexec_tests::{Agent, AgentBuilder, Certs, TokenIssuer, Wire, within};
use tonic::{Request, Status};

/// The issuer of most tests.
const ISSUER: &str = "https://issuer.example.org";

/// An agent that knows its callers by tokens of one issuer, which its configuration calls `corp`.
struct Tokened {
    agent: Agent,
    certs: Certs,
    issuer: TokenIssuer,
    keys: PathBuf,
}

impl Tokened {
    /// It asks for no client certificates.
    fn start(more: &str) -> Self {
        Self::start_with(more, "", |builder, certs| builder.tls(certs))
    }

    /// With more lines for the issuer, and for the agent.
    fn start_with(more: &str, config: &str, with: impl FnOnce(AgentBuilder, &Certs) -> AgentBuilder) -> Self {
        let (certs, issuer) = (Certs::new(), TokenIssuer::new(ISSUER));
        let keys = certs.ca.directory().join("keys.json");
        let config = format!("{config}\n{}", issuer.table("corp", &keys, more));
        let agent = with(Agent::builder().config(config), &certs).start();
        Self { agent, certs, issuer, keys }
    }

    /// Its machine, as whoever has this token sees it.
    async fn with(&self, token: &str) -> telexec_client::Agent {
        self.connect(Some(AccessToken::Text(token.to_owned()))).await
    }

    /// A connection that is nobody's yet.
    async fn stranger(&self) -> Wire {
        Wire::connect_tls(&self.agent, self.certs.config(None)).await.unwrap()
    }

    async fn connect(&self, token: Option<AccessToken>) -> telexec_client::Agent {
        self.connect_by(TlsOptions::without_certificate(self.certs.ca.cert()), token).await
    }

    async fn connect_by(&self, tls: TlsOptions, token: Option<AccessToken>) -> telexec_client::Agent {
        let target: Target = self.agent.uri().parse().unwrap();
        let options = ConnectOptions { tls: Some(tls), access_token: token, ..Default::default() };
        within(telexec_client::Agent::connect(&target, options)).await.unwrap()
    }
}

/// Who the agent says that this is, in a call with this token.
async fn ask(wire: &Wire, token: Option<&str>) -> Result<String, Status> {
    let mut request = Request::new(GetAgentRequest {});
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    within(wire.agent().get_agent(request)).await.map(|answer| answer.into_inner().identity)
}

/// Who the agent says that this is.
async fn identity(agent: &telexec_client::Agent) -> Result<String, ExecutorError> {
    within(agent.info()).await.map(|info| info.identity)
}

/// Why it is nobody to the agent.
async fn unauthenticated(agent: &telexec_client::Agent) -> String {
    match identity(agent).await {
        Err(ExecutorError::Unauthenticated { reason }) => reason,
        other => panic!("{other:?}"),
    }
}
