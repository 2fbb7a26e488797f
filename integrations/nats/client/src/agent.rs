//! An agent behind a NATS server, as others are.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use telexec_client::{Agent, Cause, ConnectError, ConnectOptions, Duplex, RemoteExecutor, Transport};
use telexec_executor::{Command, ExecutionId, Executor, ExecutorError, forward_executor};
use telexec_proto::convert::{command_to_wire, error_from_status};
use tonic::Status;

use crate::gateway::Gateway;
use crate::{Address, Nats, NatsTarget};

/// What is in flight between this side and the gateway.
const PIPE_BYTES: usize = 256 * 1024;

/// How to call an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Timeout of an answer of the agent, and of the start of a command. Default: 10 s.
    pub connect_timeout: Duration,
    /// Wait for so long for an agent that is away, at most 24 hours: commands are in its queue until then, and are withdrawn
    /// after that. Default: the agent must be there.
    pub queue: Option<Duration>,
    /// How long an agent may be away while a command is followed, which is lost then; it may run on. With `queue`, for ever.
    /// Default: 30 s.
    pub give_up_after: Duration,
    /// The flow-control window per execution. Default: 1 MiB.
    pub stream_window_bytes: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            queue: None,
            give_up_after: Duration::from_secs(30),
            stream_window_bytes: 1024 * 1024,
        }
    }
}

/// An agent behind a NATS server. Dropping it stops following its executions, which ends those with
/// [`OnDisconnect::Kill`](telexec_executor::OnDisconnect::Kill).
#[derive(Clone, Debug)]
pub struct NatsAgent {
    agent: Agent,
    gateway: Gateway,
}

impl NatsAgent {
    /// Asks the agent whether it is there, unless commands may wait for it, or any with a label may run them.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn connect(nats: Arc<Nats>, target: &NatsTarget, options: Options) -> Result<Self, ConnectError> {
        let name = target.to_string();
        let gateway = Gateway::new(nats, target.address.clone(), options.clone());
        // of a label all would answer
        if options.queue.is_none() && matches!(target.address, Address::Agent(_)) {
            gateway.info().await.map_err(|status| ConnectError::Unreachable {
                endpoint: name.clone(),
                source: Cause::from(cause(&status)),
            })?;
        }
        let connect = ConnectOptions { stream_window_bytes: options.stream_window_bytes, ..ConnectOptions::default() };
        let agent = Agent::connect_by(Arc::new(gateway.clone()), &name, connect).await?;
        Ok(Self { agent, gateway })
    }

    /// As any other agent: its methods are messages here.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// The agent's machine.
    pub fn executor(&self) -> NatsExecutor {
        NatsExecutor(self.agent.executor())
    }

    /// Adds a command to the agent's queue, and does not wait for its start: it runs however this side fares.
    ///
    /// # Errors
    /// It is not in the queue, or perhaps.
    pub async fn enqueue(&self, command: &Command) -> Result<ExecutionId, ExecutorError> {
        let id = self.gateway.enqueue(command_to_wire(command)).await;
        Ok(id.map_err(|status| error_from_status(&status))?.parse()?)
    }
}

/// The reason alone: the endpoint is named beside it.
fn cause(status: &Status) -> Box<dyn std::error::Error + Send + Sync> {
    match error_from_status(status) {
        ExecutorError::Unreachable { source, .. } => source,
        ExecutorError::Internal(_) => status.message().into(),
        error => Box::new(error),
    }
}

/// The machine of a [`NatsAgent`]; clones share the connection. Dropping an [`Execution`](telexec_executor::Execution) ends
/// its command, or withdraws it where no agent has taken it. If this process is killed, the command runs on: use a timeout.
#[derive(Clone, Debug)]
pub struct NatsExecutor(RemoteExecutor);

#[async_trait]
impl Executor for NatsExecutor {
    forward_executor!(self => self.0; execute, attach, write_input, resize, signal, get, list);
}

#[async_trait]
impl Transport for Gateway {
    async fn dial(&self) -> io::Result<Box<dyn Duplex>> {
        let (here, there) = tokio::io::duplex(PIPE_BYTES);
        tokio::spawn(self.clone().serve(there));
        Ok(Box::new(here))
    }
}
