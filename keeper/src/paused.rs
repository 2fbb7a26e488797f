//! Processes that are stopped for a moment: a system call in which one of them waits for something other than a disk is interrupted,
//! and begins again when it goes on.

use std::collections::HashSet;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, openat};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// What is stopped. Dropping it leaves that so: see [`resume`](Self::resume).
#[derive(Default)]
pub(crate) struct Paused {
    frozen: Vec<Frozen>,
    stopped: Vec<Stopped>,
}

/// A cgroup (version 2).
struct Frozen {
    directory: OwnedFd,
    path: PathBuf,
}

/// A process, which may be in no such cgroup.
struct Stopped {
    pid: Pid,
    pidfd: OwnedFd,
}

impl Paused {
    /// Stops all in a cgroup, unless it is stopped already.
    pub(crate) fn freeze(&mut self, directory: &OwnedFd) {
        let Ok(directory) = directory.try_clone() else { return };
        let Ok(path) = fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())) else { return };
        let cgroup = Frozen { directory, path };
        if cgroup.read("cgroup.freeze").starts_with('0') && cgroup.write("cgroup.freeze", b"1") {
            self.frozen.push(cgroup);
        }
    }

    /// Stops all other descendants of this process but for these children of it, unless they are stopped already. Parents come
    /// first: a shell that sees its children stop takes the terminal from them.
    pub(crate) fn stop_others(&mut self, spared: &[Pid]) {
        for (pid, pidfd) in opened_descendants(spared) {
            if !is_stopped(pid) && !self.is_frozen(pid) {
                let _ = pidfd_send_signal(&pidfd, Signal::STOP);
                self.stopped.push(Stopped { pid, pidfd });
            }
        }
    }

    /// Kills what has not stopped: it waits for a disk, or for its memory.
    pub(crate) fn kill_what_runs(&self) {
        for cgroup in self.frozen.iter().filter(|cgroup| !cgroup.read("cgroup.events").contains("frozen 1")) {
            cgroup.write("cgroup.kill", b"1");
        }
        let may_be_why = |process: &&Stopped| !is_stopped(process.pid) && !waits_for_child(process.pid);
        for process in self.stopped.iter().filter(may_be_why) {
            let _ = pidfd_send_signal(&process.pidfd, Signal::KILL);
        }
    }

    pub(crate) fn resume(self) {
        // in this order, what was sent to one that was frozen has no effect; and children go on before their parents see them
        for process in self.stopped.into_iter().rev() {
            let _ = pidfd_send_signal(&process.pidfd, Signal::CONT);
        }
        for cgroup in self.frozen {
            cgroup.write("cgroup.freeze", b"0");
        }
    }

    fn is_frozen(&self, pid: Pid) -> bool {
        let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_nonzero())).unwrap_or_default();
        let Some(path) = cgroups.lines().find_map(|line| line.strip_prefix("0::/")) else { return false };
        let is_in = |cgroup: &Frozen| {
            Path::new(path).ancestors().any(|path| path.components().count() > 1 && cgroup.path.ends_with(path))
        };
        self.frozen.iter().any(is_in)
    }
}

impl Frozen {
    fn read(&self, file: &str) -> String {
        let file = openat(self.directory.as_fd(), file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        file.ok().and_then(|file| std::io::read_to_string(fs::File::from(file)).ok()).unwrap_or_default()
    }

    fn write(&self, file: &str, text: &[u8]) -> bool {
        let file = openat(self.directory.as_fd(), file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        file.is_ok_and(|file| rustix::io::write(file, text).is_ok())
    }
}

/// Kills all descendants of this process but for these children of it.
pub(crate) fn kill_descendants(spared: &[Pid]) {
    for (_, pidfd) in opened_descendants(spared) {
        let _ = pidfd_send_signal(pidfd, Signal::KILL);
    }
}

/// By their descriptors, one after the other.
fn opened_descendants(spared: &[Pid]) -> impl Iterator<Item = (Pid, OwnedFd)> {
    let all = descendants(spared);
    let known: HashSet<_> = all.iter().copied().chain([rustix::process::getpid()]).collect();
    all.into_iter().filter_map(move |pid| {
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // after that, since the number may have been given out again
        known.contains(&parent(pid)?).then_some((pid, pidfd))
    })
}

/// Of this process, but for these children of it and theirs; parents before their children. As far as the kernel lists them.
fn descendants(spared: &[Pid]) -> Vec<Pid> {
    let mut found = children(rustix::process::getpid());
    found.retain(|pid| !spared.contains(pid));
    let mut known: HashSet<_> = found.iter().copied().collect();
    let mut at = 0;
    while let Some(parent) = found.get(at) {
        found.extend(children(*parent).into_iter().filter(|pid| known.insert(*pid)));
        at += 1;
    }
    found
}

/// Those of all of its threads.
fn children(parent: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{}/task", parent.as_raw_nonzero())).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect::<Vec<_>>())
        .collect()
}

/// All of its threads are, by a signal; or have ended.
fn is_stopped(pid: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).into_iter().flatten().flatten();
    let states = threads.filter_map(|thread| state_in(&thread.path()));
    states.into_iter().all(|state| ['T', 't', 'Z', 'X'].contains(&state))
}

/// See vfork(2): it cannot be stopped before its child can.
fn waits_for_child(pid: Pid) -> bool {
    let wait = fs::read_to_string(format!("/proc/{}/wchan", pid.as_raw_nonzero()));
    wait.is_ok_and(|wait| wait.contains("fork") || wait.contains("clone"))
}

/// As proc_pid_stat(5) has it; `None`: there is no such process.
pub(crate) fn state(pid: Pid) -> Option<char> {
    state_in(Path::new(&format!("/proc/{}", pid.as_raw_nonzero())))
}

fn parent(pid: Pid) -> Option<Pid> {
    let stat = stat(Path::new(&format!("/proc/{}", pid.as_raw_nonzero())))?;
    Pid::from_raw(stat.split_whitespace().nth(1)?.parse().ok()?)
}

fn state_in(directory: &Path) -> Option<char> {
    stat(directory)?.chars().next()
}

/// From the state on.
fn stat(directory: &Path) -> Option<String> {
    let stat = fs::read_to_string(directory.join("stat")).ok()?;
    // the name before it may have anything in it
    Some(stat.rsplit(')').next()?.trim_start().to_owned())
}
