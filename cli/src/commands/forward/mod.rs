//! `telexec forward`: ports and Unix sockets here and on the agent's machine, connected to one another.

mod listener;
mod local;
mod remote;
mod socks;

use std::io::Write;

use telexec_client::{Endpoint, ForwardError, Forwards};
use telexec_executor::ExecutorError;
use tokio::task::JoinSet;

use self::listener::Listener;
use crate::args::ForwardArgs;
use crate::connect::{call_failure, with_forwards};
use crate::output::{Failure, exit, print_message_async};
use crate::syntax::Destination;

/// An address cannot be listened on, or connected to.
const FAILED: u8 = 1;

pub(crate) async fn run(args: ForwardArgs) -> Result<u8, Failure> {
    with_forwards(&args.agent.target, &args.connect, async |forwards| forward(&args, forwards).await).await.map(|()| 0)
}

/// Returns when nothing can be forwarded any more.
async fn forward(args: &ForwardArgs, forwards: &Forwards) -> Result<(), Failure> {
    let target = &args.agent.target;
    let mut tasks = JoinSet::new();
    for forwarding in &args.local {
        let listener = bind(&forwarding.listen).await?;
        say(&format!("-L {} -> {}", listener.endpoint(), forwarding.to))?;
        tasks.spawn(local::serve(
            listener,
            local::Service::To(forwarding.to.clone()),
            forwards.clone(),
            target.clone(),
        ));
    }
    for listen in &args.dynamic {
        let listener = bind(listen).await?;
        say(&format!("-D {}", listener.endpoint()))?;
        tasks.spawn(local::serve(listener, local::Service::Socks, forwards.clone(), target.clone()));
    }
    for forwarding in &args.remote {
        let listening = forwards.listen(&forwarding.listen).await.map_err(|error| failure(target, &error))?;
        say(&format!("-R {} -> {}", listening.endpoint(), forwarding.to))?;
        let limit = args.reconnect.reconnect;
        tasks.spawn(remote::serve(listening, forwarding.to.clone(), forwards.clone(), target.clone(), limit));
    }
    match tasks.join_next().await {
        Some(Ok(done)) => done,
        Some(Err(error)) => Err(Failure::new(exit::LOST, &error)),
        None => Ok(()),
    }
}

async fn bind(endpoint: &Endpoint) -> Result<Listener, Failure> {
    let bound = Listener::bind(endpoint).await;
    bound.map_err(|error| Failure::new(FAILED, &error).context(format_args!("cannot listen on {endpoint}")))
}

/// For scripts that wait for the socket, or asked for any port.
fn say(line: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    let said = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    said.map_err(|error| Failure::new(exit::BROKEN_PIPE, &error).context("cannot write to standard output"))
}

/// The failure of a forward.
pub(super) fn failure(target: &Destination, error: &ForwardError) -> Failure {
    match error {
        ForwardError::Call(error) => call_failure(exit::of_error(error), target, error),
        error => Failure::new(FAILED, error).context(target),
    }
}

/// Tells of a connection that failed; what was reset without a fault of anyone is no news.
async fn report(target: &Destination, error: &ForwardError) {
    let is_ordinary = match error {
        ForwardError::Failed(failure) => failure.step == telexec_client::ForwardStep::Carry,
        ForwardError::Here(_) => true,
        ForwardError::Call(ExecutorError::ShuttingDown) => false,
        _ => false,
    };
    if !is_ordinary {
        print_message_async(failure(target, error).to_string()).await;
    }
}
