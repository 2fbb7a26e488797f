//! Ends of executions that an earlier agent has started: it may have been killed between an end and its record.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use telexec_engine::{ContinuedExecution, ExecutionObserver};
use telexec_executor::Exited;
use tracing::warn;

use super::writer::ExecutionRecorder;
use super::{Audit, Inner, chain, files, lines};

/// So much is read of the log: far more than is written between an end and a crash.
const RECENT_BYTES: u64 = 4 << 20;
/// The record of an end is written sooner.
const RECENT: Duration = Duration::from_secs(120);

impl Audit {
    /// The observers of executions whose starts an earlier agent has recorded, and of those that have ended just before a crash
    /// of it; `None`: the end is in the log, or there is none.
    pub(crate) fn continue_recording(&self, all: &[ContinuedExecution]) -> Vec<Option<Box<dyn ExecutionObserver>>> {
        let Some(inner) = self.0.as_deref() else { return all.iter().map(|_| None).collect() };
        if all.is_empty() {
            inner.recordings.resumed();
            return Vec::new();
        }
        let ends = recent(&inner.path).unwrap_or_else(|error| {
            warn!(%error, "the audit log cannot be read: it may have ends twice");
            BTreeSet::new()
        });
        let recorders = all.iter().map(|execution| inner.continue_recording(execution, &ends)).collect();
        inner.recordings.resumed();
        recorders
    }
}

impl Inner {
    fn continue_recording(
        &self,
        execution: &ContinuedExecution,
        ends: &BTreeSet<u64>,
    ) -> Option<Box<dyn ExecutionObserver>> {
        let age = |exited: &Exited| exited.end_time.elapsed().unwrap_or_default();
        if execution.exited.as_ref().is_some_and(|exited| age(exited) > RECENT) {
            return None;
        }
        let (queue, state) = (self.queue.clone(), Arc::clone(&self.state));
        let recorder = ExecutionRecorder::continued(queue, state, self.containment, execution, ends, &self.recordings)?;
        Some(Box::new(recorder))
    }
}

/// The numbers of the starts whose ends are among the last records.
///
/// # Errors
/// A file cannot be read.
fn recent(path: &Path) -> io::Result<BTreeSet<u64>> {
    let (mut found, mut left) = (BTreeSet::new(), RECENT_BYTES);
    let before = files::rotated(path)?.into_iter().map(|(_, path)| path);
    for path in before.chain([path.to_owned()]).rev().take(2) {
        left = left.saturating_sub(read_end(&path, left, &mut found)?);
    }
    Ok(found)
}

/// Reads the last of a file; returns how much.
fn read_end(path: &Path, most: u64, found: &mut BTreeSet<u64>) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let read = length.min(most);
    file.seek(SeekFrom::Start(length - read))?;
    let (mut reader, mut line) = (BufReader::new(file.take(read)), Vec::new());
    if read < length {
        reader.skip_until(b'\n')?;
    }
    while let Some(whole) = lines::next(&mut reader, &mut line)? {
        let entry = whole.ok().and_then(|()| chain::read(&line).ok());
        found.extend(entry.and_then(|entry| entry.start));
    }
    Ok(read)
}
