//! What the cgroups of an execution have counted.

use std::time::Duration;

use telexec_executor::Usage;

use super::directory::Directory;
use super::files::number;
use super::leaf::{Keeper, Leaf};

/// Those that are there for counting alone, of version 2.
pub(super) const CONTROLLERS: [&str; 1] = ["io"];

impl Leaf {
    /// What its processes have used so far. A count that cannot be read is absent.
    pub(crate) fn usage(&self) -> Usage {
        let keeper = match &self.keeper {
            Keeper::Unified(directory) | Keeper::Freezer(directory) => Some(directory),
            Keeper::None => None,
        };
        let is_unified = matches!(self.keeper, Keeper::Unified(_));
        let version_1 = keeper.filter(|_| !is_unified).into_iter().chain(&self.controllers);
        let version_2 = keeper.filter(|_| is_unified).map(of_version_2);
        version_1.map(of_version_1).fold(version_2.unwrap_or_default(), or)
    }
}

/// See "Interface Files" in the kernel's cgroup-v2.rst.
fn of_version_2(directory: &Directory) -> Usage {
    let cpu = directory.read("cpu.stat").unwrap_or_default();
    let io = directory.read("io.stat").ok();
    Usage {
        user_time: number(&cpu, "user_usec").map(Duration::from_micros),
        system_time: number(&cpu, "system_usec").map(Duration::from_micros),
        peak_memory_bytes: value(directory, "memory.peak"),
        read_bytes: io.as_deref().map(|io| of_all_devices(io, "rbytes=")),
        written_bytes: io.as_deref().map(|io| of_all_devices(io, "wbytes=")),
        peak_processes: value(directory, "pids.peak").and_then(|most| most.try_into().ok()),
    }
}

/// See cpuacct.rst, memory.rst and pids.rst of the kernel's cgroup-v1.
fn of_version_1(directory: &Directory) -> Usage {
    Usage {
        user_time: value(directory, "cpuacct.usage_user").map(Duration::from_nanos),
        system_time: value(directory, "cpuacct.usage_sys").map(Duration::from_nanos),
        peak_memory_bytes: value(directory, "memory.max_usage_in_bytes"),
        read_bytes: None,
        written_bytes: None,
        peak_processes: value(directory, "pids.peak").and_then(|most| most.try_into().ok()),
    }
}

/// What one hierarchy does not count, another may.
fn or(one: Usage, other: Usage) -> Usage {
    Usage {
        user_time: one.user_time.or(other.user_time),
        system_time: one.system_time.or(other.system_time),
        peak_memory_bytes: one.peak_memory_bytes.or(other.peak_memory_bytes),
        read_bytes: one.read_bytes.or(other.read_bytes),
        written_bytes: one.written_bytes.or(other.written_bytes),
        peak_processes: one.peak_processes.or(other.peak_processes),
    }
}

fn value(directory: &Directory, name: &str) -> Option<u64> {
    directory.read(name).ok()?.trim().parse().ok()
}

/// Each device has a line of fields: "8:0 rbytes=1 wbytes=2 rios=3".
fn of_all_devices(text: &str, key: &str) -> u64 {
    let values = text.split_whitespace().filter_map(|field| field.strip_prefix(key)?.parse::<u64>().ok());
    values.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_of_all_devices() {
        let text = "8:16 rbytes=1459200 wbytes=314773504 rios=192 wios=353 dbytes=0 dios=0\n8:0 rbytes=90 wbytes=2\n";
        assert_eq!(of_all_devices(text, "rbytes="), 1_459_290);
        assert_eq!(of_all_devices(text, "wbytes="), 314_773_506);
        assert_eq!(of_all_devices("", "rbytes="), 0);
    }
}
