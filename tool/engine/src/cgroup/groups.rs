//! One cgroup for each identity, with those of its executions below it: the kernel divides processors between identities, not
//! between executions.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::directory::Directory;
use super::files;
use super::hierarchy;
use super::limits::MAX_PIDS;
use super::tree::Tree;
use crate::lock::lock;
use crate::share::Share;
use crate::{ContainmentKind, LocalConfig};

/// What the names of these directories begin with; leaves have numbers.
const PREFIX: &str = "identity.";

/// How many are kept though they may have no execution. One takes a few tens of KiB of the kernel's memory, and is made in 0.1 ms.
const MAX_IDLE: usize = 16;

/// What the executions of one identity may use together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupLimits {
    /// Memory without swap; `None`: no limit.
    pub(crate) memory_bytes: Option<u64>,
    /// Processes and threads; `None`: no limit.
    pub(crate) max_processes: Option<u32>,
}

impl GroupLimits {
    pub(crate) fn of(config: &LocalConfig) -> Self {
        Self { memory_bytes: config.max_memory_bytes_per_identity, max_processes: config.max_processes_per_identity }
    }

    /// # Errors
    /// They cannot be enforced without a cgroup of version 2.
    pub(super) fn check_without_cgroup(&self) -> Result<(), NoController> {
        check(self, |_| false)
    }
}

/// A limit of an identity cannot be enforced on this machine.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("{limit} cannot be enforced: it requires cgroup v2 with the controller {controller}")]
pub struct NoController {
    limit: &'static str,
    controller: &'static str,
}

/// The cgroups of identities in the tree of an engine.
#[derive(Debug)]
pub(super) struct Groups {
    by_identity: Mutex<HashMap<String, Weak<Group>>>,
    /// Those that were used last, which stay.
    recent: Mutex<VecDeque<Arc<Group>>>,
    next: AtomicU64,
    limits: GroupLimits,
    /// Dropped after all that is in it.
    tree: Tree,
}

/// The cgroup of one identity. Dropping it removes it, if nothing is in it.
#[derive(Debug)]
pub(super) struct Group {
    path: PathBuf,
    next: AtomicU64,
    share: Mutex<Share>,
}

impl Drop for Group {
    fn drop(&mut self) {
        // what is left in it goes with the tree
        let _ = fs::remove_dir(&self.path);
    }
}

impl Groups {
    pub(super) fn new(tree: Tree) -> Self {
        Self {
            by_identity: Mutex::default(),
            recent: Mutex::default(),
            next: AtomicU64::new(0),
            limits: GroupLimits::default(),
            tree,
        }
    }

    pub(super) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// These are the limits of each identity from now on. Without one for processes it is three quarters of what can be had, where
    /// that can be held.
    ///
    /// # Errors
    /// A controller is missing for them.
    pub(super) fn limit(&mut self, limits: GroupLimits) -> Result<(), NoController> {
        check(&limits, |controller| self.tree.shares(controller))?;
        let by_default = || default_max_processes(self.tree.path()).filter(|_| self.tree.shares("pids"));
        self.limits = GroupLimits { max_processes: limits.max_processes.or_else(by_default), ..limits };
        Ok(())
    }

