//! `telexec ps`: lists executions.

use std::time::SystemTime;

use telexec_executor::{ExecutionInfo, ListQuery};

use super::find::list;
use crate::args::PsArgs;
use crate::connect::{Session, call_failure};
use crate::output::{self, Failure, command_text, cpu_time, exit, json, printable, short_duration, size, state, table};
use crate::terminal;

pub(super) const HEADING: [&str; 9] = ["ID", "STATE", "PID", "STARTED", "CPU", "MEMORY", "IDENTITY", "USER", "COMMAND"];
/// The column that is omitted if all executions have the same identity.
pub(super) const IDENTITY: usize = 6;

pub(crate) async fn run(args: PsArgs) -> Result<u8, Failure> {
    let session = Session::open(&args.agent.target, &args.connect).await?;
    let labels = args.label.iter().cloned().collect();
    let query = ListQuery { include_exited: args.all, labels, ..ListQuery::default() };
    let executions = list(&session.agent.executor(), query).await;
    session.close().await?;
    let executions = executions.map_err(|error| call_failure(exit::of_error(&error), &args.agent.target, &error))?;
    let text = match (args.quiet, args.json) {
        (true, _) => executions.iter().map(|info| format!("{}\n", info.id)).collect(),
        (false, true) => json_lines(&executions)?,
        (false, false) => as_table(&executions, args.no_trunc),
    };
    output::print(text.as_bytes()).map(|()| 0)
}

fn json_lines(executions: &[ExecutionInfo]) -> Result<String, Failure> {
    let lines = executions.iter().map(json::execution);
    lines.collect::<Result<_, _>>().map_err(|error| Failure::new(exit::LOST, &error))
}

fn as_table(executions: &[ExecutionInfo], whole: bool) -> String {
    let now = SystemTime::now();
    let heading = HEADING.map(str::to_owned).to_vec();
    let mut rows: Vec<_> = std::iter::once(heading).chain(executions.iter().map(|info| row(info, now))).collect();
    if executions.iter().all(|info| Some(&info.identity) == executions.first().map(|first| &first.identity)) {
        for row in &mut rows {
            row.remove(IDENTITY);
        }
    }
    table(&rows, terminal::output_width().filter(|_| !whole))
}

pub(super) fn row(info: &ExecutionInfo, now: SystemTime) -> Vec<String> {
    // the agent's clock may be ahead
    let age = now.duration_since(info.start_time).unwrap_or_default();
    let unknown = || "-".to_owned();
    let [identity, user, text] = [&info.identity, &info.user, &command_text(info)].map(|text| printable(text));
    vec![
        info.id.to_string(),
        state(info),
        info.pid.to_string(),
        format!("{} ago", short_duration(age)),
        info.usage.cpu_time().map_or_else(unknown, cpu_time),
        info.usage.peak_memory_bytes.map_or_else(unknown, size),
        identity,
        user,
        text,
    ]
}
