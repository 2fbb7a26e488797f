//! `telexec fleet ps` without an ID and hosts: the runs that were started from this machine, with their states now.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use telexec_executor::ListQuery;

use super::background::recorded_host;
use super::command::execution_id_on;
use super::event::{Answer, Kind, Outcome};
use super::hosts::HostResolver;
use super::operation::operate;
use super::printer::{Printing, Reports};
use super::record::{FleetRecord, HostRecord};
use super::show::Silent;
use super::worker::Job;
use crate::args::FleetPsArgs;
use crate::config::Config;
use crate::output::{self, Failure, json, printable, table};
use crate::syntax::fold;
use crate::terminal;

/// Hosts of old runs may be gone for good: a list must not wait long for them.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The host cannot be asked, as its credentials are not configured any more.
const UNKNOWN: &str = "unknown";

/// How many hosts of a run are in each state.
type States = BTreeMap<String, usize>;

pub(super) async fn list(mut args: FleetPsArgs) -> Result<u8, Failure> {
    let config = Config::load()?;
    args.connect.connect_timeout = args.connect.connect_timeout.or(Some(CONNECT_TIMEOUT));
    let fleets = FleetRecord::all()?;
    let answers = ask(&fleets, &args, &config).await?;
    let fleets = fleets.iter().map(|fleet| (fleet, states(fleet, &answers)));
    let text = match args.json {
        true => fleets.map(|(fleet, states)| json_line(fleet, &states)).collect(),
        false => {
            let heading = ["ID", "STATE", "STARTED", "HOSTS", "COMMAND"].map(str::to_owned);
            let rows: Vec<_> =
                std::iter::once(heading).chain(fleets.map(|(fleet, states)| row(fleet, &states))).collect();
            table(&rows, terminal::output_width().filter(|_| !args.no_trunc))
        }
    };
    output::print(text.as_bytes()).map(|()| 0)
}

/// What each host of the runs answers, once for all runs.
async fn ask<'a>(
    fleets: &'a [FleetRecord],
    args: &FleetPsArgs,
    config: &Config,
) -> Result<BTreeMap<&'a HostRecord, Outcome>, Failure> {
    let resolver = HostResolver::new(config, &args.connect, args.hosts.port);
    let mut hosts = BTreeMap::new();
    for record in fleets.iter().flat_map(|fleet| &fleet.hosts) {
        // what cannot be resolved any more is in an unknown state
        if let Ok(host) = recorded_host(&resolver, record) {
            hosts.insert(record, host);
        }
    }
    let (records, hosts): (Vec<_>, Vec<_>) = hosts.into_iter().unzip();
    let job = Job::List(ListQuery { include_exited: true, ..ListQuery::default() });
    let printing = Printing { show: Box::new(Silent), outdir: None, reports: Reports::Nothing, json_summary: false };
    let results = operate(hosts.into(), job, &args.parallel.schedule(config), printing).await?;
    Ok(records.into_iter().zip(results.outcomes().map(|(_, outcome)| outcome.clone())).collect())
}

fn states(fleet: &FleetRecord, answers: &BTreeMap<&HostRecord, Outcome>) -> States {
    let mut states = States::new();
    for host in &fleet.hosts {
        *states.entry(state(fleet, host, answers.get(host))).or_default() += 1;
    }
    states
}

fn state(fleet: &FleetRecord, host: &HostRecord, answer: Option<&Outcome>) -> String {
    let id = fleet.id.parse().and_then(|fleet| execution_id_on(&fleet, &host.name));
    match (answer.map(|outcome| (&outcome.answer, outcome.kind)), id) {
        (Some((Some(Answer::Executions(executions)), _)), Ok(id)) => executions
            .iter()
            .find(|info| info.id == id)
            .map_or_else(|| Kind::NotFound.label().to_owned(), output::state),
        (Some((None, kind)), _) => kind.label().to_owned(),
        _ => UNKNOWN.to_owned(),
    }
}

fn row(fleet: &FleetRecord, states: &States) -> [String; 5] {
    let age = SystemTime::now().duration_since(fleet.start_time).unwrap_or(Duration::ZERO);
    let hosts = fold(fleet.hosts.iter().map(|host| host.name.as_str()));
    let states: Vec<_> = match states.len() {
        1 => states.keys().cloned().collect(),
        _ => states.iter().map(|(state, count)| format!("{state} ({count})")).collect(),
    };
    let age = format!("{} ago", output::short_duration(age));
    [fleet.id.clone(), states.join(", "), age, hosts, printable(&fleet.command)]
}

fn json_line(fleet: &FleetRecord, states: &States) -> String {
    let hosts: Vec<_> = fleet.hosts.iter().map(|host| &host.name).collect();
    let line = serde_json::json!({
        "fleet_id": fleet.id,
        "start_time": json::time(fleet.start_time),
        "hosts": hosts,
        "command": fleet.command,
        "states": states,
    });
    format!("{line}\n")
}
