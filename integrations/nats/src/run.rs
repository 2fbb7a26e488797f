//! One request, from the queue to its end.
//!
//! It is claimed on the execution's own subject before the agent hears of it. So whatever is killed meanwhile, whoever takes
//! it up again knows whether the agent may have started it: the agent itself says, unless it was restarted, and then the
//! execution ended with it. Nothing is ever started again that may have been started.

use std::time::Duration;

use async_nats::{HeaderMap, Message};
use aws_lc_rs::digest::{SHA256, digest};
use futures_util::StreamExt;
use telexec_client::RemoteExecutor;
use telexec_executor::{Attach, Command, Event, Execution, ExecutionId, Executor, ExecutorError};
use telexec_proto::convert::{command_from_wire, error_to_status};
use telexec_proto::v1::{DisconnectPolicy, ExecuteRequest};
use tonic::Status;

use crate::Bridge;
use crate::agents::{Pause, is_unavailable};
use crate::callers::{Refused, not_expired};
use crate::headers::{self, ROUTED_FROM};
use crate::outlet::{Claim, Outlet, Progress, Unwritable};
use crate::payload::Format;
use crate::server::{QueueKind, run_subject};

/// A request that was delivered so often, and was never claimed, ends this program each time.
const MAX_DELIVERIES: i64 = 20;
/// Where another program seems to publish the same events.
const SUPERSEDED_DELAY: Duration = Duration::from_secs(5);
/// Until an agent that is full is asked again, if it does not say.
const FULL_DELAY: Duration = Duration::from_secs(1);

/// What the queue is answered.
pub(crate) enum Settled {
    /// All is said of it.
    Done,
    /// It is to be delivered again, after this time.
    Later(Duration),
    /// It cannot be run, and nobody can be told so but the operator.
    Dead(String),
}

/// Why a request is not run here.
enum Stopped {
    Settled(Settled),
    /// For the execution's subject.
    Failed(Status),
    RunsAlready(Box<telexec_executor::ExecutionInfo>),
}

impl From<Unwritable> for Stopped {
    fn from(error: Unwritable) -> Self {
        Self::Settled(match error {
            Unwritable::Superseded => Settled::Later(SUPERSEDED_DELAY),
            Unwritable::Malformed(_) => Settled::Dead(crate::chain(&error)),
        })
    }
}

impl From<ExecutorError> for Stopped {
    fn from(error: ExecutorError) -> Self {
        match error {
            ExecutorError::AlreadyRunning(info) => Self::RunsAlready(info),
            error => Self::Failed(error_to_status(&error)),
        }
    }
}

/// What a message asks for.
struct Request {
    wire: ExecuteRequest,
    id: ExecutionId,
    format: Format,
    headers: HeaderMap,
    caller: String,
    /// The SHA-256 of the payload, and who sent it.
    digest: String,
}

/// Runs it, or continues to.
pub(crate) async fn run(bridge: &Bridge, kind: &QueueKind, message: &Message, delivered: i64) -> Settled {
    let request = match Request::read(bridge, kind, message) {
        Ok(request) => request,
        Err(reason) => return Settled::Dead(reason),
    };
    let _following = match bridge.busy.begin(request.id.as_str()) {
        Ok(following) => following,
        Err(settled) => return settled,
    };
    let mut outlet = Outlet::new(&bridge.server, request.id.clone(), request.format);
    let ran = match kind {
        QueueKind::Own => Run { bridge, request: &request, delivered }.own(&mut outlet).await,
        QueueKind::Label(_) => Run { bridge, request: &request, delivered }.route(&mut outlet, message).await,
    };
    let told = match ran {
        Ok(()) => return Settled::Done,
        Err(Stopped::Settled(settled)) => return settled,
        Err(Stopped::Failed(status)) => outlet.failed(&status).await,
        Err(Stopped::RunsAlready(info)) => outlet.runs_already(*info).await,
    };
    match told.map_err(Stopped::from) {
        Err(Stopped::Settled(settled)) => settled,
        _ => Settled::Done,
    }
}

