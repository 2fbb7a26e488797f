//! Which limits this machine's controllers can hold, and putting them on an execution.
//!
//! Resource limits of processes, setrlimit(2), would not do: they hold for each process alone, or for all of a user's.

use std::io;

use telexec_executor::{ExecutorError, ResourceLimits};

use super::Cgroups;
use super::directory::Directory;
use super::leaf::{Keeper, OomCounter};

/// The kernel's usual period of accounting processor time, in microseconds.
const PERIOD: u64 = 100_000;
/// The least processor time in a period that the kernel takes, in microseconds.
const MIN_QUOTA: u64 = 1000;

/// PID_MAX_LIMIT of 64-bit kernels.
pub(super) const MAX_PIDS: u32 = 4 * 1024 * 1024;

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    Memory,
    Processes,
    Cpu,
}

impl Resource {
    pub(super) const ALL: [Self; 3] = [Self::Memory, Self::Processes, Self::Cpu];

    /// The kernel's name of its controller.
    pub(super) fn controller(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Processes => "pids",
            Self::Cpu => "cpu",
        }
    }

    /// The request's name of its limit.
    pub(super) fn field(self) -> &'static str {
        match self {
            Self::Memory => "limits.memory_bytes",
            Self::Processes => "limits.max_processes",
            Self::Cpu => "limits.cpus",
        }
    }

    /// What to write into which files to limit it: necessary ones first, then those that not every kernel has.
    fn settings(self, limits: &ResourceLimits, unified: bool) -> Option<Settings> {
        match (self, unified) {
            (Self::Memory, true) => limits.memory_bytes.map(|bytes| Settings {
                needed: vec![("memory.max", bytes.to_string())],
                // what does not fit is not swapped out; and all of the execution ends together
                wanted: vec![("memory.swap.max", "0".into()), ("memory.oom.group", "1".into())],
            }),
            (Self::Memory, false) => limits.memory_bytes.map(|bytes| Settings {
                needed: vec![("memory.limit_in_bytes", bytes.to_string())],
                wanted: vec![("memory.memsw.limit_in_bytes", bytes.to_string())],
            }),
            (Self::Processes, _) => limits
                .max_processes
                // the kernel accepts no larger number
                .map(|most| Settings {
                    needed: vec![("pids.max", most.min(MAX_PIDS).to_string())],
                    wanted: Vec::new(),
                }),
            (Self::Cpu, true) => limits.cpus.map(|cpus| Settings {
                needed: vec![("cpu.max", format!("{} {PERIOD}", quota(cpus)))],
                wanted: Vec::new(),
            }),
            (Self::Cpu, false) => limits.cpus.map(|cpus| Settings {
                needed: vec![("cpu.cfs_period_us", PERIOD.to_string()), ("cpu.cfs_quota_us", quota(cpus).to_string())],
                wanted: Vec::new(),
            }),
        }
    }
}

struct Settings {
    needed: Vec<(&'static str, String)>,
    wanted: Vec<(&'static str, String)>,
}

impl Settings {
    fn write(&self, directory: &Directory) -> io::Result<()> {
        self.needed.iter().try_for_each(|(file, value)| directory.write(file, value))?;
        for (file, value) in &self.wanted {
            let _ = directory.write(file, value);
        }
        Ok(())
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a command's number of processors is small")]
fn quota(cpus: f64) -> u64 {
    ((cpus * PERIOD as f64) as u64).max(MIN_QUOTA)
}

/// Puts `limits` on an execution: on its keeper where that has the controllers, in version 2, and otherwise on
/// directories of its own in the hierarchies of version 1.
///
/// # Errors
/// [`ExecutorError::Unsupported`] if one of them cannot be held here.
pub(super) fn put_on(
    cgroups: &Cgroups,
    keeper: &Keeper,
    limits: &ResourceLimits,
) -> Result<(Vec<Directory>, Option<OomCounter>), ExecutorError> {
    let mut directories: Vec<(usize, Directory)> = Vec::new();
    let memory = cgroups.version_1(Resource::Memory.controller()).map(|(_, hierarchy)| hierarchy);
    let is_kept_with_memory = match keeper {
        Keeper::Freezer(_) => memory.is_some_and(|memory| memory.has("freezer")),
        Keeper::Unified(_) | Keeper::None => cgroups.is_unified(Resource::Memory),
    };
    let mut oom = is_kept_with_memory.then_some(OomCounter::Keeper);
    for resource in Resource::ALL {
        let unified = cgroups.is_unified(resource);
        let Some(settings) = resource.settings(limits, unified) else { continue };
        let failed = |error: io::Error| unsupported(resource, error.to_string());
        if unified && let Keeper::Unified(directory) = keeper {
            settings.write(directory).map_err(failed)?;
            continue;
        }
        let Some((number, hierarchy)) = cgroups.version_1(resource.controller()) else {
            return Err(unsupported(
                resource,
                format!("the {} cgroup controller is not available to the agent", resource.controller()),
            ));
        };
        if let (Keeper::Freezer(directory), true) = (keeper, hierarchy.has("freezer")) {
            settings.write(directory).map_err(failed)?;
            continue;
        }
        let at = match directories.iter().position(|(of, _)| *of == number) {
            Some(at) => at,
            None => {
                directories.push((number, hierarchy.tree.add_leaf().map_err(failed)?));
                directories.len() - 1
            }
        };
        if let Some((_, directory)) = directories.get(at) {
            settings.write(directory).map_err(failed)?;
        }
        if resource == Resource::Memory {
            oom = Some(OomCounter::Controller(at));
        }
    }
    // version 1 counts the processes that the OOM killer kills in their own cgroup, whichever limit was reached
    if let (None, Keeper::Freezer(_), Some(memory)) = (oom, keeper, memory)
        && let Ok(directory) = memory.tree.add_leaf()
    {
        oom = Some(OomCounter::Controller(directories.len()));
        directories.push((usize::MAX, directory));
    }
    Ok((directories.into_iter().map(|(_, directory)| directory).collect(), oom))
}

fn unsupported(resource: Resource, reason: String) -> ExecutorError {
    ExecutorError::Unsupported { field: resource.field().into(), reason: format!("cannot be held here: {reason}") }
}
