//! What is known of this machine, and of what processes take of it.

use std::fs;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use telexec_tests::Memory;

/// The processor, how many of them, memory and kernel.
pub(crate) fn described() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let value = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key));
        line.and_then(|line| line.split_once(':')).map_or("?", |(_, value)| value.trim()).to_owned()
    };
    let kibibytes = value(&read("/proc/meminfo"), "MemTotal");
    let memory = kibibytes.trim_end_matches(" kB").parse::<f64>().unwrap_or(0.0) / 1024.0 / 1024.0;
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let cpu = value(&read("/proc/cpuinfo"), "model name");
    let kernel = read("/proc/sys/kernel/osrelease");
    let build = if cfg!(debug_assertions) { "; NOT OPTIMISED: the figures mean nothing" } else { "" };
    format!("{cpu}, {processors} processors, {memory:.0} GiB, Linux {}{build}", kernel.trim())
}

/// Processor time of all threads of a process that are there; see schedstat in proc(5).
pub(crate) fn cpu_of(pid: i32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let times = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(times.sum())
}

/// The same of this process.
pub(crate) fn own_cpu() -> Duration {
    cpu_of(i32::try_from(std::process::id()).unwrap_or(0))
}

/// The most memory that a process ever had.
pub(crate) fn peak_mebibytes(pid: i32) -> f64 {
    Memory::of(pid).peak as f64 / 1024.0 / 1024.0
}

/// How many descriptors this process, and the agents that it starts, may have.
pub(crate) fn file_limit() -> usize {
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Many connections, and the pipes of the baselines. Only root may go beyond the limit that it was given.
pub(crate) fn raise_file_limit() {
    const WANTED: u64 = 100_000;
    let limit = getrlimit(Resource::Nofile);
    if setrlimit(Resource::Nofile, Rlimit { current: Some(WANTED), maximum: Some(WANTED) }).is_err() {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}
