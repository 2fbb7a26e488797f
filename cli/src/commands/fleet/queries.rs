//! Questions to all agents: `fleet ping`, `fleet info`, and `fleet ps` with hosts.

use std::sync::Arc;

use telexec_executor::ListQuery;

use super::hosts::{self, Host};
use super::operation::operate;
use super::printer::{Printing, Reports};
use super::schedule::Schedule;
use super::show::{Answers, JsonAnswers, Show};
use super::worker::Job;
use crate::args::{FleetPsArgs, FleetQueryArgs};
use crate::config::Config;
use crate::output::Failure;

pub(crate) async fn ping(args: FleetQueryArgs) -> Result<u8, Failure> {
    query(args, Job::Ping).await
}

pub(crate) async fn info(args: FleetQueryArgs) -> Result<u8, Failure> {
    query(args, Job::Info).await
}

async fn query(mut args: FleetQueryArgs, job: Job) -> Result<u8, Failure> {
    args.parallel.apply_connect_timeout(&mut args.connect);
    let config = Config::load()?;
    let hosts: Arc<[Host]> = hosts::find(&args.hosts, None, &args.connect, &config).await?.into();
    let answers = Answers::new(hosts.len(), false);
    ask(hosts, job, args.parallel.schedule(&config), answers, args.json, args.quiet).await
}

/// Lists the executions of all hosts.
pub(crate) async fn ps(args: FleetPsArgs, config: &Config) -> Result<u8, Failure> {
    let hosts: Arc<[Host]> = hosts::find(&args.hosts, None, &args.connect, config).await?.into();
    let labels = args.label.iter().cloned().collect();
    let query = ListQuery { include_exited: args.exited, labels, ..ListQuery::default() };
    let answers = Answers::new(hosts.len(), args.no_trunc);
    ask(hosts, Job::List(query), args.parallel.schedule(config), answers, args.json, false).await
}

async fn ask(
    hosts: Arc<[Host]>,
    job: Job,
    schedule: Schedule,
    answers: Answers,
    json: bool,
    quiet: bool,
) -> Result<u8, Failure> {
    let show: Box<dyn Show> = if json { Box::new(JsonAnswers) } else { Box::new(answers) };
    let reports = if json || quiet { Reports::Nothing } else { Reports::All };
    let printing = Printing { show, outdir: None, reports, json_summary: false };
    Ok(operate(hosts, job, &schedule, printing).await?.exit_code(false))
}
