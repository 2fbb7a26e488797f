//! Cgroups, seen without asking the agent; see cgroups(7).

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use crate::marker;
use crate::wait::until_blocking;

/// A mounted hierarchy that commands may be kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hierarchy {
    /// The one of version 2.
    Unified,
    /// The one of version 1 with the freezer.
    Freezer,
}

impl Hierarchy {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Unified, Self::Freezer];

    /// Where it is mounted, if it is.
    pub fn mount(self) -> Option<PathBuf> {
        mounts().into_iter().find(|mount| mount.is(self)).map(|mount| mount.point)
    }

    /// Where it is mounted, if this user can make cgroups there.
    pub fn usable(self) -> Option<PathBuf> {
        let mount = self.mount()?;
        let trial = mount.join(format!("telexec-test-{}", marker()));
        fs::create_dir(&trial).and_then(|()| fs::remove_dir(&trial)).ok()?;
        Some(mount)
    }

    /// Shell text that sets `own` to the directory of the shell's cgroup.
    ///
    /// # Panics
    /// It is not mounted.
    pub fn find_own(self) -> String {
        let mount = self.mount().unwrap();
        let line = match self {
            Self::Unified => "0::",
            Self::Freezer => "[0-9]*:freezer:",
        };
        format!("own={}$(sed -n 's/^{line}//p' /proc/self/cgroup); ", mount.display())
    }

    /// Shell text that freezes all in the cgroup `$1`, and waits until they are.
    pub fn freeze(self) -> &'static str {
        match self {
            Self::Unified => {
                "echo 1 > $1/cgroup.freeze; until grep -q 'frozen 1' $1/cgroup.events; do sleep 0.01; done; "
            }
            Self::Freezer => {
                "echo FROZEN > $1/freezer.state; until grep -q FROZEN $1/freezer.state; do sleep 0.01; done; "
            }
        }
    }
}

/// Whether limits of this kind, such as `pids`, can be had by root.
pub fn has_controller(name: &str) -> bool {
    let unified =
        || Hierarchy::Unified.mount().and_then(|mount| fs::read_to_string(mount.join("cgroup.controllers")).ok());
    mounts().iter().any(|mount| !mount.unified && mount.options.iter().any(|option| option == name))
        || unified().is_some_and(|there| there.split_whitespace().any(|controller| controller == name))
}

struct Mount {
    point: PathBuf,
    unified: bool,
    options: Vec<String>,
}

impl Mount {
    fn is(&self, hierarchy: Hierarchy) -> bool {
        match hierarchy {
            Hierarchy::Unified => self.unified,
            Hierarchy::Freezer => !self.unified && self.options.iter().any(|option| option == "freezer"),
        }
    }
}

fn mounts() -> Vec<Mount> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let unified = match *fields.get(2)? {
            "cgroup2" => true,
            "cgroup" => false,
            _ => return None,
        };
        let options = fields.get(3)?.split(',').map(str::to_owned).collect();
        Some(Mount { point: fields[1].into(), unified, options })
    };
    text.lines().filter_map(mount).collect()
}

/// A cgroup of version 1. Removed when it is dropped; what is in it stays.
#[derive(Debug)]
struct Limit {
    path: PathBuf,
}

impl Limit {
    fn new(controller: &str) -> Option<Self> {
        let mount = mounts().into_iter().find(|mount| mount.options.iter().any(|option| option == controller))?;
        let path = mount.point.join(format!("telexec-test-{}", marker()));
        fs::create_dir(&path).ok()?;
        Some(Self { path })
    }

    fn set(&self, file: &str, value: &str) {
        fs::write(self.path.join(file), value).unwrap();
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let parent = self.path.parent().unwrap_or(&self.path).join("cgroup.procs");
        let members = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        for pid in members.lines() {
            let _ = fs::write(&parent, pid);
        }
        clear(&self.path);
    }
}

/// A cgroup of version 1 that limits how much memory the processes in it have.
#[derive(Debug)]
pub struct MemoryLimit(Limit);

impl MemoryLimit {
    /// So many bytes; `None`: this user cannot make any.
    ///
    /// # Panics
    /// It cannot be set.
    pub fn new(bytes: u64) -> Option<Self> {
        let limit = Limit::new("memory")?;
        limit.set("memory.limit_in_bytes", &bytes.to_string());
        Some(Self(limit))
    }

    /// Shell text that moves the shell into it.
    pub fn enter(&self) -> String {
        format!("echo $$ > {}/cgroup.procs", self.0.path.display())
    }
}

/// A cgroup of version 1 that limits how many processes and threads there are in it.
#[derive(Debug)]
pub struct ProcessLimit(Limit);

