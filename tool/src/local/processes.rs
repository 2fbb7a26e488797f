//! The machine's processes, as /proc shows them (see proc(5)).

use std::collections::BTreeMap;
use std::fs;

/// The variable that every process of an execution inherits.
pub(super) const MARKER: &str = "TELEXEC_EXECUTION_ID";

/// A process at one moment. Its id alone may be reused; together with its start time it is unique.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// It has ended, and waits to be reaped.
    pub(super) zombie: bool,
    /// Clock ticks after boot.
    pub(super) start_ticks: u64,
    /// The execution that its environment names.
    pub(super) marker: Option<String>,
}

impl Process {
    /// Tells it from any other process since boot.
    pub(super) fn key(&self) -> (i32, u64) {
        (self.pid, self.start_ticks)
    }
}

/// All processes that are no kernel threads; `visit` sees each as soon as it was read. Environments are read only of
/// those that started at `since` or later.
///
/// A list of ids is old when it has been read: processes that replaced each other meanwhile would all be missed. So
/// every id that was given out since the list was made is looked at too, until none is new.
pub(super) fn snapshot(since: u64, mut visit: impl FnMut(&Process)) -> Vec<Process> {
    let mut found = BTreeMap::new();
    let mut note = |pid: i32| {
        let process = read(pid).filter(|process| process.pid != KTHREADD && process.parent != KTHREADD);
        if let Some(mut process) = process {
            if process.start_ticks >= since && !process.zombie {
                process.marker = read_marker(process.pid);
            }
            visit(&process);
            found.insert(pid, process);
        }
    };
    let mut seen = last_pid();
    listed().into_iter().for_each(&mut note);
    for _ in 0..MAX_PASSES {
        let last = last_pid();
        match (seen, last) {
            _ if seen == last => break,
            (Some(seen), Some(last)) if (seen..=seen.saturating_add(MANY)).contains(&last) => {
                (seen + 1..=last).filter(|pid| is_process(*pid)).for_each(&mut note);
            }
            // ids started again at the smallest, or too many are new
            _ => listed().into_iter().for_each(&mut note),
        }
        seen = last;
    }
    found.into_values().collect()
}

/// New ids up to this many are looked at one by one.
const MANY: i32 = 1000;
/// Where processes are made so fast that a look never ends, the next one goes on.
const MAX_PASSES: usize = 1000;

fn listed() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Threads have an id, and files under it, but are not listed.
fn is_process(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("Tgid:")).is_some_and(|id| id.trim().parse() == Ok(pid))
}

const KTHREADD: i32 = 2;

/// One process, without its marker; `None`: there is none with this id.
pub(super) fn read(pid: i32) -> Option<Process> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(pid, &stat)
}

/// One process, with its marker.
pub(super) fn read_with_marker(pid: i32) -> Option<Process> {
    let process = read(pid)?;
    Some(Process { marker: read_marker(pid), ..process })
}

fn parse_stat(pid: i32, stat: &[u8]) -> Option<Process> {
    // the name, in parentheses, may hold anything, parentheses included
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = std::str::from_utf8(stat.get(after_name..)?).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    let start_ticks = fields.nth(15)?.parse().ok()?;
    Some(Process { pid, parent, group, session, zombie: matches!(state, "Z" | "X"), start_ticks, marker: None })
}

fn read_marker(pid: i32) -> Option<String> {
    find_marker(&fs::read(format!("/proc/{pid}/environ")).ok()?)
}

fn find_marker(environ: &[u8]) -> Option<String> {
    environ.split(|byte| *byte == 0).find_map(|variable| {
        let value = variable.strip_prefix(MARKER.as_bytes())?.strip_prefix(b"=")?;
        String::from_utf8(value.to_vec()).ok()
    })
}

/// The id that was given out last in this pid namespace; ids count up and start again at the largest.
pub(super) fn last_pid() -> Option<i32> {
    fs::read_to_string("/proc/loadavg").ok()?.split_ascii_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_process_name_does_not_confuse() {
        let stat = b"42 (a) Z 1 1 1 (\xff) S 7 8 9 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1";
        let process = parse_stat(42, stat).unwrap();
        assert_eq!((process.parent, process.group, process.session, process.zombie), (7, 8, 9, false));
        assert_eq!(process.start_ticks, 12345);
        assert_eq!(parse_stat(42, b"42 (a"), None);
        assert_eq!(parse_stat(42, b""), None);
    }

    #[test]
    fn the_marker_is_a_whole_variable() {
        assert_eq!(find_marker(b"A=1\0TELEXEC_EXECUTION_ID=x\0B=2\0"), Some("x".into()));
        assert_eq!(find_marker(b"A=TELEXEC_EXECUTION_ID=x\0XTELEXEC_EXECUTION_ID=x\0"), None);
        assert_eq!(find_marker(b""), None);
    }

    #[test]
    fn this_process_is_there() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(snapshot(u64::MAX, |_| {}).iter().any(|process| process.pid == pid));
        assert!(last_pid().is_some());
    }
}
