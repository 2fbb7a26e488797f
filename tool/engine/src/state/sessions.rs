//! The sessions of running executions that no cgroup keeps together, noted in case the engine is killed: a command
//! that has cleaned its environment, as `env -i` and sudo do, is not found by that.
//!
//! One file has a line for each, and lines are used again. It is written behind the start, which waits for no disk:
//! a command that starts at the moment of the crash is found only by its key.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use tracing::warn;

use crate::lock::lock;
use crate::state::disk::Disk;

const FILE: &str = "sessions";
/// Room for three numbers of 64 bits, the spaces between them and the end of the line.
const LINE_BYTES: usize = 64;

/// A session, by the process that leads it: ids are used again, with other start times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    /// The number of the execution: its key's.
    pub(crate) execution: u64,
    pub(crate) leader: i32,
    /// When that was born, in clock ticks after boot.
    pub(crate) start_ticks: u64,
}

impl Session {
    fn line(&self) -> String {
        format!("{} {} {}", self.execution, self.leader, self.start_ticks)
    }

    /// `None`: the line is not used, or was being written when the engine was killed.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let [execution, leader, start_ticks] = [fields.next()?, fields.next()?, fields.next()?];
        let (execution, leader) = (execution.parse().ok()?, leader.parse().ok()?);
        Some(Self { execution, leader, start_ticks: start_ticks.parse().ok()? })
    }
}

/// The file of one engine.
pub(crate) struct Sessions {
    path: PathBuf,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// By their lines.
    sessions: BTreeMap<usize, Session>,
    /// How many lines there are.
    lines: usize,
    unused: BTreeSet<usize>,
    /// To be written; one thread writes.
    changed: BTreeSet<usize>,
    is_being_written: bool,
    /// The last write failed, and was logged.
    has_failed: bool,
}

/// A session is noted for as long as this is not dropped.
pub(crate) struct SessionNote {
    sessions: Arc<Sessions>,
    disk: Disk,
    line: usize,
}

impl Drop for SessionNote {
    fn drop(&mut self) {
        let mut table = self.sessions.table();
        table.sessions.remove(&self.line);
        table.unused.insert(self.line);
        self.sessions.write_soon(table, self.line, &self.disk);
    }
}

impl Sessions {
    /// In the directory of an engine.
    pub(crate) fn new(directory: &Path) -> Arc<Self> {
        Arc::new(Self { path: directory.join(FILE), table: Mutex::default() })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// Notes a session.
    pub(crate) fn note(self: &Arc<Self>, session: Session, disk: &Disk) -> SessionNote {
        let mut table = self.table();
        let line = table.unused.pop_first().unwrap_or(table.lines);
        table.lines = table.lines.max(line + 1);
        table.sessions.insert(line, session);
        self.write_soon(table, line, disk);
        SessionNote { sessions: Arc::clone(self), disk: disk.clone(), line }
    }

    fn write_soon(self: &Arc<Self>, mut table: MutexGuard<'_, Table>, line: usize, disk: &Disk) {
        table.changed.insert(line);
        if std::mem::replace(&mut table.is_being_written, true) {
            return;
        }
        drop(table);
        let this = Arc::clone(self);
        drop(disk.spawn("", move || this.write_changed()));
    }

    /// Writes all lines again, or leaves that to a thread that writes already. Blocks.
    pub(crate) fn rewrite(&self) {
        let mut table = self.table();
        let lines = table.lines;
        table.changed.extend(0..lines);
        if std::mem::replace(&mut table.is_being_written, true) {
            return;
        }
        drop(table);
        self.write_changed();
    }

    /// Where that cannot be done, as on a full disk, that is logged, and the next write includes it. Blocks.
    fn write_changed(&self) {
        loop {
            let mut table = self.table();
            let changed = std::mem::take(&mut table.changed).into_iter();
            let changed: BTreeMap<_, _> = changed.map(|line| (line, table.sessions.get(&line).copied())).collect();
            if changed.is_empty() {
                table.is_being_written = false;
                return;
            }
            drop(table);
            let written = self.write(&changed);
            let mut table = self.table();
            let had_failed = std::mem::replace(&mut table.has_failed, written.is_err());
            let Err(error) = written else { continue };
            table.changed.extend(changed.into_keys());
            table.is_being_written = false;
            if !had_failed {
                warn!(%error, "after a crash of this agent commands with a cleaned environment would run on");
            }
            return;
        }
    }

    fn write(&self, lines: &BTreeMap<usize, Option<Session>>) -> io::Result<()> {
        let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(&self.path)?;
        for (line, session) in lines {
            let text = session.map_or_else(String::new, |session| session.line());
            let text = format!("{text:<width$}\n", width = LINE_BYTES - 1);
            file.write_all_at(text.as_bytes(), (line * LINE_BYTES) as u64)?;
        }
        Ok(())
    }
}

/// What an engine has noted in its directory.
///
/// # Errors
/// It cannot be read.
pub(crate) fn read(directory: &Path) -> io::Result<Vec<Session>> {
    match fs::read(directory.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        bytes => Ok(String::from_utf8_lossy(&bytes?).lines().filter_map(Session::parse).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(execution: u64) -> Session {
        Session { execution, leader: i32::MAX, start_ticks: u64::MAX }
    }

    fn until(directory: &Path, expected: &[u64]) {
        let noted = || read(directory).unwrap().into_iter().map(|session| session.execution).collect::<BTreeSet<_>>();
        while noted() != expected.iter().copied().collect() {
            std::thread::sleep(crate::wait::RETRY_DELAY);
        }
    }

    #[test]
    fn lines_are_written_used_again_and_written_again() {
        let (directory, disk) = (tempfile::tempdir().unwrap(), Disk::new().unwrap());
        let (sessions, path) = (Sessions::new(directory.path()), directory.path().join(FILE));
        let [one, two] = [u64::MAX, 1].map(|execution| sessions.note(session(execution), &disk));
        until(directory.path(), &[u64::MAX, 1]);
        assert_eq!(read(directory.path()).unwrap()[0], session(u64::MAX));
        assert_eq!(fs::metadata(&path).unwrap().len(), 2 * LINE_BYTES as u64);
        drop(one);
        until(directory.path(), &[1]);
        let _three = sessions.note(session(3), &disk);
        until(directory.path(), &[1, 3]);
        assert_eq!(fs::metadata(&path).unwrap().len(), 2 * LINE_BYTES as u64);
        fs::remove_file(&path).unwrap();
        sessions.rewrite();
        until(directory.path(), &[1, 3]);
        drop(two);
        until(directory.path(), &[3]);
    }

    #[test]
    fn what_could_not_be_written_is_written_with_the_next() {
        let (place, disk) = (tempfile::tempdir().unwrap(), Disk::new().unwrap());
        let directory = place.path().join("missing");
        let sessions = Sessions::new(&directory);
        let _one = sessions.note(session(1), &disk);
        while !sessions.table().has_failed {
            std::thread::sleep(crate::wait::RETRY_DELAY);
        }
        fs::create_dir(&directory).unwrap();
        let _two = sessions.note(session(2), &disk);
        until(&directory, &[1, 2]);
        assert!(!sessions.table().has_failed);
    }

    #[test]
    fn a_line_that_is_not_whole_is_none() {
        for line in ["", "   ", "1", "1 2", "1 2 x", "1 4294967296 3", "-1 2 3"] {
            assert_eq!(Session::parse(line), None, "{line:?}");
        }
    }
}
