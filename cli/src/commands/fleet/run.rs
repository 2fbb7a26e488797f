//! `telexec fleet` without a subcommand: runs a command on all hosts, or lists them.

use std::sync::Arc;

use super::background;
use super::command::CommandTemplate;
use super::event::Kind;
use super::habits;
use super::hosts::{self, Host};
use super::input::SharedInput;
use super::operation::operate;
use super::printer::{Printing, Reports};
use super::results::Results;
use super::worker::Job;
use crate::args::{FleetArgs, OutputArgs};
use crate::config::Config;
use crate::output::{self, Failure, exit};

pub(crate) async fn run(mut args: FleetArgs) -> Result<u8, Failure> {
    args.schedule.parallel.apply_connect_timeout(&mut args.connect);
    args.connect.queue = args.queue.queue;
    if args.command.stdin && args.hosts.reads_stdin() {
        return Err(Failure::message(
            exit::USAGE,
            "standard input cannot be both the list of hosts and the command's input",
        )
        .hint(Some("use a file for --hosts-file, or omit -i")));
    }
    let config = Config::load()?;
    let hosts: Arc<[Host]> = hosts::find(&args.hosts, Some(&args.command), &args.connect, &config).await?.into();
    if args.list_hosts {
        return hosts::list(&hosts, args.output.gather).map(|()| 0);
    }
    if args.command.detach {
        return background::start(args, hosts, &config).await;
    }
    let (dry_run, stdin) = (args.command.dry_run, args.command.stdin);
    if args.command.receipt && args.output.outdir.is_none() && !args.output.json {
        return Err(Failure::message(exit::USAGE, "--receipt: no receipt would be shown")
            .hint(Some("use --receipt with --outdir DIR, --json or -d")));
    }
    let schedule = args.schedule.schedule(&config);
    let argv = Some(args.command.command.argv.clone()).filter(|_| !args.output.json && !args.output.quiet);
    let template = CommandTemplate::new(args.command, None)?;
    if dry_run {
        let reports = Reports::Nothing;
        let printing = Printing { reports, ..Printing::new(&args.output, hosts.len()) };
        let results = operate(hosts, Job::Check(template), &schedule, printing).await?;
        return print_check(&results, &args.output);
    }
    let input = stdin.then(SharedInput::start).transpose();
    let input = input.map_err(|error| Failure::new(exit::LOST, &error).context("cannot read standard input"))?;
    let printing = Printing::new(&args.output, hosts.len());
    let results = operate(hosts, Job::Run(template, input, args.reconnect), &schedule, printing).await?;
    let is_missing = results.outcomes().any(|(_, outcome)| outcome.code == exit::NOT_FOUND);
    if let Some(hint) = argv.filter(|_| is_missing).and_then(|argv| habits::missing_program(&argv)) {
        output::print_message(&hint);
    }
    Ok(results.exit_code(args.output.max_code))
}

/// Prints the result of a dry run.
fn print_check(results: &Results, output: &OutputArgs) -> Result<u8, Failure> {
    if !output.json {
        let words = |words: String| if words == Kind::Ok.label() { "allowed".to_owned() } else { words };
        let lines = results.by_outcome(|_| true).into_iter().map(|(end, hosts)| format!("{hosts}: {}\n", words(end)));
        output::print(lines.collect::<String>().as_bytes())?;
    }
    Ok(results.exit_code(output.max_code))
}