impl ProcessLimit {
    /// One without a limit yet; `None`: this user cannot make any.
    pub fn new() -> Option<Self> {
        Limit::new("pids").map(Self)
    }

    /// Puts a process into it, with all of its threads; its later children are in it too.
    ///
    /// # Panics
    /// The process has ended.
    pub fn add(&self, pid: i32) {
        self.0.set("cgroup.procs", &pid.to_string());
    }

    /// From now on no process in it gets another one, nor a thread.
    ///
    /// # Panics
    /// It cannot be set.
    pub fn reach(&self) {
        self.0.set("pids.max", "0");
    }

    /// There is no limit any more.
    ///
    /// # Panics
    /// It cannot be set.
    pub fn lift(&self) {
        self.0.set("pids.max", "max");
    }
}

/// The directories of this name, or whose names begin with it, in all hierarchies.
pub fn cgroups_named(beginning: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for mount in mounts() {
        collect(&mount.point, beginning, &mut found);
    }
    found
}

/// The directories of a process's engines, in all hierarchies, with all below them.
pub fn cgroups(pid: i32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for tree in cgroups_named(&format!("telexec.{pid}.")) {
        collect(&tree, "", &mut found);
        found.push(tree);
    }
    found
}

fn collect(directory: &Path, beginning: &str, found: &mut Vec<PathBuf>) {
    for path in below(directory) {
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(beginning)) {
            found.push(path.clone());
        }
        collect(&path, beginning, found);
    }
}

/// The cgroups in a cgroup; none, if it is gone.
fn below(cgroup: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cgroup).into_iter().flatten().filter_map(Result::ok);
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

/// Ends what is in a cgroup and in all below it, and removes them, as far as that can be done.
fn clear(cgroup: &Path) {
    for path in below(cgroup) {
        clear(&path);
    }
    for (file, value) in [("freezer.state", "THAWED"), ("cgroup.kill", "1")] {
        if cgroup.join(file).exists() {
            let _ = fs::write(cgroup.join(file), value);
        }
    }
    until_blocking(std::time::Duration::from_secs(1), || fs::remove_dir(cgroup).is_ok() || !cgroup.exists());
}

/// The cgroups of this name, which a command made: removed when this is dropped, with what is in them.
#[derive(Debug)]
pub struct Cleared(pub String);

impl Drop for Cleared {
    fn drop(&mut self) {
        for path in cgroups_named(&self.0) {
            clear(&path);
        }
    }
}

/// A part of the version 2 hierarchy that was given to a user, with a cgroup `agent` for the agent. Removed with what is
/// in it when it is dropped.
#[derive(Debug)]
pub struct Subtree {
    path: PathBuf,
}

impl Subtree {
    /// A new one; `None`: this user cannot make any.
    ///
    /// # Panics
    /// It cannot be given away.
    pub fn new(uid: u32) -> Option<Self> {
        let path = Hierarchy::Unified.usable()?.join(format!("telexec-test-{}", marker()));
        let this = Self { path };
        for cgroup in [this.path.clone(), this.agents()] {
            fs::create_dir(&cgroup).unwrap();
            // as systemd does it for Delegate=, see "Delegation: The Delegatee" in the kernel's cgroup-v2.rst
            for name in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
                chown(cgroup.join(name), Some(uid), Some(uid)).unwrap();
            }
        }
        Some(this)
    }

    fn agents(&self) -> PathBuf {
        self.path.join("agent")
    }

    /// One of an agent that has a user of its own, as `telexecd` makes it for the keeper: `executions` is that user's.
    ///
    /// # Panics
    /// It cannot be made.
    pub fn of_agent_user(uid: u32) -> Option<Self> {
        let path = Hierarchy::Unified.usable()?.join(format!("telexec-test-{}", marker()));
        let this = Self { path };
        let executions = this.path.join("executions");
        for cgroup in [&this.path, &this.agents(), &executions] {
            fs::create_dir(cgroup).unwrap();
        }
        for name in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
            chown(executions.join(name), Some(uid), Some(uid)).unwrap();
        }
        Some(this)
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Shell text that moves the shell into the agent's cgroup.
    pub fn enter(&self) -> String {
        format!("echo $$ > {}/cgroup.procs", self.agents().display())
    }

    /// What is in it, beside the agent's cgroup.
    pub fn left(&self) -> Vec<PathBuf> {
        below(&self.path).into_iter().filter(|path| *path != self.agents()).collect()
    }
}

impl Drop for Subtree {
    fn drop(&mut self) {
        clear(&self.path);
    }
}
