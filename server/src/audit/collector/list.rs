//! `telexecd audit collected`.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use telexec_executor::text::{error_chain, printable};

use super::agent_log::{segments, written};
use super::segment::log_in;
use super::{SUFFIX, identity_of};
use crate::audit::follower::Follower;
use crate::audit::tail;
use crate::logging;
use crate::timestamp::rfc3339;

/// A segment.
struct Row {
    agent: String,
    first: u64,
    last: u64,
    /// When its newest file was written.
    written: SystemTime,
    log: PathBuf,
}

/// Writes a table of the logs in a collector's directory, or only of those agents from which nothing has arrived for this long: a line
/// for each segment, the oldest first. Returns the exit code: 0 there are some, 1 there are none, 2 something cannot be read.
///
/// # Errors
/// `out` cannot be written.
pub(crate) fn list_collected(directory: &Path, silent_for: Option<Duration>, out: &mut impl Write) -> io::Result<u8> {
    let mut rows = match rows(directory) {
        Ok(rows) => rows,
        Err(error) => {
            logging::line(&format!("telexecd: cannot read {}: {}", directory.display(), error_chain(&error)));
            return Ok(2);
        }
    };
    if rows.is_empty() {
        let directory = directory.display();
        logging::line(&format!(
            "telexecd: no collected audit log in {directory}: is it the directory of [audit_collector]?"
        ));
        return Ok(1);
    }
    if let Some(silent_for) = silent_for {
        rows = silent(rows, silent_for);
        if rows.is_empty() {
            return Ok(1);
        }
    }
    let width = rows.iter().map(|row| row.agent.chars().count()).max().unwrap_or(0).max(5);
    writeln!(out, "{:width$} {:>10} {:>10}  {:27}  LOG", "AGENT", "FIRST", "LAST", "WRITTEN")?;
    for Row { agent, first, last, written, log } in rows {
        let written = rfc3339(written.into());
        writeln!(out, "{agent:width$} {first:>10} {last:>10}  {written:27}  {}", printable(&log.to_string_lossy()))?;
    }
    Ok(0)
}

/// Those of agents from which nothing has arrived for this long.
fn silent(rows: Vec<Row>, silent_for: Duration) -> Vec<Row> {
    let is_recent = |row: &&Row| row.written.elapsed().unwrap_or_default() < silent_for;
    let recent: BTreeSet<_> = rows.iter().filter(is_recent).map(|row| row.agent.clone()).collect();
    rows.into_iter().filter(|row| !recent.contains(&row.agent)).collect()
}

fn rows(directory: &Path) -> io::Result<Vec<Row>> {
    let mut agents: Vec<_> = std::fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    agents.sort();
    let mut rows = Vec::new();
    for path in agents {
        let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(SUFFIX));
        let Some(agent) = name.map(|name| printable(&identity_of(name))) else { continue };
        for segment in segments(&path)? {
            rows.extend(row(&agent, &segment)?);
        }
    }
    Ok(rows)
}

/// `None`: it has no record.
fn row(agent: &str, segment: &Path) -> io::Result<Option<Row>> {
    let log = log_in(segment);
    let mut follower = Follower::new(log.clone(), None);
    follower.set_limit(1);
    let first = follower.read()?.lines.first().map(|line| line.seq);
    let (Some(first), Some(last), Some(written)) = (first, tail::last(&log)?, written(segment)?) else {
        return Ok(None);
    };
    Ok(Some(Row { agent: agent.to_owned(), first, last: last.seq, written, log }))
}
