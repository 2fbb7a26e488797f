//! `telexec-reapi`: runs actions of the Remote Execution API on telexec's agents.
//!
//! A server (BuildGrid) is asked for leases by a session of the Remote Workers API for each target (`bot`). The action of a
//! lease (`action`) is fetched from the content-addressable storage (`cas`, `tree`), laid out on the target (`layout`), of blobs
//! that are kept there (`cache`), run by its agent (`execution`), and what it made is uploaded (`outputs`). The target's files
//! are worked on by an SFTP session with its agent (`sftp`): its disk is never this program's own.

mod action; // one action, from its lease to its result
mod args; // the command line
mod bot; // a session with the server
mod cache; // blobs on a target
mod cas; // the content-addressable storage
mod channel; // connections to the servers
mod digest; // names of blobs
mod execution; // the command, on the target
mod failure; // why there is no result
mod layout; // the directory of an action
mod outputs; // what an action has made
mod owned; // directories of the worker's own
mod platform; // what an action may ask for
#[rustfmt::skip]
mod remoteworkers; // the Remote Workers API
mod sessions; // SFTP sessions that are used again
mod sftp; // many requests about files in flight
mod target; // a machine that runs actions
mod times; // of the steps of an action
mod tree; // the input root

use std::collections::HashSet;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::Channel;
use tracing::{error, info};
use tracing_subscriber::EnvFilter;

use crate::action::Worker;
use crate::args::Args;
use crate::bot::Bot;
use crate::cas::Cas;
use crate::target::Target;
use crate::tree::Directories;

const DEFAULT_FILTER: &str = "warn,telexec_reapi=info";
/// How long actions are ended in an orderly way.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

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

/// Until SIGTERM or SIGINT, or until a target cannot be used at all.
async fn serve(args: Args) -> Result<(), Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminated, mut interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let bots = channel::channel(&args.bots, &args)?;
    let cas = match &args.cas {
        Some(uri) => channel::channel(uri, &args)?,
        None => bots.clone(),
    };
    let cas = Cas::new(cas, &args.instance, args.digest_function);
    let worker = Arc::new(Worker {
        cas,
        directories: Directories::default(),
        max_timeout: args.max_timeout,
        max_output_size: args.max_output_size,
        tasks: TaskTracker::new(),
    });
    let (stop, serving) = (CancellationToken::new(), TaskTracker::new());
    check_targets(&args.targets)?;
    let args = Arc::new(args);
    let mut started = tokio::task::JoinSet::new();
    for target in &args.targets {
        let task = serve_target(target.clone(), Arc::clone(&args), bots.clone(), Arc::clone(&worker), stop.clone());
        started.spawn(serving.track_future(task));
    }
    let ended = tokio::select! {
        _ = terminated.recv() => Ok(()),
        _ = interrupted.recv() => Ok(()),
        Some(ended) = started.join_next() => ended.unwrap_or_else(|error| Err(error.into())),
    };
    info!("stopping: what runs is ended, and given back to the server");
    stop.cancel();
    let stopped = async {
        while started.join_next().await.is_some() {}
        worker.tasks.close();
        worker.tasks.wait().await;
    };
    let _ = tokio::time::timeout(STOP_TIMEOUT, stopped).await;
    ended
}

/// Two bots of one id would take each other's leases.
fn check_targets(targets: &[telexec_client::Target]) -> Result<(), Error> {
    let mut seen = HashSet::new();
    match targets.iter().find(|target| !seen.insert(*target)) {
        Some(target) => Err(format!("--target: {target} is given twice").into()),
        None => Ok(()),
    }
}

async fn serve_target(
    address: telexec_client::Target,
    args: Arc<Args>,
    channel: Channel,
    worker: Arc<Worker>,
    stop: CancellationToken,
) -> Result<(), Error> {
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let bot_id = format!("{}/{address}", args.name.clone().unwrap_or_else(host));
    let Some(target) = stop.run_until_cancelled(Target::open(&address, &bot_id, &args)).await else { return Ok(()) };
    Bot::new(channel, &args.instance, bot_id, worker, Arc::new(target?), stop).serve().await;
    Ok(())
}
