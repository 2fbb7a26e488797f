//! Runs the job on one host, over one connection; reports events and finally an outcome.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use telexec_client::Agent;
use telexec_executor::{
    Attach, Event as ExecutionEvent, Execution, ExecutionId, Executor, ExecutorError, ListQuery, Signal,
};
use tokio::sync::{mpsc, watch};

use super::command::{CommandTemplate, execution_id_on};
use super::copy::CopyJob;
use super::event::{Answer, Event, Kind, Outcome};
use super::hosts::Host;
use super::input::SharedInput;
use super::printer::Message;
use crate::commands::find;
use crate::connect::{self, Link, ReconnectArgs, hint_for};
use crate::output::exit;

/// How long to wait for proof that a cancelled command has ended.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(20);

/// What to do on each host.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    /// Run a command and follow it.
    Run(CommandTemplate, Option<SharedInput>, ReconnectArgs),
    /// Start it in the background.
    Start(CommandTemplate),
    /// Check whether it would run.
    Check(CommandTemplate),
    /// Follow the execution of a background run.
    Attach(ExecutionId, ReconnectArgs),
    /// Query its state.
    Get(ExecutionId),
    Signal(ExecutionId, Signal),
    /// Copy files to it, or from it.
    Copy(Arc<CopyJob>),
    /// List the executions of the agent.
    List(ListQuery),
    Ping,
    /// Describe the agent.
    Info,
}

impl Job {
    /// Whether stopping ends commands.
    pub(crate) fn runs_commands(&self) -> bool {
        matches!(self, Self::Run(..) | Self::Start(_))
    }
}

/// Sends events to the printer.
#[derive(Clone)]
pub(crate) struct Reporter {
    pub(crate) host: usize,
    pub(crate) messages: mpsc::Sender<Message>,
}

impl Reporter {
    /// Waits while the printer is busy. Events are discarded once it has ended.
    pub(crate) async fn report(&self, event: Event) {
        let _ = self.messages.send(Message::Host(self.host, event)).await;
    }
}

/// A request to stop all workers.
#[derive(Clone)]
pub(crate) struct Stop(pub(crate) watch::Receiver<bool>);

impl Stop {
    /// Waits for the request.
    pub(crate) async fn requested(&mut self) {
        if self.0.wait_for(|stop| *stop).await.is_err() {
            std::future::pending().await
        }
    }

    pub(crate) fn is_requested(&self) -> bool {
        *self.0.borrow()
    }
}

/// Runs the job and reports the outcome; returns whether it succeeded.
pub(crate) async fn work(host: &Host, job: &Job, reporter: &Reporter, mut stop: Stop) -> bool {
    reporter.report(Event::Connecting).await;
    if let (Job::Start(template), Some(_)) = (job, host.resolved.queue) {
        let outcome = tokio::select! {
            outcome = queue(host, template) => outcome,
            () = stop.requested() => cancelled("stopped before it was in the queue; it may run"),
        };
        let succeeded = outcome.is_ok();
        reporter.report(Event::Finished(Box::new(outcome))).await;
        return succeeded;
    }
    let connecting = async { connect::connect(&host.resolved).await.map_err(ExecutorError::from) };
    let outcome = tokio::select! {
        agent = connecting => match agent {
            Ok(agent) => on_agent(host, &agent, job, reporter, &mut stop).await,
            Err(error) => Outcome { hint: hint_for(&error, &host.resolved), ..Outcome::error(&error) },
        },
        () = stop.requested() => Outcome::not_run(),
    };
    let succeeded = outcome.is_ok();
    reporter.report(Event::Finished(Box::new(outcome))).await;
    succeeded
}

async fn on_agent(host: &Host, agent: &Agent, job: &Job, reporter: &Reporter, stop: &mut Stop) -> Outcome {
    let asking = async {
        match job {
            Job::Run(template, input, reconnect) => {
                let link = reconnect.link(agent, &host.destination);
                Ok(run(host, agent, &link, template, input.clone(), reporter, stop).await)
            }
            Job::Start(template) => Ok(start(host, agent, template, reporter).await),
            Job::Attach(fleet, reconnect) => {
                let link = reconnect.link(agent, &host.destination);
                Ok(attach(&link, &execution_id_on(fleet, &host.name)?, reporter, stop).await)
            }
            Job::Check(template) => unless_stopped(stop, check(host, agent, template)).await,
            Job::Get(fleet) => unless_stopped(stop, get(host, agent, fleet)).await,
            Job::Signal(fleet, signal) => unless_stopped(stop, kill(host, agent, fleet, *signal)).await,
            Job::Copy(copy) => tokio::select! {
                outcome = copy.run(reporter.host, host, agent) => Ok(outcome),
                () = stop.requested() => Ok(cancelled("stopped before all was copied")),
            },
            Job::List(query) => unless_stopped(stop, list(agent, query)).await,
            Job::Ping => unless_stopped(stop, ping(agent)).await,
            Job::Info => unless_stopped(stop, info(agent)).await,
        }
    };
    asking.await.unwrap_or_else(|error| Outcome::error(&error))
}