    /// That of an identity.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn of(&self, identity: &str) -> io::Result<Arc<Group>> {
        let mut by_identity = lock(&self.by_identity);
        if let Some(group) = by_identity.get(identity).and_then(Weak::upgrade) {
            drop(by_identity);
            self.keep(&group);
            return Ok(group);
        }
        by_identity.retain(|_, group| group.strong_count() > 0);
        let path = self.tree.path().join(format!("{PREFIX}{}", self.next.fetch_add(1, Ordering::Relaxed)));
        let group = Arc::new(Group { path, next: AtomicU64::new(0), share: Mutex::default() });
        self.make(&group, Share::default())?;
        by_identity.insert(identity.to_owned(), Arc::downgrade(&group));
        drop(by_identity);
        self.keep(&group);
        Ok(group)
    }

    fn keep(&self, group: &Arc<Group>) {
        let mut recent = lock(&self.recent);
        if recent.back().is_some_and(|last| Arc::ptr_eq(last, group)) {
            return;
        }
        recent.retain(|other| !Arc::ptr_eq(other, group));
        recent.push_back(Arc::clone(group));
        let removed = if recent.len() > MAX_IDLE { recent.pop_front() } else { None };
        drop(recent);
        // without the lock
        drop(removed);
    }

    fn make(&self, group: &Group, share: Share) -> io::Result<()> {
        self.tree.make(&group.path)?;
        self.set_up(group, share).inspect_err(|_| drop(fs::remove_dir(&group.path)))
    }

    fn set_up(&self, group: &Group, share: Share) -> io::Result<()> {
        self.tree.share_further(&group.path)?;
        let write = |file: &str, value: String| files::write(&group.path, file, &value);
        if let Some(bytes) = self.limits.memory_bytes {
            write("memory.max", bytes.to_string())?;
            // not every kernel counts swap
            let _ = write("memory.swap.max", "0".to_owned());
        }
        if let Some(most) = self.limits.max_processes {
            // the kernel accepts no larger number
            write("pids.max", most.min(MAX_PIDS).to_string())?;
        }
        match share == Share::default() {
            true => Ok(()),
            false => self.weigh(group, share),
        }
    }

    /// Gives it this share of the processors.
    fn weigh(&self, group: &Group, share: Share) -> io::Result<()> {
        match self.tree.shares("cpu") {
            true => files::write(&group.path, "cpu.weight", &share.hundredths().to_string()),
            false => Ok(()),
        }
    }

    /// A new cgroup for an execution.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn add_leaf(&self, group: &Arc<Group>) -> io::Result<Directory> {
        let path = group.path.join(group.next.fetch_add(1, Ordering::Relaxed).to_string());
        // held, so that it is not used before it is complete
        let share = lock(&group.share);
        match fs::create_dir(&path) {
            // a tool that removes empty cgroups has removed it
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make(group, *share)?;
                fs::create_dir(&path)?;
            }
            created => created?,
        }
        drop(share);
        Ok(Directory::reserved(path, Some(Arc::clone(group))))
    }

    /// An identity has this share of the processors from now on.
    ///
    /// # Errors
    /// It cannot be set.
    pub(super) fn set_share(&self, group: &Group, share: Share) -> io::Result<()> {
        let mut has = lock(&group.share);
        if *has == share {
            return Ok(());
        }
        match self.weigh(group, share) {
            // a tool has removed it: it is made again with this share
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => *has = share,
        }
        Ok(())
    }

    /// How many processes and threads an identity has, if that is all that it may have.
    pub(super) fn processes_at_limit(&self, identity: &str) -> Option<u32> {
        let group = lock(&self.by_identity).get(identity).and_then(Weak::upgrade)?;
        let current = fs::read_to_string(group.path.join("pids.current")).ok()?.trim().parse().ok()?;
        self.limits.max_processes.is_some_and(|most| current >= most).then_some(current)
    }

    /// Gives up those that are not used.
    pub(super) fn clear(&self) {
        let idle = std::mem::take(&mut *lock(&self.recent));
        drop(idle);
    }
}

/// Checks what can be checked of the limits of identities without an engine: that this machine has the controllers.
///
/// # Errors
/// One is missing.
pub fn check_identity_limits(config: &LocalConfig) -> Result<(), NoController> {
    let hierarchies = hierarchy::all().unwrap_or_default();
    let unified = hierarchies.iter().find(|hierarchy| hierarchy.unified);
    let there =
        unified.and_then(|unified| fs::read_to_string(unified.top.join("cgroup.controllers")).ok()).unwrap_or_default();
    let may_use = config.containment.is_none_or(|kind| kind == ContainmentKind::CgroupV2);
    check(&GroupLimits::of(config), |controller| may_use && there.split_whitespace().any(|there| there == controller))
}

fn check(limits: &GroupLimits, has: impl Fn(&str) -> bool) -> Result<(), NoController> {
    let check = |is_set, limit, controller| match is_set && !has(controller) {
        true => Err(NoController { limit, controller }),
        false => Ok(()),
    };
    check(limits.memory_bytes.is_some(), "max_memory_bytes_per_identity", "memory")?;
    check(limits.max_processes.is_some(), "max_processes_per_identity", "pids")
}

/// How many processes and threads one identity may have by default: three quarters of what this machine, and the cgroups that `tree`
/// is in, can have. `None`: that is not known.
pub(super) fn default_max_processes(tree: &Path) -> Option<u32> {
    let machine = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"].map(PathBuf::from);
    let cgroups = tree.ancestors().map(|cgroup| cgroup.join("pids.max"));
    // "max" is not a number
    let read = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let most = machine.into_iter().chain(cgroups).filter_map(read).min()?;
    u32::try_from(most / 4 * 3).ok().map(|most| most.clamp(1, MAX_PIDS))
}

/// Whether a directory in the tree of an engine is the cgroup of an identity, rather than of an execution.
pub(super) fn is_group(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
}