impl Request {
    /// # Errors
    /// It is malformed, or not from a caller that is accepted: nobody but the operator is told, since others must not be
    /// able to end what an honest caller has sent with the same id.
    fn read(bridge: &Bridge, kind: &QueueKind, message: &Message) -> Result<Self, String> {
        let headers = message.headers.clone().unwrap_or_default();
        let routed_from = headers::get(&headers, ROUTED_FROM);
        let subject = match routed_from {
            Some(from) if *kind == QueueKind::Own && bridge.labels.iter().any(|label| from == label) => from,
            Some(from) => return Err(format!("{ROUTED_FROM}: {from} is no subject of a label of this agent")),
            None => &message.subject,
        };
        let caller = bridge.callers.accept(subject, &headers, &message.payload).map_err(|error| error.to_string())?;
        let format = Format::of(&headers).map_err(|error| crate::chain(&error))?;
        let wire: ExecuteRequest = format.decode("ExecuteRequest", &message.payload).map_err(|e| crate::chain(&e))?;
        if wire.execution_id.is_empty() {
            return Err("execution_id: is missing".to_owned());
        }
        let id: ExecutionId =
            wire.execution_id.parse().map_err(|error: telexec_executor::InvalidCommand| error.to_string())?;
        if id.as_str().split('.').any(str::is_empty) {
            return Err(
                "execution_id: must not end with a dot, or have two in a row: it is a part of a subject".to_owned()
            );
        }
        if let Err(error @ Refused::Expiry) = not_expired(&headers) {
            return Err(error.to_string());
        }
        let sum = headers::to_base64(digest(&SHA256, &message.payload).as_ref());
        // a space at the end would be lost
        let digest = if caller.is_empty() { sum } else { format!("{sum} {caller}") };
        Ok(Self { wire, id, format, headers, caller, digest })
    }

    fn not_expired(&self) -> Result<(), Stopped> {
        not_expired(&self.headers).map_err(|error| Stopped::Failed(Status::deadline_exceeded(error.to_string())))
    }

    /// The command, which does not depend on this program.
    fn command(&self) -> Result<Command, ExecutorError> {
        let wire = ExecuteRequest {
            on_disconnect: DisconnectPolicy::Detach.into(),
            disconnect_grace: None,
            yield_after: None,
            ..self.wire.clone()
        };
        Ok(command_from_wire(wire, None)?)
    }
}

struct Run<'a> {
    bridge: &'a Bridge,
    request: &'a Request,
    delivered: i64,
}

