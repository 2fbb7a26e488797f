//! The subcommands, one module each.

mod approvals;
mod attach;
mod certs;
mod check;
mod completions;
mod config;
mod connect;
mod connections;
mod cp;
mod exec;
mod find;
mod fleet;
mod forward;
mod info;
mod input;
mod kill;
mod logs;
mod man;
mod mcp;
mod named_commands;
mod program;
mod ps;
mod receipt;
mod source;
mod ssh;
mod tool;
mod wait;

use std::future::Future;

use tokio::runtime::Builder;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

pub(crate) use self::completions::complete;
use crate::args::{Cli, Subcommand};
use crate::output::{Failure, exit};

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(cli: Cli) -> u8 {
    let done = match cli.subcommand {
        Subcommand::Exec(args) => run_single_threaded(args.connect.log_level, exec::run(*args)),
        Subcommand::Fleet(args) => run_async(Builder::new_multi_thread(), args.log_level(), fleet::run(*args)),
        Subcommand::Ssh(args) => ssh::run(args.words),
        Subcommand::Check(args) => run_single_threaded(args.exec.connect.log_level, check::run(*args)),
        Subcommand::Cp(args) => run_async(Builder::new_multi_thread(), args.connect.log_level, cp::run(args)),
        Subcommand::Ps(args) => run_single_threaded(args.connect.log_level, ps::run(args)),
        Subcommand::Attach(args) => run_single_threaded(args.connect.log_level, attach::run(args)),
        Subcommand::Logs(args) => run_single_threaded(args.connect.log_level, logs::run(args)),
        Subcommand::Wait(args) => run_single_threaded(args.connect.log_level, wait::run(args)),
        Subcommand::Input(args) => run_single_threaded(args.connect.log_level, input::run(args)),
        Subcommand::Kill(args) => run_single_threaded(args.connect.log_level, kill::run(args)),
        Subcommand::Forward(args) => run_async(Builder::new_multi_thread(), args.connect.log_level, forward::run(args)),
        Subcommand::Connect(args) => run_single_threaded(args.connect.log_level, connect::run(args)),
        Subcommand::Tool(args) => run_single_threaded(args.connect.log_level, tool::run(args)),
        Subcommand::Mcp(args) => run_async(Builder::new_multi_thread(), args.connect.log_level, mcp::run(args)),
        Subcommand::Ping(args) => run_single_threaded(args.connect.log_level, info::ping(args)),
        Subcommand::Info(args) => run_single_threaded(args.connect.log_level, info::info(args)),
        Subcommand::Commands(args) => run_single_threaded(args.connect.log_level, named_commands::run(args)),
        Subcommand::Approvals(args) => run_single_threaded(args.connect.log_level, approvals::run(args)),
        Subcommand::Approve(args) => run_single_threaded(args.connect.log_level, approvals::approve(args)),
        Subcommand::Reject(args) => run_single_threaded(args.connect.log_level, approvals::reject(args)),
        Subcommand::Receipt(args) => run_single_threaded(args.log_level(), receipt::run(args.action)),
        Subcommand::Certs(args) => certs::run(args.action).map(|()| 0),
        Subcommand::Config(args) => config::run(args.action),
        Subcommand::Completions { shell } => completions::print(shell).map(|()| 0),
        Subcommand::Man { dir } => man::run(dir.as_deref()).map(|()| 0),
    };
    done.unwrap_or_else(|failure| {
        failure.print();
        failure.code
    })
}

/// For a single connection: on this thread, which saves starting and waking up others.
fn run_single_threaded(level: LevelFilter, work: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    run_async(Builder::new_current_thread(), level, work)
}

/// Runs a subcommand that needs the network, with logging.
fn run_async(
    mut runtime: Builder,
    level: LevelFilter,
    work: impl Future<Output = Result<u8, Failure>>,
) -> Result<u8, Failure> {
    let filter = Targets::new().with_default(level);
    // its errors are those of a call, which are reported once
    let filter = if level > LevelFilter::ERROR { filter } else { filter.with_target("async_nats", LevelFilter::OFF) };
    // a failure to log must not panic
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    tracing_subscriber::registry().with(log.with_filter(filter)).init();
    let runtime = runtime.enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(exit::LOST, &error).context("cannot start"))?;
    let done = runtime.block_on(work);
    // a blocked thread, such as one that writes to standard error, must not delay the exit
    runtime.shutdown_background();
    done
}
