//! Agents behind NATS servers. All agents of a server share one connection to it.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use telexec_client::{Cause, ConnectError};
use telexec_executor::{Command, ExecutionId, ExecutorError};
use telexec_nats_client::{Address, Nats, NatsAgent, NatsError, NatsTarget, Options, Password, Settings};

use crate::config::{Config, NatsConfig, ResolvedTarget, Route};
use crate::output::{Failure, exit};

type Connected = Shared<BoxFuture<'static, Result<Arc<Nats>, Arc<NatsError>>>>;

/// The connections, and those that are being made, by URL and settings. A failure is that of all who wait.
static SERVERS: Mutex<BTreeMap<(String, NatsConfig), Connected>> = Mutex::new(BTreeMap::new());

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
    config: &Config,
    connect_timeout: Duration,
) -> Result<Option<Vec<String>>, Failure> {
    let Ok(target) = text.parse::<NatsTarget>() else { return Ok(None) };
    let Address::Label(label) = &target.address else { return Ok(None) };
    let settings = config.nats()?;
    let asking = async { Ok(server(&target, &settings, connect_timeout).await?.agents(label).await?) };
    let names: Result<Vec<String>, Arc<NatsError>> = asking.await;
    let names = names.map_err(|error| Failure::new(exit::LOST, &*error).context(text))?;
    Ok(Some(names.iter().map(|name| target.of_agent(name).to_string()).collect()))
}

async fn server(
    target: &NatsTarget,
    config: &NatsConfig,
    connect_timeout: Duration,
) -> Result<Arc<Nats>, Arc<NatsError>> {
    let key = (target.url(), config.clone());
    let connecting = {
        let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
        let connect = || connect_to(key.0.clone(), key.1.clone(), connect_timeout).boxed().shared();
        servers.entry(key.clone()).or_insert_with(connect).clone()
    };
    let connected = connecting.clone().await;
    if connected.is_err() {
        // the next one tries again
        let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
        if servers.get(&key).is_some_and(|known| known.ptr_eq(&connecting)) {
            servers.remove(&key);
        }
    }
    connected
}

async fn connect_to(url: String, config: NatsConfig, timeout: Duration) -> Result<Arc<Nats>, Arc<NatsError>> {
    let NatsConfig { creds, nkey, ca, cert, key, signing_key } = config;
    // not with the credentials of another kind
    let user = match creds.is_some() || nkey.is_some() {
        true => None,
        false => variable("TELEXEC_NATS_USER").zip(variable("TELEXEC_NATS_PASSWORD").map(Password)),
    };
    let settings = Settings { creds, nkey, user, ca, cert, key };
    Ok(Arc::new(Nats::connect(&url, &settings, signing_key.as_deref(), timeout).await?))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn unreachable(target: &NatsTarget, error: Arc<NatsError>) -> ConnectError {
    let endpoint = target.to_string();
    match &*error {
        NatsError::File(bad) => {
            let source = Cause::from(Box::<dyn Error + Send + Sync>::from(bad.reason.clone()));
            ConnectError::Credentials { endpoint, path: bad.file.clone(), source }
        }
        _ => ConnectError::Unreachable { endpoint, source: Cause::from(Box::<dyn Error + Send + Sync>::from(error)) },
    }
}
