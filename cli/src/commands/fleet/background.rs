//! Background runs: `fleet -d` starts one on all hosts; `fleet attach`, `ps` and `kill` act on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use telexec_executor::ExecutionId;

use super::command::CommandTemplate;
use super::event::{Answer, Outcome};
use super::hosts::{self, Host, HostResolver, ServerName};
use super::operation::operate;
use super::printer::{Printing, Reports};
use super::record::{FleetRecord, HostRecord};
use super::results::Results;
use super::show::{Answers, json_lines};
use super::worker::Job;
use super::{queries, runs};
use crate::args::{FleetArgs, FleetAttachArgs, FleetKillArgs, FleetPsArgs, HostArgs};
use crate::config::{Config, ConnectArgs};
use crate::output::{self, Failure, exit, table};
use crate::syntax::{InvalidDestination, fold};

/// Starts the command on all hosts, and prints the ID of the run.
pub(crate) async fn start(args: FleetArgs, hosts: Arc<[Host]>, config: &Config) -> Result<u8, Failure> {
    let id = new_id()?;
    let template = CommandTemplate::new(args.command, Some(id.clone()))?;
    FleetRecord::new(&id, template.text(), &hosts).save()?;
    let line = match args.output.json {
        true => format!("{}\n", serde_json::json!({ "event": "fleet", "fleet_id": id.as_str() })),
        false => format!("{id}\n"),
    };
    // printed before anything runs, so that an interrupted run can be found again
    output::print(line.as_bytes())?;
    let printing = Printing::new(&args.output, hosts.len());
    let results = operate(hosts, Job::Start(template), &args.schedule.schedule(config), printing).await?;
    Ok(results.exit_code(args.output.max_code))
}

/// IDs sort by time.
fn new_id() -> Result<ExecutionId, Failure> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    let id = format!("fleet-{now:012x}-{:04x}", fastrand::u16(..));
    id.parse().map_err(|error: telexec_executor::InvalidCommand| Failure::new(exit::LOST, &error))
}

pub(crate) async fn attach(mut args: FleetAttachArgs) -> Result<u8, Failure> {
    args.parallel.apply_connect_timeout(&mut args.connect);
    args.connect.queue = args.queue.queue;
    let config = Config::load()?;
    let (id, hosts) = select(&args.id, &args.hosts, &args.connect, &config).await?;
    let printing = Printing::new(&args.output, hosts.len());
    let results = operate(hosts, Job::Attach(id, args.reconnect), &args.parallel.schedule(&config), printing).await?;
    Ok(results.exit_code(args.output.max_code))
}

pub(crate) async fn kill(mut args: FleetKillArgs) -> Result<u8, Failure> {
    args.parallel.apply_connect_timeout(&mut args.connect);
    let config = Config::load()?;
    let (id, hosts) = select(&args.id, &args.hosts, &args.connect, &config).await?;
    let job = Job::Signal(id, args.signal);
    let answers = Box::new(Answers::new(hosts.len(), false));
    let printing = Printing { show: answers, outdir: None, reports: Reports::All, json_summary: false };
    let results = operate(hosts, job, &args.parallel.schedule(&config), printing).await?;
    Ok(results.exit_code(false))
}

pub(crate) async fn ps(mut args: FleetPsArgs) -> Result<u8, Failure> {
    args.parallel.apply_connect_timeout(&mut args.connect);
    let Some(id) = args.id.clone() else {
        return if args.hosts.is_given() { queries::ps(args, &Config::load()?).await } else { runs::list(args).await };
    };
    let config = Config::load()?;
    let (id, hosts) = select(&id, &args.hosts, &args.connect, &config).await?;
    // the table has all that there is to report
    let answers = Box::new(Answers::new(hosts.len(), false));
    let printing = Printing { show: answers, outdir: None, reports: Reports::Nothing, json_summary: false };
    let results = operate(hosts, Job::Get(id), &args.parallel.schedule(&config), printing).await?;
    let text = if args.json { as_json(&results)? } else { as_table(&results) };
    output::print(text.as_bytes())?;
    Ok(results.exit_code(false))
}

/// The run with this ID, or with the only recorded one that begins so; and the hosts given, or else those recorded.
async fn select(
    id: &ExecutionId,
    args: &HostArgs,
    connect: &ConnectArgs,
    config: &Config,
) -> Result<(ExecutionId, Arc<[Host]>), Failure> {
    let id = FleetRecord::complete(id)?;
    if args.is_given() {
        return Ok((id, hosts::find(args, None, connect, config).await?.into()));
    }
    let resolver = HostResolver::new(config, connect, args.port);
    let hosts =
        FleetRecord::load(&id)?.hosts.iter().map(|host| recorded_host(&resolver, host)).collect::<Result<_, _>>()?;
    Ok((id, hosts))
}

/// A host of a run, where it was when that was started.
///
/// # Errors
/// Its credentials are incomplete.
pub(super) fn recorded_host(resolver: &HostResolver<'_>, host: &HostRecord) -> Result<Host, Failure> {
    let parsed = host.address.parse();
    let destination =
        parsed.map_err(|error: InvalidDestination| Failure::new(exit::USAGE, &error).context(&host.address))?;
    resolver.host_at(host.name.clone(), destination, ServerName { given: host.server_name.clone(), implied: None })
}

fn as_json(results: &Results) -> Result<String, Failure> {
    let lines = |(host, outcome): (&Host, &Outcome)| json_lines(host, outcome);
    results.outcomes().map(lines).collect::<Result<_, _>>().map_err(|error| Failure::new(exit::LOST, &error))
}

/// The hosts in each state.
fn as_table(results: &Results) -> String {
    let mut states: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (host, outcome) in results.outcomes() {
        let state = match &outcome.answer {
            Some(Answer::Execution(info)) => output::state(info),
            _ => outcome.description(),
        };
        states.entry(state).or_default().push(&host.name);
    }
    let heading = ["STATE", "COUNT", "HOSTS"].map(str::to_owned);
    let row = |(state, hosts): (String, Vec<&str>)| [state, hosts.len().to_string(), fold(hosts)];
    let rows: Vec<_> = std::iter::once(heading).chain(states.into_iter().map(row)).collect();
    table(&rows, None)
}
