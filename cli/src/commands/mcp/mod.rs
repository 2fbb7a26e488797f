//! `telexec mcp`: serves the tools of targets over the Model Context Protocol, on standard input and output or by HTTP.
//!
//! `server` is the protocol, `named_commands` the tools for those, `lazy_target` runs the commands, `progress` sends their
//! output meanwhile, `transport` is standard input and output, and `http` the other one.

mod http;
mod lazy_target;
mod named_commands;
mod progress;
mod server;
mod transport;

use std::collections::HashSet;
use std::pin::pin;
use std::sync::{Arc, OnceLock};

use futures_util::future::{join_all, try_join_all};
use rmcp::service::{ServerInitializeError, serve_server_with_ct};
use telexec_executor::Files;
use telexec_tool::Tool;
use tokio_util::sync::CancellationToken;

use self::http::HttpServer;
use self::lazy_target::LazyTarget;
use self::server::{Calls, Server, TOOLS, TargetTools};
use self::transport::StdioTransport;
use super::tool::{bash, exec_command, file_tools};
use crate::args::{McpArgs, ToolOptions, TypedTarget};
use crate::config::Config;
use crate::connect::check_own_certificate;
use crate::output::{Failure, exit};
use crate::terminal::Signals;

/// Standard input is not MCP.
const NOT_MCP: u8 = 1;

pub(crate) async fn run(args: McpArgs) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    let targets = targets(&args)?;
    let calls = Calls::default();
    let stop = calls.stop.clone();
    let mut served = pin!(serve(&args, &targets, calls));
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

/// Serves until it is stopped, or until the client on standard input is gone. All calls have ended when this returns.
async fn serve(args: &McpArgs, targets: &[Arc<LazyTarget>], calls: Calls) -> Result<u8, Failure> {
    if args.commands {
        return serve_commands(args, targets, calls).await;
    }
    let options = args.options.clone();
    let users: Vec<_> = targets.iter().map(|target| options.user.clone().or(target.user())).collect();
    let Some(address) = args.http.listen else {
        let tools = targets.iter().zip(users).map(|(target, user)| TargetTools {
            name: target.name(),
            tools: tools(&options, user.as_deref(), target),
            sessionless: None,
            user,
        });
        return stdio(Server::new(tools.collect(), &TOOLS, calls.clone()), calls.stop).await;
    };
    let http = HttpServer::bind(address, &args.http).await?;
    // each session has a working directory of its own, and knows the files that it has read; tasks, and how far their
    // output was read, are everybody's
    let shared: Vec<Vec<Arc<dyn Tool>>> =
        targets.iter().zip(&users).map(|(target, user)| task_tools(&options, user.as_deref(), target)).collect();
    let (targets, calls_of_server) = (targets.to_vec(), calls.clone());
    let server = move || {
        let hosts = targets.iter().zip(&users).zip(&shared).map(|((target, user), shared)| {
            let bash = || bash(&options, user.as_deref(), Arc::clone(target));
            let own: Arc<dyn Tool> = Arc::new(bash());
            TargetTools {
                name: target.name(),
                tools: [own]
                    .into_iter()
                    .chain(shared.iter().cloned())
                    .chain(tools_for_files(&options, user.as_deref(), target))
                    .collect(),
                sessionless: Some(Arc::new(bash().keep_directory(false))),
                user: user.clone(),
            }
        });
        Server::new(hosts.collect(), &TOOLS, calls_of_server.clone())
    };
    http.serve(server, calls).await;
    Ok(0)
}

/// The same for the named commands of the targets.
async fn serve_commands(args: &McpArgs, targets: &[Arc<LazyTarget>], calls: Calls) -> Result<u8, Failure> {
    let all = try_join_all(targets.iter().map(|target| named_commands::tools(&args.options, target))).await?;
    let Some(address) = args.http.listen else {
        return stdio(Server::new(all, &named_commands::ABOUT, calls.clone()), calls.stop).await;
    };
    let http = HttpServer::bind(address, &args.http).await?;
    let calls_of_server = calls.clone();
    http.serve(move || Server::new(all.clone(), &named_commands::ABOUT, calls_of_server.clone()), calls).await;
    Ok(0)
}

/// All tools of a target.
fn tools(options: &ToolOptions, user: Option<&str>, target: &Arc<LazyTarget>) -> Vec<Arc<dyn Tool>> {
    let bash: Arc<dyn Tool> = Arc::new(bash(options, user, Arc::clone(target)));
    let tools = [bash].into_iter().chain(task_tools(options, user, target));
    tools.chain(tools_for_files(options, user, target)).collect()
}

fn tools_for_files(options: &ToolOptions, user: Option<&str>, target: &Arc<LazyTarget>) -> Vec<Arc<dyn Tool>> {
    let files: Arc<dyn Files> = Arc::<LazyTarget>::clone(target);
    file_tools(options, user, files).into_tools().into_iter().map(Arc::from).collect()
}

fn task_tools(options: &ToolOptions, user: Option<&str>, target: &Arc<LazyTarget>) -> Vec<Arc<dyn Tool>> {
    let tools = exec_command(options, user, Arc::clone(target)).with_task_tools();
    tools.into_iter().map(Arc::from).collect()
}

fn targets(args: &McpArgs) -> Result<Vec<Arc<LazyTarget>>, Failure> {
    let config = Config::load()?;
    let mut seen = HashSet::new();
    if let Some(twice) = args.targets.iter().find(|target| !seen.insert(&target.destination)) {
        return Err(Failure::message(exit::USAGE, format!("{}: given twice", twice.name)));
    }
    let target = |TypedTarget { name, destination }: &TypedTarget| {
        let resolved = config.resolve(destination, &args.connect)?;
        check_own_certificate(&config, &resolved)?;
        Ok(Arc::new(LazyTarget::new(name, resolved, args.reconnect)))
    };
    args.targets.iter().map(target).collect()
}

/// Runs until the client is gone or the token is cancelled; all calls have ended when it returns.
async fn stdio(server: Server, stop: CancellationToken) -> Result<u8, Failure> {
    let nonsense = Arc::new(OnceLock::new());
    let transport = StdioTransport::new(stop.clone(), Arc::clone(&nonsense));
    let served = serve_server_with_ct(server, transport, stop.clone()).await;
    if let Some(reason) = nonsense.get() {
        return Err(not_mcp(reason));
    }
    match served {
        Ok(running) => running.waiting().await.map(|_| 0).map_err(|error| Failure::new(exit::LOST, &error)),
        Err(ServerInitializeError::Cancelled | ServerInitializeError::ConnectionClosed(_)) => Ok(0),
        Err(ServerInitializeError::ExpectedInitializeRequest(_)) => {
            Err(not_mcp("its first message is not an initialize request"))
        }
        Err(error) => Err(not_mcp(&error.to_string())),
    }
}

fn not_mcp(reason: &str) -> Failure {
    Failure::message(NOT_MCP, format!("the client on standard input does not speak MCP: {reason}"))
        .hint(Some("this command is meant to be started by an MCP client: see `telexec mcp --help`"))
}
