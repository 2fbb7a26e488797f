//! The subcommands, one module each.

mod attach;
mod certs;
mod check;
mod completions;
mod config;
mod exec;
mod fleet;
mod info;
mod input;
mod kill;
mod man;
mod mcp;
mod ps;
mod tool;

use std::future::Future;

use tokio::runtime::Builder;
use tracing_subscriber::filter::LevelFilter;

pub(crate) use self::completions::complete;
use crate::args::{Cli, Subcommand};
use crate::output::{Failure, exit};

/// Does what was asked and returns the exit code.
pub(crate) fn run(cli: Cli) -> u8 {
    let done = match cli.subcommand {
        Subcommand::Exec(args) => connected(args.connect.log_level, exec::run(*args)),
        Subcommand::Fleet(args) => with(Builder::new_multi_thread(), args.log_level(), fleet::run(*args)),
        Subcommand::Check(args) => connected(args.connect.log_level, check::run(*args)),
        Subcommand::Ps(args) => connected(args.connect.log_level, ps::run(args)),
        Subcommand::Attach(args) => connected(args.connect.log_level, attach::run(args)),
        Subcommand::Input(args) => connected(args.connect.log_level, input::run(args)),
        Subcommand::Kill(args) => connected(args.connect.log_level, kill::run(args)),
        Subcommand::Tool(args) => connected(args.connect.log_level, tool::run(args)),
        Subcommand::Mcp(args) => with(Builder::new_multi_thread(), args.connect.log_level, mcp::run(args)),
        Subcommand::Ping(args) => connected(args.connect.log_level, info::ping(args)),
        Subcommand::Info(args) => connected(args.connect.log_level, info::info(args)),
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

/// Runs what needs one connection: on this thread, which saves the time that others take to start and to be woken.
fn connected(level: LevelFilter, work: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    with(Builder::new_current_thread(), level, work)
}

/// Runs what needs the network, with logging.
fn with(
    mut runtime: Builder,
    level: LevelFilter,
    work: impl Future<Output = Result<u8, Failure>>,
) -> Result<u8, Failure> {
    // what cannot be logged is no reason to panic
    let log = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr);
    log.log_internal_errors(false).init();
    let runtime = runtime.enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(exit::LOST, &error).during("cannot start"))?;
    let done = runtime.block_on(work);
    // a thread that waits, such as for whoever reads standard error, must not hold up the exit
    runtime.shutdown_background();
    done
}
