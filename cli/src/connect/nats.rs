//! Agents behind NATS servers. All agents of a server share one connection to it.

use std::collections::HashMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use telexec_client::{Cause, ConnectError};
use telexec_executor::{Command, ExecutionId, ExecutorError};
use telexec_nats_client::{Address, Nats, NatsAgent, NatsError, NatsTarget, Options, Password, Settings};
use tokio::sync::{Mutex, OnceCell};

use crate::config::{NatsConfig, ResolvedTarget, Route};

/// The connections, by URL and settings.
static SERVERS: Mutex<Option<HashMap<(String, NatsConfig), Arc<OnceCell<Arc<Nats>>>>>> = Mutex::const_new(None);

/// Connects to the server, unless that was done before, and asks for the agent.
///
/// # Errors
/// See [`ConnectError`].
pub(super) async fn connect(
    target: &NatsTarget,
    config: &NatsConfig,
    resolved: &ResolvedTarget,
) -> Result<NatsAgent, ConnectError> {
    let connect_timeout = resolved.options.connect_timeout;
    let nats = server(target, config, connect_timeout).await.map_err(|error| unreachable(target, error))?;
    let options = Options {
        connect_timeout,
        queue: resolved.queue,
        stream_window_bytes: resolved.options.stream_window_bytes,
        ..Options::default()
    };
    NatsAgent::connect(nats, target, options).await
}

/// Puts a command into the queue of the agent, and does not wait for it.
///
/// # Errors
/// It is not in the queue, or perhaps.
pub(crate) async fn enqueue(resolved: &ResolvedTarget, command: &Command) -> Result<ExecutionId, ExecutorError> {
    match &resolved.route {
        Route::Nats(target, config) => connect(target, config, resolved).await?.enqueue(command).await,
        Route::Local | Route::Direct(_) => {
            Err(ExecutorError::FailedPrecondition { reason: "commands for this agent wait in no queue".to_owned() })
        }
    }
}

/// The agents that a label stands for; `None`: it is no such target.
///
/// # Errors
/// The server does not say.
pub(crate) async fn labelled(
    text: &str,
    config: &NatsConfig,
    connect_timeout: Duration,
) -> Option<Result<Vec<String>, NatsError>> {
    let target: NatsTarget = text.parse().ok()?;
    let Address::Label(label) = &target.address else { return None };
    let agents = async { server(&target, config, connect_timeout).await?.agents(label).await };
    Some(agents.await.map(|names| names.iter().map(|name| target.of_agent(name).to_string()).collect()))
}

async fn server(target: &NatsTarget, config: &NatsConfig, connect_timeout: Duration) -> Result<Arc<Nats>, NatsError> {
    let config = with_environment(config.clone());
    let (url, signing_key) = (target.url(), config.signing_key.clone());
    let cell = {
        let mut servers = SERVERS.lock().await;
        let servers = servers.get_or_insert_default();
        Arc::clone(servers.entry((url.clone(), config.clone())).or_default())
    };
    let connect = async || Nats::connect(&url, &settings(config), signing_key.as_deref(), connect_timeout).await;
    cell.get_or_try_init(async || connect().await.map(Arc::new)).await.cloned()
}

/// Environment variables go before the file.
fn with_environment(config: NatsConfig) -> NatsConfig {
    let path = |name, other| variable(name).map(PathBuf::from).or(other);
    NatsConfig {
        creds: path("TELEXEC_NATS_CREDS", config.creds),
        nkey: path("TELEXEC_NATS_NKEY", config.nkey),
        ca: path("TELEXEC_NATS_CA", config.ca),
        cert: path("TELEXEC_NATS_CERT", config.cert),
        key: path("TELEXEC_NATS_KEY", config.key),
        signing_key: path("TELEXEC_NATS_SIGNING_KEY", config.signing_key),
    }
}

fn settings(config: NatsConfig) -> Settings {
    let NatsConfig { creds, nkey, ca, cert, key, signing_key: _ } = config;
    let user = variable("TELEXEC_NATS_USER").zip(variable("TELEXEC_NATS_PASSWORD").map(Password));
    Settings { creds, nkey, user, ca, cert, key }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn unreachable(target: &NatsTarget, error: NatsError) -> ConnectError {
    ConnectError::Unreachable {
        endpoint: target.to_string(),
        source: Cause::from(Box::<dyn Error + Send + Sync>::from(error)),
    }
}
