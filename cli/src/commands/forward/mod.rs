//! `telexec forward`: ports and Unix sockets here and on the agent's machine, connected to one another.

mod local;
mod remote;
mod socks;

use std::io::Write;
use std::time::Duration;

use telexec_client::{Dial, Endpoint, ForwardError, Forwards, LocalListener};
use telexec_executor::ExecutorError;
use tokio::task::JoinSet;

use crate::args::ForwardArgs;
use crate::connect::{call_failure, with_forwards};
use crate::output::{Failure, exit, print_message_async, printable, with_causes};
use crate::syntax::{Destination, Forwarding};

/// An address cannot be listened on, or connected to.
const FAILED: u8 = 1;
/// How many connections one socket may have at once.
const MAX_CONNECTIONS: usize = 1024;

pub(crate) async fn run(args: ForwardArgs) -> Result<u8, Failure> {
    if args.user.is_some() && !args.local.iter().any(|forwarding| matches!(forwarding.to, Endpoint::Unix(_))) {
        return Err(Failure::message(exit::USAGE, "--user is for Unix sockets, and no -L leads to one"));
    }
    with_forwards(&args.agent.target, &args.connect, async |forwards| forward(&args, forwards).await).await.map(|()| 0)
}

/// Returns when nothing can be forwarded any more.
async fn forward(args: &ForwardArgs, forwards: &Forwards) -> Result<(), Failure> {
    let user = args.user.clone();
    let mut running = Running::new(forwards, &args.agent.target, user, args.reconnect.reconnect);
    for forwarding in &args.local {
        let at = running.start(&Wanted::Local(forwarding.clone())).await?;
        say(&format!("-L {at} -> {}", forwarding.to))?;
    }
    for listen in &args.dynamic {
        let at = running.start(&Wanted::Dynamic(listen.clone())).await?;
        say(&format!("-D {at}"))?;
    }
    for forwarding in &args.remote {
        let at = running.start(&Wanted::Remote(forwarding.clone())).await?;
        say(&format!("-R {at} -> {}", forwarding.to))?;
    }
    running.ended().await
}

/// One of the flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Local(Forwarding),
    Remote(Forwarding),
    Dynamic(Endpoint),
}

/// What is forwarded until this is dropped.
pub(super) struct Running {
    forwards: Forwards,
    target: Destination,
    /// Who connects to Unix sockets of the agent's machine; `None`: the agent's own user.
    user: Option<String>,
    /// For how long a lost connection is tried again.
    reconnect: Duration,
    tasks: JoinSet<Result<(), Failure>>,
}

impl Running {
    pub(super) fn new(forwards: &Forwards, target: &Destination, user: Option<String>, reconnect: Duration) -> Self {
        Self { forwards: forwards.clone(), target: target.clone(), user, reconnect, tasks: JoinSet::new() }
    }

    /// Returns where it listens.
    pub(super) async fn start(&mut self, wanted: &Wanted) -> Result<Endpoint, Failure> {
        let (forwards, target) = (self.forwards.clone(), self.target.clone());
        let (listen, service) = match wanted {
            Wanted::Local(Forwarding { listen, to }) => {
                (listen, local::Service::To(Dial::with_user(to.clone(), self.user.as_deref())))
            }
            Wanted::Dynamic(listen) => (listen, local::Service::Socks),
            Wanted::Remote(Forwarding { listen, to }) => {
                let listening = forwards.listen(listen).await.map_err(|error| failure(&target, &error))?;
                let at = listening.endpoint().clone();
                self.tasks.spawn(remote::serve(
                    listening,
                    listen.clone(),
                    to.clone(),
                    forwards,
                    target,
                    self.reconnect,
                ));
                return Ok(at);
            }
        };
        let listener = bind(listen).await?;
        let at = listener.endpoint().clone();
        self.tasks.spawn(local::serve(listener, service, forwards, target));
        Ok(at)
    }

    /// Returns when one of them cannot go on; never, if there is none.
    pub(super) async fn ended(&mut self) -> Result<(), Failure> {
        match self.tasks.join_next().await {
            Some(Ok(done)) => done,
            Some(Err(error)) => Err(Failure::new(exit::LOST, &error)),
            None => std::future::pending().await,
        }
    }
}

async fn bind(endpoint: &Endpoint) -> Result<LocalListener, Failure> {
    let bound = LocalListener::bind(endpoint).await;
    bound.map_err(|error| Failure::new(FAILED, &error).context(format_args!("cannot listen on {endpoint}")))
}

/// For scripts that wait for the socket, or asked for any port.
fn say(line: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    let said = writeln!(stdout, "{}", printable(line)).and_then(|()| stdout.flush());
    said.map_err(|error| Failure::new(exit::BROKEN_PIPE, &error).context("cannot write to standard output"))
}

/// The failure of a forward.
pub(super) fn failure(target: &Destination, error: &ForwardError) -> Failure {
    match error {
        ForwardError::Call(error) => call_failure(exit::of_error(error), target, error),
        error => Failure::message(FAILED, printable(&with_causes(error))).context(target),
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
