//! What is done on one host, over one connection: it tells events, and ends with an outcome.

use std::time::Duration;

use futures_util::StreamExt;
use telexec_client::Agent;
use telexec_executor::{Attach, Event as Told, Execution, ExecutionId, Executor, ExecutorError, OnDisconnect, Signal};
use tokio::sync::{mpsc, watch};

use super::command::{Recipe, id_on};
use super::event::{Event, Kind, Outcome};
use super::hosts::Host;
use super::input::SharedInput;
use super::printer::Message;
use crate::output::exit;

/// For an agent to prove that what was cancelled has ended.
const PROOF: Duration = Duration::from_secs(20);

/// What is to be done on each host.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    /// Run a command and follow it.
    Run(Recipe, Option<SharedInput>),
    /// Start it in the background.
    Start(Recipe),
    /// Ask whether it would run.
    Check(Recipe),
    /// Follow what runs there of a fleet.
    Attach(ExecutionId),
    /// Ask what became of it.
    Get(ExecutionId),
    Signal(ExecutionId, Signal),
}

/// The way to the printer.
#[derive(Clone)]
pub(crate) struct Teller {
    pub(crate) host: usize,
    pub(crate) messages: mpsc::Sender<Message>,
}

impl Teller {
    /// Waits while the printer has much to do. Once it has ended, there is nobody to tell.
    pub(crate) async fn tell(&self, event: Event) {
        let _ = self.messages.send(Message::Host(self.host, event)).await;
    }
}

/// Tells when everything is to be stopped.
#[derive(Clone)]
pub(crate) struct Stop(pub(crate) watch::Receiver<bool>);

impl Stop {
    /// Waits for it.
    async fn wanted(&mut self) {
        if self.0.wait_for(|stop| *stop).await.is_err() {
            std::future::pending().await
        }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        *self.0.borrow()
    }
}

/// Does it, and tells its end.
pub(crate) async fn work(host: &Host, job: &Job, teller: &Teller, mut stop: Stop) -> bool {
    teller.tell(Event::Begun).await;
    let connecting = async {
        let Some(target) = &host.place.target else {
            return Err(ExecutorError::Internal("no agent to connect to".to_owned()));
        };
        Agent::connect(target, host.place.options.clone()).await.map_err(ExecutorError::from)
    };
    let outcome = tokio::select! {
        agent = connecting => match agent {
            Ok(agent) => on_agent(host, &agent, job, teller, &mut stop).await,
            Err(error) => Outcome::error(&error),
        },
        () = stop.wanted() => Outcome::not_run(),
    };
    let went_well = outcome.is_ok();
    teller.tell(Event::Ended(Box::new(outcome))).await;
    went_well
}

async fn on_agent(host: &Host, agent: &Agent, job: &Job, teller: &Teller, stop: &mut Stop) -> Outcome {
    let done = match job {
        Job::Run(recipe, input) => return run(host, agent, recipe, input.clone(), teller, stop).await,
        Job::Start(recipe) => return start(host, agent, recipe, teller).await,
        Job::Check(recipe) => check(host, agent, recipe).await,
        Job::Attach(fleet) => match id_on(fleet, &host.name) {
            Ok(id) => return attach(agent, &id, teller, stop).await,
            Err(error) => Err(error.into()),
        },
        Job::Get(fleet) => get(host, agent, fleet).await,
        Job::Signal(fleet, signal) => kill(host, agent, fleet, *signal).await,
    };
    done.unwrap_or_else(|error| Outcome::error(&error))
}

