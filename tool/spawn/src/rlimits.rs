//! The resource limits that commands start with: those of a fresh login, not those of the agent.

pub use libc::rlimit64 as Limit;

/// How many kinds of limits the kernel knows: RLIM_NLIMITS, numbered from 0.
pub const KINDS: usize = 16;

const UNLIMITED: u64 = u64::MAX;
const MIB: u64 = 1024 * 1024;

/// What the kernel gives to its first process (include/asm-generic/resource.h), in the order of the kinds; open files
/// as systemd raises them: 1,024, so that select(2) works, and as many as anyone needs for those who ask.
pub fn defaults() -> [Limit; KINDS] {
    let mut limits = [limit(UNLIMITED, UNLIMITED); KINDS];
    let threads = number("/proc/sys/kernel/threads-max").map_or(UNLIMITED, |most| most / 2);
    let files = number("/proc/sys/fs/nr_open").map_or(4096, |most| most.min(512 * 1024));
    for (kind, value) in [
        (libc::RLIMIT_STACK, limit(8 * MIB, UNLIMITED)),
        (libc::RLIMIT_CORE, limit(0, UNLIMITED)),
        (libc::RLIMIT_NPROC, limit(threads, threads)),
        (libc::RLIMIT_NOFILE, limit(1024.min(files), files)),
        (libc::RLIMIT_MEMLOCK, limit(8 * MIB, 8 * MIB)),
        (libc::RLIMIT_SIGPENDING, limit(threads, threads)),
        (libc::RLIMIT_MSGQUEUE, limit(819_200, 819_200)),
        (libc::RLIMIT_NICE, limit(0, 0)),
        (libc::RLIMIT_RTPRIO, limit(0, 0)),
    ] {
        if let Some(entry) = limits.get_mut(kind as usize) {
            *entry = value;
        }
    }
    limits
}

fn limit(soft: u64, hard: u64) -> Limit {
    Limit { rlim_cur: soft, rlim_max: hard }
}

fn number(path: &str) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}
