//! The file that names an engine and its cgroups.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::process::table::{self, Process};

/// Its name.
pub(crate) const FILE: &str = "engine";
pub(crate) const VERSION: u32 = 1;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The file of an engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EngineFile {
    pub(crate) version: u32,
    /// What the keys of its executions begin with.
    pub(crate) name: String,
    pub(crate) boot_id: String,
    /// `None`: it could not be found out.
    #[serde(default)]
    pub(crate) process: Option<EngineProcess>,
    pub(crate) cgroups: Vec<NotedCgroup>,
}

/// What a file of any version has.
#[derive(Deserialize)]
pub(crate) struct Version {
    pub(crate) version: u32,
}

/// The process of an engine. Ids are used again, and mean something only in their namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EngineProcess {
    pub(crate) pid: i32,
    pub(crate) start_ticks: u64,
    pub(crate) pid_namespace: u64,
    /// Kernels before Linux 5.6 have none.
    pub(crate) time_namespace: Option<u64>,
}

impl EngineProcess {
    /// This one.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub(crate) fn own() -> io::Result<Self> {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let process = table::read(pid)?.ok_or(io::ErrorKind::NotFound)?;
        let pid_namespace = fs::metadata("/proc/self/ns/pid")?.ino();
        let time_namespace = fs::metadata("/proc/self/ns/time").ok().map(|found| found.ino());
        Ok(Self { pid, start_ticks: process.start_ticks, pid_namespace, time_namespace })
    }

    /// It is in the namespaces of this process, so that ids and times can be compared.
    pub(crate) fn is_comparable(&self) -> bool {
        let namespaces = |of: &Self| (of.pid_namespace, of.time_namespace);
        Self::own().is_ok_and(|own| namespaces(&own) == namespaces(self))
    }

    /// Only what can be seen counts: /proc may hide a process that lives (hidepid, see proc(5)).
    pub(crate) fn has_ended(&self) -> bool {
        let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.is_comparable()) else { return false };
        if let Err(error) = pidfd_open(pid, PidfdFlags::empty()) {
            return error == Errno::SRCH;
        }
        let is_another = |process: Process| process.start_ticks != self.start_ticks || process.zombie;
        table::read(self.pid).is_ok_and(|seen| seen.is_some_and(is_another))
    }
}

/// A cgroup by its path and inode: paths are used again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NotedCgroup {
    pub(crate) path: PathBuf,
    pub(crate) inode: u64,
}

impl NotedCgroup {
    /// `None`: it is not there.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        Some(Self { path: path.to_owned(), inode: fs::metadata(path).ok()?.ino() })
    }

    pub(crate) fn is_there(&self) -> bool {
        Self::of(&self.path).as_ref() == Some(self)
    }
}

/// Those of these cgroups that are there.
pub(crate) fn present(cgroups: &[PathBuf]) -> Vec<NotedCgroup> {
    cgroups.iter().filter_map(|path| NotedCgroup::of(path)).collect()
}

/// The engine of this directory has ended, even if its lock is held: a process that a killed engine was starting may
/// have that for a moment.
pub(crate) fn has_ended(directory: &Path) -> bool {
    let engine =
        fs::read(directory.join(FILE)).ok().and_then(|bytes| serde_json::from_slice::<EngineFile>(&bytes).ok());
    let is_of_this_boot = |engine: &EngineFile| !engine.boot_id.is_empty() && engine.boot_id == boot_id();
    engine.filter(is_of_this_boot).and_then(|engine| engine.process).is_some_and(|process| process.has_ended())
}

/// Of the kernel that runs now.
pub(crate) fn boot_id() -> String {
    fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned()
}