async fn run(
    host: &Host,
    agent: &Agent,
    recipe: &Recipe,
    input: Option<SharedInput>,
    teller: &Teller,
    stop: &mut Stop,
) -> Outcome {
    let command = match recipe.command(host) {
        Ok(command) => command,
        Err(error) => return Outcome::error(&error.into()),
    };
    let executor = agent.executor();
    let execution = tokio::select! {
        execution = executor.execute(command) => execution,
        () = stop.wanted() => return heard(agent).await,
    };
    let mut execution = match execution {
        Ok(execution) => execution,
        Err(error) => return Outcome::error(&error),
    };
    let (id, mut position) = (execution.id().clone(), 0);
    let feeding = async {
        if let Some(input) = input {
            // what it does not read is no error; a lost connection is told by the stream
            let _ = input.feed(&executor, &id).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        outcome = follow(&mut execution, teller, &mut position) => return outcome,
        () = stop.wanted() => {}
        () = feeding => {}
    }
    drop(execution);
    ended(agent, &id, position).await
}

/// Tells what an execution tells, to its end.
async fn follow(execution: &mut Execution, teller: &Teller, position: &mut u64) -> Outcome {
    teller.tell(Event::Started(execution.started().clone())).await;
    while let Some(told) = execution.next().await {
        match told {
            Ok(Told::Output(output)) => {
                *position = output.position + output.data.len() as u64;
                teller.tell(Event::Output(output)).await;
            }
            Ok(Told::Gap(position)) => teller.tell(Event::Gap(position)).await,
            Ok(Told::Exited(exited)) => return Outcome::exited(exited),
            Ok(Told::Promoted) => return Outcome::ok(),
            Ok(Told::Started(_)) => {}
            Err(error) => return Outcome::lost(&error),
        }
    }
    Outcome::of(Kind::Lost, exit::LOST, "the agent did not report how the command ended")
}

/// Waits until the agent says that what was cancelled has no process left.
async fn ended(agent: &Agent, id: &ExecutionId, position: u64) -> Outcome {
    let from = Attach { position, on_disconnect: OnDisconnect::Detach };
    let proof = async {
        let mut execution = match agent.executor().attach(id, from).await {
            Ok(execution) => execution,
            Err(ExecutorError::NotFound(_)) => return true,
            // whoever may not attach can still be sure that the agent heard
            Err(_) => return false,
        };
        while let Some(told) = execution.next().await {
            match told {
                Ok(Told::Exited(_)) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
        false
    };
    match tokio::time::timeout(PROOF, proof).await {
        Ok(true) => cancelled("ended"),
        Ok(false) => heard(agent).await,
        Err(_) => cancelled("may still be running"),
    }
}

/// An answer to anything means that a cancel before it was heard.
async fn heard(agent: &Agent) -> Outcome {
    match tokio::time::timeout(PROOF, agent.ping()).await {
        Ok(Ok(_)) => cancelled("the agent is ending it"),
        _ => cancelled("may still be running"),
    }
}

fn cancelled(reason: &str) -> Outcome {
    Outcome::of(Kind::Cancelled, exit::LOST, reason)
}

/// Starts it, and waits until it is in the background. What it writes until then is kept there.
async fn start(host: &Host, agent: &Agent, recipe: &Recipe, teller: &Teller) -> Outcome {
    let command = match recipe.command(host) {
        Ok(command) => command,
        Err(error) => return Outcome::error(&error.into()),
    };
    let mut execution = match agent.executor().execute(command).await {
        Ok(execution) => execution,
        Err(error) => return Outcome::error(&error),
    };
    teller.tell(Event::Started(execution.started().clone())).await;
    while let Some(told) = execution.next().await {
        match told {
            Ok(Told::Promoted) => return Outcome::ok(),
            Ok(Told::Exited(exited)) => return Outcome::exited(exited),
            Ok(_) => {}
            Err(error) => return Outcome::lost(&error),
        }
    }
    Outcome::of(Kind::Lost, exit::LOST, "the agent did not report whether it keeps running")
}

async fn attach(agent: &Agent, id: &ExecutionId, teller: &Teller, stop: &mut Stop) -> Outcome {
    let from = Attach { position: 0, on_disconnect: OnDisconnect::Detach };
    let following = async {
        match agent.executor().attach(id, from).await {
            Ok(mut execution) => follow(&mut execution, teller, &mut 0).await,
            Err(error) => Outcome::error(&error),
        }
    };
    tokio::select! {
        outcome = following => outcome,
        () = stop.wanted() => Outcome::of(Kind::Cancelled, exit::LOST, "detached; keeps running"),
    }
}

async fn check(host: &Host, agent: &Agent, recipe: &Recipe) -> Result<Outcome, ExecutorError> {
    let check = agent.check(&recipe.command(host)?).await?;
    let reason = check.reason.replace(char::is_control, " ");
    Ok(match check.allowed {
        true => Outcome::ok(),
        false => Outcome::of(Kind::Refused, exit::REFUSED, reason),
    })
}

async fn get(host: &Host, agent: &Agent, fleet: &ExecutionId) -> Result<Outcome, ExecutorError> {
    let info = agent.executor().get(&id_on(fleet, &host.name)?).await?;
    let outcome = info.exited.clone().map_or_else(Outcome::ok, Outcome::exited);
    Ok(Outcome { info: Some(info), ..outcome })
}

async fn kill(host: &Host, agent: &Agent, fleet: &ExecutionId, signal: Signal) -> Result<Outcome, ExecutorError> {
    agent.executor().signal(&id_on(fleet, &host.name)?, signal).await.map(|_| Outcome::ok())
}
