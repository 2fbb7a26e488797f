//! `telexec mcp`: the tools of targets, for a client that speaks the Model Context Protocol on standard input and
//! output.
//!
//! `server` is what a client sees, `machine` where its commands run, `progress` what it is told meanwhile, `transport`
//! its going.

mod machine;
mod progress;
mod server;
mod transport;

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;

use futures_util::future::join_all;
use rmcp::service::{ServerInitializeError, serve_server_with_ct};
use tokio_util::sync::CancellationToken;

use self::machine::Machine;
use self::server::{Host, Server};
use self::transport::Watched;
use super::tool::tools;
use crate::args::McpArgs;
use crate::config::Config;
use crate::output::{Failure, exit};
use crate::terminal::Signals;

/// What came on standard input was not MCP.
const NOT_MCP: u8 = 1;

pub(crate) async fn run(args: McpArgs) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    let machines = machines(&args)?;
    let hosts = machines.iter().map(|machine| {
        let tools = tools(&args.options, machine.user(), Arc::clone(machine), None);
        Host { name: machine.name(), tools }
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
    let closed = join_all(machines.iter().map(|machine| machine.close())).await;
    done.and_then(|code| closed.into_iter().collect::<Result<(), _>>().map(|()| code))
}

fn machines(args: &McpArgs) -> Result<Vec<Arc<Machine>>, Failure> {
    let config = Config::load()?;
    let mut seen = HashSet::new();
    if let Some(twice) = args.targets.iter().find(|target| !seen.insert(*target)) {
        return Err(Failure::text(exit::USAGE, format!("{twice}: given twice")));
    }
    let machine = |target| Ok(Arc::new(Machine::new(target, config.place(target, &args.connect)?)));
    args.targets.iter().map(machine).collect()
}

/// Until the client goes, or the token is cancelled; every call has come to its end then.
async fn serve(server: Server, stop: CancellationToken) -> Result<u8, Failure> {
    let transport = Watched::new(tokio::io::stdin(), tokio::io::stdout(), stop.clone());
    let running = match serve_server_with_ct(server, transport, stop.clone()).await {
        Ok(running) => running,
        Err(ServerInitializeError::Cancelled | ServerInitializeError::ConnectionClosed(_)) => return Ok(0),
        Err(error) => {
            let failure = Failure::new(NOT_MCP, &error).during("the client on standard input");
            return Err(failure.advice(Some("an MCP client is meant to start this: see `telexec mcp --help`")));
        }
    };
    running.waiting().await.map_err(|error| Failure::new(exit::LOST, &error))?;
    Ok(0)
}
