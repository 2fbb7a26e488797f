//! `telexec fleet` without a subcommand: runs a command on all hosts, or says which they are.

use std::sync::Arc;

use super::background;
use super::command::Recipe;
use super::event::Kind;
use super::hosts::{self, Host};
use super::input::SharedInput;
use super::operation::operate;
use super::summary::Board;
use super::worker::Job;
use crate::args::{FleetArgs, ShowArgs};
use crate::config::Config;
use crate::output::{self, Failure, exit};

pub(crate) async fn run(mut args: FleetArgs) -> Result<u8, Failure> {
    args.pace.settle(&mut args.connect);
    if args.what.stdin && args.hosts.takes_stdin() {
        return Err(Failure::text(
            exit::USAGE,
            "standard input cannot be both the list of hosts and the command's input",
        )
        .advice(Some("use a file for --hosts-file, or omit -i")));
    }
    let config = Config::load()?;
    let hosts: Arc<[Host]> = hosts::find(&args.hosts, &args.connect, &config).await?.into();
    if args.list_hosts {
        return hosts::list(&hosts, args.show.gather).map(|()| 0);
    }
    if args.what.detach {
        return background::start(args, hosts, &config).await;
    }
    let (dry_run, stdin) = (args.what.dry_run, args.what.stdin);
    let recipe = Recipe::new(args.what, None)?;
    if dry_run {
        args.show.quiet = true;
        let board = operate(hosts, Job::Check(recipe), &args.pace, &args.show, &config).await?;
        return answer(&board, &args.show);
    }
    let input = stdin.then(SharedInput::start).transpose();
    let input = input.map_err(|error| Failure::new(exit::LOST, &error).during("cannot read standard input"))?;
    let board = operate(hosts, Job::Run(recipe, input), &args.pace, &args.show, &config).await?;
    Ok(board.exit_code(args.show.max_code))
}

/// What a dry run found.
fn answer(board: &Board, show: &ShowArgs) -> Result<u8, Failure> {
    if !show.json {
        let words = |words: String| if words == Kind::Ok.words() { "allowed".to_owned() } else { words };
        let lines = board.by_end(|_| true).into_iter().map(|(end, hosts)| format!("{hosts}: {}\n", words(end)));
        output::print(lines.collect::<String>().as_bytes())?;
    }
    Ok(board.exit_code(show.max_code))
}
