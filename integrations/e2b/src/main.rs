//! `telexec-e2b`: E2B's control plane and envd protocols, in front of telexec's agents.
//!
//! A client creates a sandbox (`api`): a free target of the `pool` is claimed, by files on the target itself (`claim`), so that
//! gateways that share targets never give one to two clients, and a gateway that was restarted finds its sandboxes again.
//! With the token of its sandbox the client then calls what envd offers: commands (`process`, `follow`), directories
//! (`filesystem`, `watchers`) and files (`download`, `upload`). Everything is done by the target's agent.

mod api; // the control plane
mod app; // which request goes where
mod args; // the command line
mod auth; // keys, tokens, signatures, users
mod claim; // who has a target
mod cleaning; // a target before and after a sandbox
mod connect; // the Connect protocol
mod connected; // a target's agent, once it was reached
mod download; // GET /files
mod entry; // what is known of a file
mod failure; // why there is no result
mod filesystem; // directories
mod follow; // the stream of a process
mod guests; // callers that are not known yet
mod home; // what is removed when a sandbox ends
mod listing; // sandboxes in pages
mod local; // who may ask where no key is asked for
mod metrics; // what a machine has, and uses
mod pool; // all targets
mod process; // commands and terminals
mod room; // for requests in memory
mod sandbox; // a target that a client has
mod serve; // sockets and connections
mod target; // one machine
mod times; // as JSON has them
mod unread; // bodies that were not read
mod upload; // POST /files
mod watchers; // changes of directories

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use telexec_client::TlsOptions;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use tracing_subscriber::EnvFilter;

use crate::app::App;
use crate::args::{Args, Listen};
use crate::auth::Keys;
use crate::pool::Pool;
use crate::room::Room;
use crate::serve::Listener;
use crate::target::Settings;

const DEFAULT_FILTER: &str = "warn,telexec_e2b=info";
/// For what was begun.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let is_terminal = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(is_terminal).init();
    // the only one that is built in: whoever sets it first, it is this one
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let served = tokio::runtime::Runtime::new().map_err(Error::from).and_then(|runtime| runtime.block_on(run(args)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// An error with its causes, in one line; what a cause only repeats is left out.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.ends_with(&cause) { text } else { format!("{text}: {cause}") }
    })
}

/// Until SIGTERM or SIGINT. Sandboxes live on, and are taken up by the next process with the same name.
async fn run(args: Args) -> Result<(), Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminated, mut interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    if args.token_file.is_none() && !args.listen.is_local() {
        return Err(format!(
            "{} can be reached by others: give --token-file, with the API keys to accept",
            args.listen
        )
        .into());
    }
    if let (Some(home), Some(state)) = (&args.home, &args.state_dir)
        && (home::is_within(state, home) || home::is_within(home, state))
    {
        return Err(format!("--home {home} is emptied: --state-dir {state} must be elsewhere").into());
    }
    if args.tls_cert.is_none() && !args.listen.is_local() {
        warn!("{} is served without TLS: keys and tokens can be read on the way (--tls-cert)", args.listen);
    }
    let keys = Keys::read(args.token_file.as_deref())?;
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => Some(serve::acceptor(cert, key)?),
        _ => None,
    };
    let pool = Arc::new(Pool::new(&args, &Arc::new(settings(&args))));
    let app = App {
        pool: Arc::clone(&pool),
        keys,
        // browsers do not reach Unix sockets
        is_local: args.token_file.is_none() && matches!(args.listen, Listen::Tcp(_)),
        max_timeout: args.max_timeout,
        max_file_size: args.max_file_size,
        room: Room::default(),
    };
    let listener = Listener::bind(&args.listen).await?;
    let stop = CancellationToken::new();
    pool.keep(&stop);
    info!("listening on {}", args.listen);
    tokio::select! {
        () = serve::serve(listener, tls, Arc::new(app), &stop) => {}
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
    info!("stopping: sandboxes live on, and are found again by --name");
    stop.cancel();
    let _ = tokio::time::timeout(STOP_TIMEOUT, pool.settled()).await;
    Ok(())
}

fn settings(args: &Args) -> Settings {
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let tls = match (&args.cert, &args.key, &args.ca) {
        (Some(cert), Some(key), Some(ca)) => Some(TlsOptions::new(cert, key, ca)),
        _ => None,
    };
    Settings {
        owner: args.name.clone().unwrap_or_else(|| format!("{}/{}", host(), args.listen)),
        user: args.user.clone(),
        home: args.home.clone(),
        state_directory: args.state_dir.clone(),
        tls,
        max_pause: args.max_pause,
    }
}
