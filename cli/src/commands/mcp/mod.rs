//! `telexec mcp`: serves the tools of targets over the Model Context Protocol on standard input and output.
//!
//! `server` is the protocol, `lazy_target` runs the commands, `progress` sends their output meanwhile, and `transport`
//! detects that the client is gone.

mod lazy_target;
mod progress;
mod server;
mod transport;

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;

use futures_util::future::join_all;
use rmcp::service::{ServerInitializeError, serve_server_with_ct};
use tokio_util::sync::CancellationToken;

use self::lazy_target::LazyTarget;
use self::server::{Server, TargetTools};
use self::transport::NotifyOnClose;
use super::tool::tools;
use crate::args::McpArgs;
use crate::config::Config;
use crate::output::{Failure, exit};
use crate::terminal::Signals;

/// Standard input is not MCP.
const NOT_MCP: u8 = 1;

pub(crate) async fn run(args: McpArgs) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    let targets = targets(&args)?;
    let hosts = targets.iter().map(|target| {
        let tools = tools(&args.options, target.user(), Arc::clone(target), None);
        TargetTools { name: target.name(), tools }
    });
    let stop = CancellationToken::new();
    let mut served = pin!(serve(Server::new(hosts.collect()), stop.clone()));
    let done = tokio::select! {
        done = &mut served => done,
        code = signals.exit_code() => {
            stop.cancel();
            let _ = served.await;
            Err(Failure::silent(code))
        }
    };
    let closed = join_all(targets.iter().map(|target| target.close())).await;
    done.and_then(|code| closed.into_iter().collect::<Result<(), _>>().map(|()| code))
}

fn targets(args: &McpArgs) -> Result<Vec<Arc<LazyTarget>>, Failure> {
    let config = Config::load()?;
    let mut seen = HashSet::new();
    if let Some(twice) = args.targets.iter().find(|target| !seen.insert(*target)) {
        return Err(Failure::message(exit::USAGE, format!("{twice}: given twice")));
    }
    let target = |target| Ok(Arc::new(LazyTarget::new(target, config.resolve(target, &args.connect)?)));
    args.targets.iter().map(target).collect()
}

/// Runs until the client is gone or the token is cancelled; all calls have ended when it returns.
async fn serve(server: Server, stop: CancellationToken) -> Result<u8, Failure> {
    let transport = NotifyOnClose::new(tokio::io::stdin(), tokio::io::stdout(), stop.clone());
    let running = match serve_server_with_ct(server, transport, stop.clone()).await {
        Ok(running) => running,
        Err(ServerInitializeError::Cancelled | ServerInitializeError::ConnectionClosed(_)) => return Ok(0),
        Err(error) => {
            let failure = Failure::new(NOT_MCP, &error).context("the client on standard input");
            return Err(failure.hint(Some("an MCP client is meant to start this: see `telexec mcp --help`")));
        }
    };
    running.waiting().await.map_err(|error| Failure::new(exit::LOST, &error))?;
    Ok(0)
}