/// For calls that leave nothing to end.
async fn unless_stopped(
    stop: &mut Stop,
    call: impl Future<Output = Result<Outcome, ExecutorError>>,
) -> Result<Outcome, ExecutorError> {
    tokio::select! {
        outcome = call => outcome,
        () = stop.requested() => Ok(cancelled("stopped before the agent answered")),
    }
}

async fn run(
    host: &Host,
    agent: &Agent,
    link: &Link,
    template: &CommandTemplate,
    input: Option<SharedInput>,
    reporter: &Reporter,
    stop: &mut Stop,
) -> Outcome {
    let command = match template.command(host) {
        Ok(command) => command,
        Err(error) => return Outcome::error(&error.into()),
    };
    let has_receipt = command.receipt();
    let execution = tokio::select! {
        execution = link.executor.execute(command) => execution,
        () = stop.requested() => return confirm_cancel(agent).await,
    };
    let mut execution = match execution {
        Ok(execution) => execution,
        Err(error) => return Outcome::error(&error),
    };
    let (id, mut position) = (execution.id().clone(), 0);
    let feeding = async {
        if let Some(input) = input {
            // unread input is not an error, and the event stream reports a lost connection
            let _ = input.feed(link, &id).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        outcome = follow(&mut execution, reporter, &mut position) => {
            return if has_receipt { outcome.with_receipt() } else { outcome };
        }
        () = stop.requested() => {}
        () = feeding => {}
    }
    drop(execution);
    wait_until_ended(agent, &id, position).await
}

/// Reports the events of an execution until its end.
async fn follow(execution: &mut Execution, reporter: &Reporter, position: &mut u64) -> Outcome {
    reporter.report(Event::Started(execution.started().clone())).await;
    let mut incomplete = false;
    while let Some(event) = execution.next().await {
        match event {
            Ok(ExecutionEvent::Output(output)) => {
                *position = output.position + output.data.len() as u64;
                reporter.report(Event::Output(output)).await;
            }
            Ok(ExecutionEvent::Gap(position)) => {
                incomplete = true;
                reporter.report(Event::Gap(position)).await;
            }
            Ok(ExecutionEvent::Exited(exited)) => return Outcome::followed(exited, incomplete),
            Ok(ExecutionEvent::Promoted) => return Outcome::ok(),
            Ok(ExecutionEvent::Started(_)) => {}
            Err(error) => return Outcome::lost(&error),
        }
    }
    Outcome::new(Kind::Lost, exit::LOST, "the agent did not report how the command ended")
}

/// Waits until the agent confirms that the cancelled command has no processes left.
async fn wait_until_ended(agent: &Agent, id: &ExecutionId, position: u64) -> Outcome {
    let from = Attach::position(position);
    let proof = async {
        let mut execution = match agent.executor().attach(id, from).await {
            Ok(execution) => execution,
            Err(ExecutorError::NotFound(_)) => return true,
            // without permission to attach, a ping still confirms the cancellation
            Err(_) => return false,
        };
        while let Some(event) = execution.next().await {
            match event {
                Ok(ExecutionEvent::Exited(_)) => return true,
                Ok(
                    ExecutionEvent::Started(_)
                    | ExecutionEvent::Output(_)
                    | ExecutionEvent::Gap(_)
                    | ExecutionEvent::Promoted,
                ) => {}
                Err(_) => return false,
            }
        }
        false
    };
    match tokio::time::timeout(CANCEL_TIMEOUT, proof).await {
        Ok(true) => Outcome { kind: Kind::Cancelled, code: exit::LOST, ..Outcome::ok() },
        Ok(false) => confirm_cancel(agent).await,
        Err(_) => cancelled("may still be running"),
    }
}

/// Any answer proves that an earlier cancellation has arrived.
async fn confirm_cancel(agent: &Agent) -> Outcome {
    match tokio::time::timeout(CANCEL_TIMEOUT, agent.ping()).await {
        Ok(Ok(_)) => cancelled("the agent is ending the command"),
        _ => cancelled("may still be running"),
    }
}

fn cancelled(reason: &str) -> Outcome {
    Outcome::new(Kind::Cancelled, exit::LOST, reason)
}

/// Starts the command and waits until it is in the background. The agent keeps its output.
async fn start(host: &Host, agent: &Agent, template: &CommandTemplate, reporter: &Reporter) -> Outcome {
    let command = match template.command(host) {
        Ok(command) => command,
        Err(error) => return Outcome::error(&error.into()),
    };
    let mut execution = match agent.executor().execute(command).await {
        Ok(execution) => execution,
        Err(error) => return Outcome::error(&error),
    };
    reporter.report(Event::Started(execution.started().clone())).await;
    while let Some(event) = execution.next().await {
        match event {
            Ok(ExecutionEvent::Promoted) => return Outcome::ok(),
            Ok(ExecutionEvent::Exited(exited)) => return Outcome::exited(exited),
            Ok(ExecutionEvent::Started(_) | ExecutionEvent::Output(_) | ExecutionEvent::Gap(_)) => {}
            Err(error) => return Outcome::lost(&error),
        }
    }
    Outcome::new(Kind::Lost, exit::LOST, "the agent did not report whether it keeps running")
}

/// Leaves the command in the queue of an agent that may be away.
async fn queue(host: &Host, template: &CommandTemplate) -> Outcome {
    let queued = async { connect::enqueue(&host.resolved, &template.command(host)?).await };
    match queued.await {
        Ok(_) => Outcome::ok(),
        Err(error) => Outcome { hint: hint_for(&error, &host.resolved), ..Outcome::error(&error) },
    }
}

async fn attach(link: &Link, id: &ExecutionId, reporter: &Reporter, stop: &mut Stop) -> Outcome {
    let from = Attach::start();
    let following = async {
        match link.executor.attach(id, from).await {
            Ok(mut execution) => follow(&mut execution, reporter, &mut 0).await,
            Err(error) => Outcome::error(&error),
        }
    };
    tokio::select! {
        outcome = following => outcome,
        () = stop.requested() => Outcome::new(Kind::Cancelled, exit::LOST, "detached; keeps running"),
    }
}

async fn check(host: &Host, agent: &Agent, template: &CommandTemplate) -> Result<Outcome, ExecutorError> {
    let check = agent.check(&template.command(host)?).await?;
    let not_met = if check.missing.is_empty() { "" } else { "; not met: " };
    let reason = format!("{}{not_met}{}", check.reason, check.missing.join("; ")).replace(char::is_control, " ");
    Ok(match check.allowed {
        true => Outcome::ok(),
        false => Outcome::new(Kind::Refused, exit::REFUSED, reason),
    })
}

async fn get(host: &Host, agent: &Agent, fleet: &ExecutionId) -> Result<Outcome, ExecutorError> {
    let info = agent.executor().get(&execution_id_on(fleet, &host.name)?).await?;
    let outcome = info.exited.clone().map_or_else(Outcome::ok, Outcome::exited);
    Ok(Outcome { answer: Some(Answer::Execution(Box::new(info))), ..outcome })
}

async fn list(agent: &Agent, query: &ListQuery) -> Result<Outcome, ExecutorError> {
    let executions = find::list(&agent.executor(), query.clone()).await?;
    Ok(Outcome::answered(Answer::Executions(executions)))
}

async fn ping(agent: &Agent) -> Result<Outcome, ExecutorError> {
    let ping = agent.ping().await?;
    Ok(match ping.serving {
        true => Outcome::answered(Answer::Ping(ping)),
        false => Outcome { answer: Some(Answer::Ping(ping)), ..Outcome::new(Kind::Failed, 1, "not serving") },
    })
}

async fn info(agent: &Agent) -> Result<Outcome, ExecutorError> {
    Ok(Outcome::answered(Answer::Agent(Box::new(agent.info().await?))))
}

async fn kill(host: &Host, agent: &Agent, fleet: &ExecutionId, signal: Signal) -> Result<Outcome, ExecutorError> {
    agent.executor().signal(&execution_id_on(fleet, &host.name)?, signal).await.map(|_| Outcome::ok())
}
