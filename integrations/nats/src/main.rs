//! `telexec-nats`: runs beside an agent that cannot be dialled, and takes its commands from a NATS server.
//!
//! A request is a message of a JetStream work queue (`work`), which stays there until all is said of it. Who sent it is
//! known by a signature (`callers`). It is never started twice (`run`), and what comes of it are messages of the execution's own
//! subject (`outlet`). What concerns executions that run is asked and answered (`control`).

mod agents; // this program's connections to the agent
mod args; // the command line
mod callers; // whose messages are accepted
mod control; // requests about executions that run
mod outlet; // the events of one execution
mod run; // one request, from the queue to its end
mod server; // the connection to NATS, streams and consumers
mod work; // the queue

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use telexec_nats_client::subjects::{self, label_address};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info};
use tracing_subscriber::EnvFilter;

use crate::agents::Agents;
use crate::args::Args;
use crate::callers::Callers;
use crate::server::Server;
use crate::work::Busy;

/// What the library logs of connections is logged here, once.
const DEFAULT_FILTER: &str = "warn,async_nats=off,telexec_nats=info";
/// How long requests that run are let go of in an orderly way.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let is_terminal = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(is_terminal).init();
    // the only one that is built in: whoever sets it first, it is this one
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    match runtime.block_on(serve(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &Error) -> ExitCode {
    error!("{}", chain(&**error));
    ExitCode::FAILURE
}

/// An error with its causes, in one line; what a cause only repeats is left out.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.ends_with(&cause) { text } else { format!("{text}: {cause}") }
    })
}

/// Until SIGTERM or SIGINT.
async fn serve(args: Args) -> Result<(), Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminated, mut interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut signalled = async || {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
    };
    let bridge = tokio::select! {
        bridge = Bridge::start(&args) => bridge?,
        () = signalled() => return Ok(()),
    };
    info!(agent = %bridge.name, target = %args.target, labels = ?args.labels, "ready");
    signalled().await;
    info!("stopping: what runs continues, and is followed by the next start");
    let _ = tokio::time::timeout(STOP_TIMEOUT, bridge.stop()).await;
    Ok(())
}

/// What all tasks share.
pub(crate) struct Bridge {
    /// The agent's, in subjects.
    pub(crate) name: String,
    /// The subjects of its labels.
    pub(crate) labels: Vec<String>,
    pub(crate) server: Server,
    pub(crate) agents: Agents,
    pub(crate) callers: Callers,
    pub(crate) busy: Busy,
    pub(crate) tasks: TaskTracker,
    /// Those that take requests.
    pulling: TaskTracker,
    /// This program is to end: it takes no further requests.
    pub(crate) stop: CancellationToken,
    /// After that: requests are given back to their queues.
    pub(crate) let_go: CancellationToken,
}

impl Bridge {
    /// Connects, and begins to take requests.
    async fn start(args: &Args) -> Result<Arc<Self>, Error> {
        let (callers, nats) = (Callers::load(args)?, server::options(args).await?);
        let agents = Agents::connect(args, &callers).await?;
        let name = agents.name(args.name.as_deref()).await?;
        let server = Server::connect(nats, &name, &args.labels).await?;
        let labels = args.labels.iter().map(|label| subjects::run(&label_address(label))).collect();
        let (busy, stop, let_go) = (Busy::default(), CancellationToken::new(), CancellationToken::new());
        let (tasks, pulling) = (TaskTracker::new(), TaskTracker::new());
        let this = Self { name, labels, server, agents, callers, busy, tasks, pulling, stop, let_go };
        let this = Arc::new(this);
        let slots = Arc::new(Semaphore::new(args.concurrency.into()));
        for queue in this.server.queues(args).await {
            this.pulling.spawn(work::serve(Arc::clone(&this), queue, Arc::clone(&slots), args.concurrency));
        }
        let addresses = args.labels.iter().map(|label| label_address(label));
        for address in std::iter::once(this.name.clone()).chain(addresses) {
            this.tasks.spawn(control::serve(Arc::clone(&this), subjects::control(&address)));
        }
        Ok(this)
    }

    /// Gives requests back, once none is taken any more: otherwise this program would get them again.
    async fn stop(&self) {
        self.stop.cancel();
        self.pulling.close();
        self.pulling.wait().await;
        self.server.flush().await;
        self.let_go.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.server.flush().await;
    }
}