impl Run<'_> {
    /// Gives a request for a label to this agent, or to the one that has it already.
    async fn route(&self, outlet: &mut Outlet<'_>, message: &Message) -> Result<(), Stopped> {
        let (name, digest) = (&*self.bridge.name, &*self.request.digest);
        let agent = match outlet.route(name, digest).await {
            Ok(()) => name.to_owned(),
            Err(Unwritable::Superseded) => match self.find(outlet).await? {
                Some((_, Progress::Ended)) => return Ok(()),
                Some((agent, _)) => agent,
                None => return Err(Stopped::Settled(Settled::Later(SUPERSEDED_DELAY))),
            },
            Err(error) => return Err(error.into()),
        };
        let mut headers = headers::own(&self.request.headers);
        headers::set(&mut headers, ROUTED_FROM, &message.subject);
        let id = format!("{}@{agent}", self.request.id);
        self.bridge.server.enqueue(&run_subject(&agent), &id, headers, message.payload.clone()).await;
        Ok(())
    }

    /// Runs it on this agent, or continues where that stopped.
    async fn own(&self, outlet: &mut Outlet<'_>) -> Result<(), Stopped> {
        let mut found = if self.delivered > 1 { self.find(outlet).await? } else { None };
        loop {
            match found {
                Some((agent, _)) if agent != self.bridge.name => {
                    let reason = format!("execution_id: is in use on the agent {agent}");
                    return Err(Stopped::Settled(Settled::Dead(reason)));
                }
                Some((_, Progress::Ended)) => return Ok(()),
                Some((_, Progress::Started(position))) => {
                    let execution = self.attach(position).await?;
                    return self.follow(outlet, execution, position, true).await;
                }
                Some((_, Progress::Claimed(claim))) => {
                    let execution = self.start(&claim, true).await?;
                    return self.follow(outlet, execution, 0, false).await;
                }
                None | Some((_, Progress::New)) => {}
            }
            if self.delivered > MAX_DELIVERIES {
                let reason = format!("it was delivered {} times, and never started", self.delivered);
                return Err(Stopped::Settled(Settled::Dead(reason)));
            }
            let claim = Claim { agent: self.bridge.name.clone(), start: self.agent_start().await? };
            match outlet.claim(&claim, &self.request.digest).await {
                Ok(()) => {
                    let execution = self.start(&claim, false).await?;
                    return self.follow(outlet, execution, 0, false).await;
                }
                Err(Unwritable::Superseded) => found = self.find(outlet).await?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The agent that has it, and how far it is.
    async fn find(&self, outlet: &mut Outlet<'_>) -> Result<Option<(String, Progress)>, Stopped> {
        let found = outlet.find().await.map_err(|error| Stopped::Settled(Settled::Dead(crate::chain(&error))))?;
        match found {
            Some(found) if !matches!(&*found.request, request if request.is_empty() || request == self.request.digest) =>
            {
                let reason = "execution_id: is in use by another request, or of another caller".to_owned();
                Err(Stopped::Settled(Settled::Dead(reason)))
            }
            found => Ok(found.map(|found| (found.agent, found.progress))),
        }
    }

    fn executor(&self) -> RemoteExecutor {
        self.bridge.agents.executor(&self.request.caller)
    }

    /// When the agent was started, once it answers.
    async fn agent_start(&self) -> Result<String, Stopped> {
        let mut pause = Pause::default();
        loop {
            self.request.not_expired()?;
            match self.bridge.agents.of(&self.request.caller).info().await {
                Ok(info) => return Ok(info.start_time.map(|time| time.to_string()).unwrap_or_default()),
                Err(error) if is_unavailable(&error) => pause.wait().await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Starts the command, or finds it started; `tried`: it may have been.
    async fn start(&self, claim: &Claim, mut tried: bool) -> Result<Execution, Stopped> {
        let command = self.request.command()?;
        let mut pause = Pause::default();
        loop {
            if std::mem::take(&mut tried)
                && let Some(execution) = self.look(claim).await?
            {
                return Ok(execution);
            }
            self.request.not_expired()?;
            match self.executor().execute(command.clone()).await {
                Ok(execution) => return Ok(execution),
                Err(ExecutorError::Lost { .. }) => tried = true,
                Err(ExecutorError::Exhausted { retry_after, .. }) => {
                    tokio::time::sleep(retry_after.unwrap_or(FULL_DELAY)).await;
                }
                Err(error) if is_unavailable(&error) => pause.wait().await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The execution, if the agent that may have started it has.
    async fn look(&self, claim: &Claim) -> Result<Option<Execution>, Stopped> {
        let mut pause = Pause::default();
        loop {
            if self.agent_start().await? != claim.start {
                return Err(gone());
            }
            match self.executor().attach(&self.request.id, Attach::start()).await {
                Ok(execution) => return Ok(Some(execution)),
                // unless it was another one that said so
                Err(ExecutorError::NotFound(_)) if self.agent_start().await? == claim.start => return Ok(None),
                Err(ExecutorError::NotFound(_)) => return Err(gone()),
                Err(error) if is_unavailable(&error) => pause.wait().await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Follows what was started.
    async fn attach(&self, position: u64) -> Result<Execution, Stopped> {
        let mut pause = Pause::default();
        loop {
            match self.executor().attach(&self.request.id, Attach::position(position)).await {
                Ok(execution) => return Ok(execution),
                Err(ExecutorError::NotFound(_)) => return Err(gone()),
                Err(error) if is_unavailable(&error) => pause.wait().await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Publishes what happens from `position` on, to the end.
    async fn follow(
        &self,
        outlet: &mut Outlet<'_>,
        mut execution: Execution,
        mut position: u64,
        mut is_told: bool,
    ) -> Result<(), Stopped> {
        loop {
            while let Some(event) = execution.next().await {
                let event = match event {
                    Ok(event) => event,
                    Err(error) if is_unavailable(&error) => break,
                    Err(error) => return Err(error.into()),
                };
                match &event {
                    // each attach begins with it
                    Event::Started(_) if is_told => continue,
                    Event::Started(_) => is_told = true,
                    Event::Output(output) => position = output.position + output.data.len() as u64,
                    Event::Gap(resume) => position = *resume,
                    Event::Exited(_) | Event::Promoted => {}
                }
                let is_last = event.is_last();
                outlet.event(event).await?;
                if is_last {
                    return Ok(());
                }
            }
            execution = self.attach(position).await?;
        }
    }
}

/// The agent that ran it is not the one that answers, or has forgotten it.
fn gone() -> Stopped {
    let text = "the agent was restarted since: the command may have run in part, and was ended with it";
    Stopped::Failed(Status::aborted(text))
}
