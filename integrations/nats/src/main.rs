//! `telexec-nats`: runs beside an agent that cannot be dialled, and takes its commands from a NATS server.
//!
//! A request is a message of a JetStream work queue (`work`), which stays there until all is said of it. Who sent it is
//! known by a signature (`callers`). It is run once (`run`), and what comes of it are messages of the execution's own
//! subject (`outlet`). What concerns executions that run is asked and answered (`control`).

mod agents; // this program's connections to the agent
mod args; // the command line
mod callers; // whose messages are accepted
mod control; // requests about executions that run
mod headers; // of messages, by name
mod outlet; // the events of one execution
mod payload; // JSON or binary
mod run; // one request, from the queue to its end
mod server; // the connection to NATS, streams and consumers
mod work; // the queue

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info};
use tracing_subscriber::EnvFilter;

use crate::agents::Agents;
use crate::args::Args;
use crate::callers::Callers;
use crate::server::{Server, label_address, run_subject};
use crate::work::Busy;

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn,telexec_nats=info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
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

/// An error with its causes, in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Until SIGTERM or SIGINT.
async fn serve(args: Args) -> Result<(), Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminated, mut interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    let serving = async {
        let callers = Callers::load(&args)?;
        let agents = Agents::connect(&args, &callers).await?;
        let name = agents.name(args.name.as_deref()).await?;
        let server = Server::connect(&args, &name).await?;
        info!(agent = %name, server = %args.url, "ready");
        let labels = args.labels.iter().map(|label| run_subject(&label_address(label))).collect();
        let (busy, stop) = (Busy::default(), stop.clone());
        let bridge = Arc::new(Bridge { name, labels, server, agents, callers, busy, stop });
        let tasks = TaskTracker::new();
        tasks.spawn(control::serve(Arc::clone(&bridge)));
        for queue in bridge.server.queues(&args).await? {
            tasks.spawn(work::serve(Arc::clone(&bridge), queue, args.concurrency, tasks.clone()));
        }
        tasks.close();
        tasks.wait().await;
        bridge.server.flush().await;
        Ok(())
    };
    tokio::pin!(serving);
    tokio::select! {
        served = &mut serving => return served,
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
    info!("stopping: what runs continues, and is followed by the next start");
    stop.cancel();
    tokio::time::timeout(std::time::Duration::from_secs(5), serving).await.unwrap_or(Ok(()))
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
    /// This program is to end.
    pub(crate) stop: CancellationToken,
}
