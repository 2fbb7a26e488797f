//! What telexec costs, beside what it is compared with, in one table: `tests/benches/run`.
//!
//! Every figure stands beside its baseline, measured in the same run and taking turns with it, so that the ratios hold on a
//! machine that is busy with other things: each is the median of the ratios of neighbouring blocks. Arguments:
//!
//! - `--short`: about a minute, to see that it runs
//! - `--json FILE`: the same figures for programs
//! - any of the groups that [`GROUPS`] names; default: all but those that [`OPTIONAL`] names

mod contest;
mod copy;
mod forward;
mod held;
mod latency;
mod lines;
mod machine;
mod many;
mod nats;
mod peers;
mod process;
mod python;
mod rate;
mod relay;
mod shares;
mod stream;
mod table;
mod way;

use std::path::PathBuf;

use futures_util::future::LocalBoxFuture;

use crate::table::Table;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
type Measure = for<'a> fn(&'a Plan, &'a mut Table) -> LocalBoxFuture<'a, Result<()>>;

const GROUPS: [(&str, Measure); 23] = [
    ("latency", |plan, table| Box::pin(latency::warm(plan, table))),
    ("keeper", |plan, table| Box::pin(latency::kept(plan, table))),
    ("started", |plan, table| Box::pin(latency::started(plan, table))),
    ("first-byte", |plan, table| Box::pin(latency::first_byte(plan, table))),
    ("guards", |plan, table| Box::pin(latency::guarded(plan, table))),
    ("rate", |plan, table| Box::pin(rate::rate(plan, table))),
    ("shares", |plan, table| Box::pin(shares::shares(plan, table))),
    ("stream", |plan, table| Box::pin(stream::streams(plan, table))),
    ("many-streams", |plan, table| Box::pin(many::streams(plan, table))),
    ("lines", |plan, table| Box::pin(lines::lines(plan, table))),
    ("process", |plan, table| Box::pin(process::whole_processes(plan, table))),
    ("cancel", |plan, table| Box::pin(held::cancel(plan, table))),
    ("held", |plan, table| Box::pin(held::held(plan, table))),
    ("connections", |plan, table| Box::pin(held::connected(plan, table))),
    ("copy", |plan, table| Box::pin(copy::large(plan, table))),
    ("small-files", |plan, table| Box::pin(copy::small(plan, table))),
    ("sshfs", |plan, table| Box::pin(copy::mounted(plan, table))),
    ("forward", |plan, table| Box::pin(forward::forward(plan, table))),
    ("nats", |plan, table| Box::pin(nats::nats(plan, table))),
    ("python", |plan, table| Box::pin(python::package(plan, table))),
    ("e2b", |plan, table| Box::pin(python::e2b(plan, table))),
    ("peers", |plan, table| Box::pin(peers::peers(plan, table))),
    ("agent", |plan, table| Box::pin(process::agent(plan, table))),
];

/// Only measured if they are named: they need what is seldom installed.
const OPTIONAL: [&str; 1] = ["peers"];

/// How much is measured.
pub(crate) struct Plan {
    short: bool,
    json: Option<PathBuf>,
    groups: Vec<String>,
}

impl Plan {
    fn from_arguments() -> Result<Self> {
        let mut plan = Self { short: false, json: None, groups: Vec::new() };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--short" => plan.short = true,
                "--json" => plan.json = Some(arguments.next().ok_or("--json needs a file")?.into()),
                // cargo's own
                "--bench" => {}
                name if GROUPS.iter().any(|(group, _)| *group == name) => plan.groups.push(name.to_owned()),
                other => return Err(format!("no such group: {other}").into()),
            }
        }
        Ok(plan)
    }

    fn wants(&self, group: &str) -> bool {
        self.groups.is_empty() && !OPTIONAL.contains(&group) || self.groups.iter().any(|other| other == group)
    }

    /// So many, or a few.
    pub(crate) fn some(&self, usual: usize) -> usize {
        if self.short { (usual / 40).max(2) } else { usual }
    }
}

fn main() -> Result<()> {
    if lines::is_asked_to_write()? {
        return Ok(());
    }
    let plan = Plan::from_arguments()?;
    machine::raise_file_limit();
    println!("{}", machine::described());
    // one thread, as in a client that has one: the agent has one too, and there may be but two processors
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut table = Table::default();
    for (name, measure) in GROUPS.iter().filter(|(name, _)| plan.wants(name)) {
        table.begin(name);
        runtime.block_on(measure(&plan, &mut table))?;
    }
    match &plan.json {
        Some(path) => Ok(std::fs::write(path, table.json(&machine::described()))?),
        None => Ok(()),
    }
}
