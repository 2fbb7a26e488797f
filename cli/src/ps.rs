//! `telexec ps`: what an agent runs, and ran.

use std::time::{Duration, SystemTime};

use telexec_client::RemoteExecutor;
use telexec_executor::{ExecutionInfo, ExecutionState, Executor, ExitCause, ListQuery, Program};

use crate::args::PsArgs;
use crate::connect::{Session, call_failure};
use crate::table::{printable, table};
use crate::{Failure, exit, json, output, terminal};

const HEADING: [&str; 7] = ["ID", "STATE", "PID", "STARTED", "IDENTITY", "USER", "COMMAND"];
/// The column that is left out where all executions are of one identity.
const IDENTITY: usize = 4;

pub(crate) async fn run(args: PsArgs) -> Result<u8, Failure> {
    let session = Session::open(&args.target, &args.connect).await?;
    let executions = list(&args, &session.agent.executor()).await?;
    session.close().await?;
    let text = match (args.quiet, args.json) {
        (true, _) => executions.iter().map(|info| format!("{}\n", info.id)).collect(),
        (false, true) => json_lines(&executions)?,
        (false, false) => as_table(&executions, args.no_trunc),
    };
    output::print(text.as_bytes()).map(|()| 0)
}

/// All pages.
async fn list(args: &PsArgs, executor: &RemoteExecutor) -> Result<Vec<ExecutionInfo>, Failure> {
    let labels = args.label.iter().cloned().collect();
    let mut query = ListQuery { include_exited: args.all, labels, ..ListQuery::default() };
    let mut executions = Vec::new();
    loop {
        let page = executor.list(query.clone()).await;
        let page = page.map_err(|error| call_failure(exit::of_error(&error), &args.target, &error))?;
        executions.extend(page.executions);
        if page.next_page_token.is_empty() {
            return Ok(executions);
        }
        query.page_token = page.next_page_token;
    }
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

fn row(info: &ExecutionInfo, now: SystemTime) -> Vec<String> {
    // another machine's clock may be ahead of this one's
    let age = now.duration_since(info.start_time).unwrap_or_default();
    let [identity, user, text] = [&info.identity, &info.user, &text(info)].map(|text| printable(text));
    vec![info.id.to_string(), state(info), info.pid.to_string(), format!("{} ago", rough(age)), identity, user, text]
}

fn text(info: &ExecutionInfo) -> String {
    match &info.program {
        Program::Shell { text, .. } => text.clone(),
        Program::Argv(argv) => argv.join(" "),
    }
}

pub(crate) fn state(info: &ExecutionInfo) -> String {
    match (info.state, &info.exited) {
        (ExecutionState::Running, _) => "running".to_owned(),
        (ExecutionState::Lingering, _) => "lingering".to_owned(),
        (ExecutionState::Exited, None) => "exited".to_owned(),
        (ExecutionState::Exited, Some(exited)) => match (exited.cause, exited.signal) {
            (ExitCause::Exited(code), _) => format!("exited {code}"),
            (ExitCause::Signaled, Some(signal)) => format!("signaled {signal}"),
            (cause, _) => cause.as_str().to_owned(),
        },
    }
}

/// A duration in its largest unit.
pub(crate) fn rough(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ ..60 => format!("{seconds}s"),
        seconds @ ..3600 => format!("{}m", seconds / 60),
        seconds @ ..86400 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_in_their_largest_unit() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3599, "59m"),
            (3600, "1h"),
            (86_399, "23h"),
            (86_400, "1d"),
            (400 * 86_400, "400d"),
        ] {
            assert_eq!(rough(Duration::from_secs(seconds)), text);
        }
    }
}
