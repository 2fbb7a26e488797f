//! What an engine writes into its directory in case it is killed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tracing::warn;

use super::disk::Disk;
use super::engine_file::{self, EngineFile, NotedCgroup};
use super::sessions::Sessions;
use crate::lock::lock;

/// What the names of the files begin with that keep an execution from being ended.
pub(crate) const OUTLIVES_PREFIX: &str = "outlives-";

/// The files of one engine, which are written again with their directory.
pub(crate) struct Notes {
    directory: PathBuf,
    /// Locked while it is written. `None`: the engine has not begun, or has ended in an orderly way.
    engine: Mutex<Option<EngineFile>>,
    pub(super) sessions: Arc<Sessions>,
    /// Of executions that may outlive their calls, by the names of the files.
    outlives: Mutex<BTreeMap<String, Option<NotedCgroup>>>,
    next: AtomicU64,
}

impl Notes {
    pub(crate) fn new(directory: PathBuf) -> Self {
        let sessions = Sessions::new(&directory);
        Self { directory, engine: Mutex::default(), sessions, outlives: Mutex::default(), next: AtomicU64::new(0) }
    }

    /// Writes all files again. Where that cannot be done, as on a full disk, that is logged. Blocks.
    pub(crate) fn rewrite(&self) {
        self.sessions.rewrite();
        let outlives = lock(&self.outlives).clone();
        // the engine's comes last: without it nothing is ended
        let written = outlives.iter().try_for_each(|(name, cgroup)| self.write(name, cgroup.as_ref()));
        if let Err(error) = written.and_then(|()| self.change_engine(|_| {})) {
            warn!(%error, "after a crash of this agent its commands would run on");
        }
    }

    /// Names the engine, in the file that is written next.
    pub(super) fn set_engine(&self, engine: EngineFile) {
        *lock(&self.engine) = Some(engine);
    }

    fn write(&self, name: &str, cgroup: Option<&NotedCgroup>) -> io::Result<()> {
        let mut file =
            File::options().create(true).truncate(true).write(true).mode(0o600).open(self.directory.join(name))?;
        file.write_all(&serde_json::to_vec(&cgroup)?)
    }

    pub(super) fn change_engine(&self, change: impl FnOnce(&mut Option<EngineFile>)) -> io::Result<()> {
        let mut engine = lock(&self.engine);
        change(&mut engine);
        let path = self.directory.join(engine_file::FILE);
        let Some(engine) = &*engine else {
            let _ = fs::remove_file(path);
            return Ok(());
        };
        let mut file = tempfile::NamedTempFile::new_in(&self.directory)?;
        file.write_all(&serde_json::to_vec(engine)?)?;
        file.persist(path)?;
        Ok(())
    }

    /// Notes that an execution, in this cgroup, may outlive its call. Blocks.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn outlives(self: &Arc<Self>, disk: &Disk, key: &str, cgroup: Option<NotedCgroup>) -> io::Result<Note> {
        // not the name of an earlier attempt, whose file may still be removed
        let name = format!("{OUTLIVES_PREFIX}{key}-{}", self.next.fetch_add(1, Ordering::Relaxed));
        lock(&self.outlives).insert(name.clone(), cgroup.clone());
        let note = Note { disk: disk.clone(), notes: Arc::clone(self), name };
        self.write(&note.name, cgroup.as_ref())?;
        Ok(note)
    }

    fn remove(&self, name: &str) {
        lock(&self.outlives).remove(name);
        let _ = fs::remove_file(self.directory.join(name));
    }
}

/// An execution may outlive its call, for as long as this is not dropped.
pub(crate) struct Note {
    disk: Disk,
    notes: Arc<Notes>,
    pub(crate) name: String,
}

impl Drop for Note {
    fn drop(&mut self) {
        let (notes, name) = (Arc::clone(&self.notes), std::mem::take(&mut self.name));
        drop(self.disk.spawn("", move || notes.remove(&name)));
    }
}
