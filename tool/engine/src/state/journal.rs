//! Where an engine notes what the next one needs to know of it, if it is killed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::warn;

use super::directory::EngineDirectory;
use super::disk::NoAnswer;
use super::engine_file::{EngineFile, EngineProcess, NotedCgroup, VERSION, boot_id, present};
pub(crate) use super::notes::Note;
use super::sessions::{Session, SessionNote};
use crate::key::Key;

/// Where one engine notes what the next one needs to know.
pub(crate) struct Journal {
    directory: Arc<EngineDirectory>,
}

impl Journal {
    /// Notes the engine and the directories of its cgroups; where that cannot be written, as on a full disk, the log
    /// says so. Blocks.
    pub(crate) fn begin(directory: Arc<EngineDirectory>, name: &str, cgroups: &[PathBuf]) -> Self {
        let (name, boot_id) = (name.to_owned(), boot_id());
        let (process, cgroups) = (EngineProcess::own().ok(), present(cgroups));
        directory.notes().set_engine(EngineFile { version: VERSION, name, boot_id, process, cgroups });
        directory.notes().rewrite();
        Self { directory }
    }

    /// Notes the directories of the engine's cgroups anew, some of which were made again. Blocks.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn note_cgroups(&self, cgroups: &[PathBuf]) -> io::Result<()> {
        self.directory.recreate()?;
        self.directory.notes().change_engine(|engine| {
            if let Some(engine) = engine {
                engine.cgroups = present(cgroups);
            }
        })
    }

    /// The engine ends in an orderly way: what it leaves running was asked to stay. Blocks.
    pub(crate) fn end(&self) {
        // which cannot fail
        let _ = self.directory.notes().change_engine(|engine| *engine = None);
    }

    /// Notes that an execution, in this cgroup, may outlive its call. Blocks.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn outlives(&self, key: &Key, cgroup: Option<&Path>) -> io::Result<Note> {
        self.directory.recreate()?;
        self.directory.notes().outlives(self.directory.disk(), key.as_str(), cgroup.and_then(NotedCgroup::of))
    }

    /// The same in the turn of `owner`, off the runtime's threads. An execution that cannot be noted is ended after a
    /// crash.
    pub(crate) async fn note(self: &Arc<Self>, owner: &str, key: Key, cgroup: Option<PathBuf>) -> Option<Note> {
        let this = Arc::clone(self);
        logged(self.directory.disk().run(owner, move || this.outlives(&key, cgroup.as_deref())).await)
    }

    /// Notes the session of an execution that no cgroup keeps. Does not block.
    pub(crate) fn session(&self, key: &Key, leader: i32, start_ticks: u64) -> SessionNote {
        let session = Session { execution: key.number(), leader, start_ticks };
        self.directory.notes().sessions.note(session, self.directory.disk())
    }
}

/// The note, if there is one; the log says if it could not be written.
pub(crate) fn logged(noted: Result<io::Result<Note>, NoAnswer>) -> Option<Note> {
    let noted = noted.map_err(io::Error::from).and_then(|noted| noted);
    noted.inspect_err(|error| warn!(%error, "the command would not outlive a crash of the agent")).ok()
}
