//! One request, from the queue to its end.
//!
//! It is claimed on the execution's own subject before the agent hears of it. So whatever is killed meanwhile, whoever takes
//! it up again knows that the agent may have started it, and only looks for it there. Nothing is started again that may have
//! been started.

use std::time::{Duration, Instant};

use async_nats::{HeaderMap, Message};
use futures_util::StreamExt;
use prost_types::Timestamp;
use telexec_client::RemoteExecutor;
use telexec_executor::{Attach, Command, Event, Execution, ExecutionId, Executor, ExecutorError};
use telexec_proto::convert::{command_from_wire, error_to_status};
use telexec_proto::v1::{DisconnectPolicy, ExecuteRequest};
use tonic::{Code, Status};
use tracing::warn;

use crate::Bridge;
use crate::agents::{Pause, is_unavailable};
use crate::callers::{Refused, not_expired};
use crate::control::end;
use crate::outlet::{Found, Outlet, Progress, Unwritable};
use crate::server::QueueKind;
use crate::work::Delivery;
use telexec_nats_client::headers::{self, ROUTED_FROM};
use telexec_nats_client::payload::Format;
use telexec_nats_client::signature::request_digest;
use telexec_nats_client::subjects;

/// A request that was delivered so often, and was never claimed, may be what ends this program each time.
pub(crate) const MAX_DELIVERIES: i64 = 100;
/// Where another program seems to publish the same events.
const SUPERSEDED_DELAY: Duration = Duration::from_secs(5);
/// A request that any agent with a label may run is left to others for so long while this one does not answer.
const AWAY_DELAY: Duration = Duration::from_secs(1);
/// An agent forgets no execution sooner.
const REMEMBERED: Duration = Duration::from_secs(1);
pub(crate) const ID_IN_USE: &str = "execution_id: is already used by another request or another caller";

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
            Unwritable::TooLong | Unwritable::Malformed(_) => Settled::Dead(crate::chain(&error)),
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
pub(crate) async fn run(bridge: &Bridge, kind: &QueueKind, message: &Message, delivery: Delivery) -> Settled {
    let request = match Request::read(bridge, kind, message, delivery) {
        Ok(request) => request,
        Err(reason) => return Settled::Dead(reason),
    };
    let is_passed = headers::get(&request.headers, ROUTED_FROM).is_some();
    let _following = match bridge.busy.begin(request.id.as_str(), &request.digest, delivery.sequence, is_passed) {
        Ok(following) => following,
        Err(settled) => return settled,
    };
    let mut outlet = Outlet::new(&bridge.server, request.id.clone(), request.format, &bridge.name, &request.digest);
    let ran = Run { bridge, request: &request, kind, message, delivery }.run(&mut outlet).await;
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
    fn read(bridge: &Bridge, kind: &QueueKind, message: &Message, delivery: Delivery) -> Result<Self, String> {
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
        subjects::check_id(&id).map_err(|error| error.to_string())?;
        // later it may run already, and the clock be another
        if delivery.delivered == 1
            && let Err(error @ Refused::Expiry) = not_expired(&headers)
        {
            return Err(error.to_string());
        }
        let digest = request_digest(&message.payload, &caller);
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
    kind: &'a QueueKind,
    message: &'a Message,
    delivery: Delivery,
}

impl Run<'_> {
    /// Runs it on this agent, or continues where that stopped.
    async fn run(&self, outlet: &mut Outlet<'_>) -> Result<(), Stopped> {
        if self.delivery.delivered > 1 {
            if let Some(found) = self.find(outlet).await? {
                return self.resume(outlet, found).await;
            }
            self.may_be_new()?;
        }
        let agent_start = self.answering().await?;
        match outlet.claim().await {
            Ok(()) => {
                let execution = self.start(agent_start).await?;
                self.follow(outlet, execution, 0, false).await
            }
            Err(Unwritable::Superseded) => match self.find(outlet).await? {
                Some(found) => self.resume(outlet, found).await,
                None => Err(Unwritable::Superseded.into()),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Nothing is known of it, though it was delivered before.
    fn may_be_new(&self) -> Result<(), Stopped> {
        let Delivery { delivered, age, .. } = self.delivery;
        if delivered > MAX_DELIVERIES {
            let reason = format!("it was delivered {delivered} times, and never started");
            return Err(Stopped::Settled(Settled::Dead(reason)));
        }
        match self.bridge.server.events_age() {
            Some(kept) if age >= kept => {
                let text = "the request is older than events are kept: it is not known whether the command has run";
                Err(Stopped::Failed(Status::aborted(text)))
            }
            _ => Ok(()),
        }
    }

    /// What an agent has begun.
    async fn resume(&self, outlet: &mut Outlet<'_>, found: Found) -> Result<(), Stopped> {
        let agent = found.agent.as_deref().unwrap_or(&self.bridge.name);
        match found.progress {
            Progress::Ended => Ok(()),
            _ if agent != self.bridge.name => self.pass(agent).await,
            Progress::Started(position) => {
                let execution = self.attach(position).await?;
                self.follow(outlet, execution, position, true).await
            }
            Progress::Claimed => {
                let execution = self.attach(0).await?;
                self.follow(outlet, execution, 0, false).await
            }
        }
    }

    /// Has the agent continue that has begun it.
    async fn pass(&self, agent: &str) -> Result<(), Stopped> {
        let dead = |reason| Err(Stopped::Settled(Settled::Dead(reason)));
        if *self.kind == QueueKind::Own {
            return dead(format!("execution_id: is in use on the agent {agent}"));
        }
        let mut headers = headers::own(&self.request.headers);
        headers::set(&mut headers, ROUTED_FROM, &self.message.subject);
        match self.bridge.server.enqueue(&subjects::run(agent), headers, self.message.payload.clone()).await {
            Ok(()) => Ok(()),
            Err(error) => dead(crate::chain(&error)),
        }
    }

    /// How far it is.
    async fn find(&self, outlet: &mut Outlet<'_>) -> Result<Option<Found>, Stopped> {
        let dead = |reason| Stopped::Settled(Settled::Dead(reason));
        let found = outlet.find().await.map_err(|error| dead(crate::chain(&error)))?;
        match found.as_ref().and_then(|found| found.request.as_ref()) {
            Some(request) if *request != self.request.digest => Err(dead(ID_IN_USE.to_owned())),
            _ => Ok(found),
        }
    }

    fn executor(&self) -> RemoteExecutor {
        self.bridge.agents.executor(&self.request.caller)
    }

    /// When the agent was started, once it answers; `None`: it does not say.
    async fn answering(&self) -> Result<Option<Timestamp>, Stopped> {
        let mut pause = Pause::default();
        loop {
            self.request.not_expired()?;
            match self.bridge.agents.of(&self.request.caller).info().await {
                Ok(info) => {
                    self.bridge.agents.note(false);
                    return Ok(info.start_time);
                }
                Err(error) if is_unavailable(&error) && *self.kind != QueueKind::Own => {
                    return Err(Stopped::Settled(Settled::Later(AWAY_DELAY)));
                }
                Err(error) if is_unavailable(&error) => {
                    self.bridge.agents.note(true);
                    pause.wait().await;
                }
                Err(ExecutorError::Exhausted { .. }) => pause.wait().await,
                Err(_) => return Ok(None),
            }
        }
    }

    fn not_cancelled(&self) -> Result<(), Stopped> {
        match self.bridge.busy.is_cancelled(self.request.id.as_str()) {
            true => Err(Stopped::Failed(Status::cancelled("it was cancelled before it was started"))),
            false => Ok(()),
        }
    }

    /// Starts the command.
    async fn start(&self, agent_start: Option<Timestamp>) -> Result<Execution, Stopped> {
        let command = self.request.command()?;
        let mut pause = Pause::default();
        loop {
            self.request.not_expired()?;
            self.not_cancelled()?;
            let asked = Instant::now();
            match self.executor().execute(command.clone()).await {
                Ok(execution) => {
                    if self.not_cancelled().is_err() {
                        let _ = end(self.bridge.agents.of(&self.request.caller), &self.request.id).await;
                    }
                    return Ok(execution);
                }
                // it may have been started
                Err(ExecutorError::Lost { .. }) => {
                    if let Some(execution) = self.look(agent_start, asked).await? {
                        return Ok(execution);
                    }
                }
                Err(ExecutorError::Exhausted { retry_after: Some(delay), .. }) => tokio::time::sleep(delay).await,
                Err(error) if is_unavailable(&error) => pause.wait().await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The execution, if the agent that was asked to start it has: `None` only if that is certain.
    async fn look(&self, agent_start: Option<Timestamp>, asked: Instant) -> Result<Option<Execution>, Stopped> {
        let started = self.attach(0).await;
        match started {
            Err(Stopped::Failed(status)) if status.code() == Code::Aborted => {
                let info = self.bridge.agents.of(&self.request.caller).info().await;
                let is_same = agent_start.is_some() && info.is_ok_and(|info| info.start_time == agent_start);
                if is_same && asked.elapsed() < REMEMBERED { Ok(None) } else { Err(Stopped::Failed(status)) }
            }
            started => started.map(Some),
        }
    }

    /// Follows what was started, however long the agent is away.
    async fn attach(&self, position: u64) -> Result<Execution, Stopped> {
        let mut pause = Pause::default();
        loop {
            match self.executor().attach(&self.request.id, Attach::position(position)).await {
                Ok(execution) => return Ok(execution),
                Err(ExecutorError::NotFound(_) | ExecutorError::OutOfRange { .. }) => {
                    let text = "the agent does not know this execution: it was restarted, or has forgotten it; the command \
                                may have run, in part or not at all, and processes of it may be left (see the agent's log)";
                    return Err(Stopped::Failed(Status::aborted(text)));
                }
                Err(error) if pause.is_long() => {
                    warn!(id = %self.request.id, error = %crate::chain(&error), "cannot attach: trying again");
                }
                Err(_) => {}
            }
            pause.wait().await;
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
        let mut pause = Pause::default();
        loop {
            while let Some(Ok(event)) = execution.next().await {
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
                pause = Pause::default();
            }
            // whatever the error was: the execution is there, or the agent says that it is not
            pause.wait().await;
            execution = self.attach(position).await?;
        }
    }
}
