//! Records of `fleet -d` runs: their hosts, so that the ID is enough to find them again.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use telexec_executor::ExecutionId;

use super::hosts::Host;
use crate::output::{Failure, exit};

/// Older records are deleted.
const MAX_RECORDS: usize = 200;
/// How many are named where the beginning of an ID is that of several: the newest.
const MAX_CANDIDATES: usize = 10;

/// A run that was started on this machine.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct FleetRecord {
    pub(crate) id: String,
    pub(crate) start_time: SystemTime,
    pub(crate) command: String,
    pub(crate) hosts: Vec<HostRecord>,
}

#[derive(Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct HostRecord {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) server_name: Option<String>,
}

impl FleetRecord {
    pub(crate) fn new(id: &ExecutionId, command: String, hosts: &[Host]) -> Self {
        let host = |host: &Host| HostRecord {
            name: host.name.clone(),
            address: host.destination.to_string(),
            server_name: host.server_name.clone(),
        };
        let hosts = hosts.iter().map(host).collect();
        Self { id: id.to_string(), start_time: SystemTime::now(), command, hosts }
    }

    /// Writes the record, and deletes the oldest ones.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub(crate) fn save(&self) -> Result<(), Failure> {
        let write = || -> io::Result<()> {
            let directory = directory()?;
            DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
            std::fs::write(directory.join(format!("{}.json", self.id)), serde_json::to_vec(self)?)?;
            let mut files = files()?;
            let excess = files.len().saturating_sub(MAX_RECORDS);
            files.drain(..excess).try_for_each(std::fs::remove_file)
        };
        write().map_err(|error| Failure::new(exit::LOST, &error).context("cannot record the hosts of the run"))
    }

    /// The ID of the only recorded run whose ID begins so; this one, if none does.
    ///
    /// # Errors
    /// There are several.
    pub(crate) fn complete(prefix: &ExecutionId) -> Result<ExecutionId, Failure> {
        // what cannot be read is reported where it is needed
        let files = files().unwrap_or_default();
        let ids = files.iter().filter_map(|path| path.file_stem()?.to_str());
        let ids: Vec<_> = ids.filter(|id| id.starts_with(prefix.as_str())).collect();
        match ids[..] {
            [only] => Ok(only.parse().unwrap_or_else(|_| prefix.clone())),
            _ if ids.is_empty() || ids.contains(&prefix.as_str()) => Ok(prefix.clone()),
            _ => {
                let text = format!("{} runs have IDs that begin with {prefix}:", ids.len());
                let failure = Failure::message(exit::USAGE, text);
                let shown = ids.iter().rev().take(MAX_CANDIDATES);
                Err(shown.fold(failure, |failure, id| failure.hint(Some(format!("  {id}")))))
            }
        }
    }

    /// # Errors
    /// There is no such record.
    pub(crate) fn load(id: &ExecutionId) -> Result<Self, Failure> {
        let read = || -> io::Result<Self> {
            let text = std::fs::read(directory()?.join(format!("{id}.json")))?;
            Ok(serde_json::from_slice(&text)?)
        };
        read().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Failure::message(exit::USAGE, format!("no record of {id} on this machine"))
                .hint(Some("`telexec fleet ps` lists recorded runs; or select the hosts with -w")),
            _ => Failure::new(exit::LOST, &error).context(format_args!("cannot read the record of {id}")),
        })
    }

    /// All records, oldest first, without unreadable ones.
    ///
    /// # Errors
    /// The state directory cannot be read.
    pub(crate) fn all() -> Result<Vec<Self>, Failure> {
        let files = files().map_err(|error| Failure::new(exit::LOST, &error))?;
        let read = |path: PathBuf| serde_json::from_slice(&std::fs::read(path).ok()?).ok();
        Ok(files.into_iter().filter_map(read).collect())
    }
}

fn directory() -> io::Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = variable("XDG_STATE_HOME").or_else(|| variable("HOME").map(|home| home.join(".local/state")));
    let state = state.ok_or_else(|| io::Error::other("HOME is not set"))?;
    Ok(state.join("telexec/fleets"))
}

/// Sorted by name, which begins with the time.
fn files() -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(directory()?) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    Ok(files)
}
