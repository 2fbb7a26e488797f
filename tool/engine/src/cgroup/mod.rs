//! Cgroups: what keeps the processes of an execution together wherever they go, and limits what they use.
//!
//! What a machine reports is not relied on: a hierarchy is used if a trial in it succeeds.

mod delegation;
mod directory;
mod files;
mod groups;
mod hierarchy;
mod leaf;
mod leaf_record;
mod limits;
mod tree;
mod unified;
mod usage;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use self::delegation::{check_delegation, delegate_cgroup};
use self::directory::Directory;
pub(super) use self::groups::GroupLimits;
pub use self::groups::{NoController, check_identity_limits};
use self::hierarchy::Hierarchy;
use self::leaf::Keeper;
pub(super) use self::leaf::Leaf;
pub(super) use self::leaf_record::LeafRecord;
use self::limits::Resource;
use self::tree::{PREFIX, SUBTREE, Tree};
use self::unified::Unified;
use crate::ContainmentKind;
use crate::process::signaller::Signaller;
use crate::process::table::{self, Process};
use crate::process::vfork;
use crate::share::Share;
use rustix::process::Pid;
use telexec_executor::{ExecutorError, ResourceLimits};

/// The cgroups that one engine can use.
#[derive(Debug, Default)]
pub(super) struct Cgroups {
    unified: Option<Unified>,
    version_1: Vec<Version1>,
    kind: ContainmentKind,
    /// Why the version 1 hierarchy with the freezer cannot be used, if it is there.
    freezer_fault: Option<String>,
    /// Counts what the OOM killer kills in this process's own cgroup.
    own_oom: Option<File>,
}

/// The engine's part of a version 1 hierarchy.
#[derive(Debug)]
struct Version1 {
    tree: Tree,
    controllers: Vec<String>,
}

impl Version1 {
    fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|has| has == controller)
    }
}

/// How long the processes of a trial may take to end: far longer than they do.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(5);

impl Cgroups {
    /// Finds the best way to keep processes together, or tries the one that is asked for; and why better ones cannot be
    /// used. `movable` are those that may be moved into a cgroup below their own if controllers need that: this process, and its
    /// keeper. `inherited` are cgroups of executions that go on. `is_delegated`: see [`delegate_cgroup`].
    pub(super) fn probe(
        asked: Option<ContainmentKind>,
        movable: &[Pid],
        inherited: &[PathBuf],
        is_delegated: bool,
    ) -> (Self, Vec<String>) {
        let mut faults = Vec::new();
        let hierarchies = hierarchy::all().unwrap_or_else(|error| {
            faults.push(format!("cgroups cannot be found: {error}"));
            Vec::new()
        });
        let wants = |kind| asked.is_none_or(|asked| asked == kind);
        let (version_1, freezer_fault) = version_1(&hierarchies, inherited);
        let mut this = Self { version_1, freezer_fault, ..Self::default() };
        if wants(ContainmentKind::CgroupV2) {
            let found = match is_delegated {
                true => delegation::unified(&hierarchies, inherited),
                false => unified(&hierarchies, movable, inherited),
            };
            match found {
                Ok(unified) => (this.unified, this.kind) = (Some(unified), ContainmentKind::CgroupV2),
                Err(fault) => faults.push(format!("cgroup-v2: {fault}")),
            }
        }
        if this.unified.is_none() && wants(ContainmentKind::CgroupV1) {
            this.kind = ContainmentKind::CgroupV1;
            if let Err(fault) = this.try_freezer() {
                faults.push(format!("cgroup-v1: {fault}"));
                this.kind = ContainmentKind::ProcessGroup;
            }
        }
        // after this process may have been moved
        this.own_oom = own_oom();
        (this, faults)
    }

    /// How many processes the OOM killer has killed in this process's own cgroup; `None`: that is not counted.
    pub(super) fn own_oom_kills(&self) -> Option<u64> {
        let mut text = [0; 512];
        let length = self.own_oom.as_ref()?.read_at(&mut text, 0).ok()?;
        files::number(str::from_utf8(text.get(..length)?).ok()?, leaf::OOM_KILLS)
    }

    /// Prepares what the next execution of this identity will need, if its last one was not the first in a row. `announce` may have
    /// a process made in the cgroup of this path.
    pub(super) fn prepare(&self, identity: &str, announce: impl FnOnce(&Path)) {
        if let Some(unified) = &self.unified {
            // if it fails, it is tried again when it is needed, and reported then
            let _ = unified.prepare(identity, announce);
        }
    }

    /// Each identity has these limits from now on.
    ///
    /// # Errors
    /// A controller is missing for them.
    pub(super) fn limit_identities(&mut self, limits: GroupLimits) -> Result<(), NoController> {
        match &mut self.unified {
            Some(unified) => unified.groups.limit(limits),
            None => limits.check_without_cgroup(),
        }
    }

    /// Processors are divided between identities.
    pub(super) fn divides_processors(&self) -> bool {
        self.unified.as_ref().is_some_and(|unified| unified.groups.tree().shares("cpu"))
    }

    /// How many processes and threads an identity has, if that is all that it may have.
    pub(super) fn processes_at_limit(&self, identity: &str) -> Option<u32> {
        self.unified.as_ref()?.groups.processes_at_limit(identity)
    }

    /// Removes all of them that hold no process; none can be made from now on.
    pub(super) fn remove(&self) {
        self.unified.iter().for_each(Unified::remove);
        self.version_1.iter().for_each(|hierarchy| hierarchy.tree.remove());
    }

    /// The directories that hold those of executions, where processes are kept together.
    pub(super) fn trees(&self) -> Vec<PathBuf> {
        self.keeping_trees().map(|tree| tree.path().to_owned()).collect()
    }

    /// One of these was made again since this was last asked.
    pub(super) fn were_restored(&self) -> bool {
        // all are asked
        self.keeping_trees().filter(|tree| tree.was_restored()).count() > 0
    }

    fn keeping_trees(&self) -> impl Iterator<Item = &Tree> {
        let freezer = self.version_1("freezer").map(|(_, hierarchy)| &hierarchy.tree);
        self.unified.iter().map(|unified| unified.groups.tree()).chain(freezer)
    }

    /// What keeps processes together.
    pub(super) fn kind(&self) -> ContainmentKind {
        self.kind
    }

    /// The limits that can be held, by the request's names.
    pub(super) fn limits(&self) -> Vec<&'static str> {
        let can = |resource: &Resource| self.is_unified(*resource) || self.version_1(resource.controller()).is_some();
        Resource::ALL.into_iter().filter(can).map(Resource::field).collect()
    }

    /// New cgroups for an execution of this identity; `None`: it needs none.
    ///
    /// # Errors
    /// [`ExecutorError::Unsupported`] if a limit cannot be held, or those of making them.
    pub(super) fn leaf(
        &self,
        identity: &str,
        share: Option<Share>,
        limits: &ResourceLimits,
    ) -> Result<Option<Leaf>, ExecutorError> {
        let keeper = self.keeper(identity, share).map_err(|error| ExecutorError::Exhausted {
            reason: format!("no cgroup can be made: {error}"),
            retry_after: Some(Duration::from_secs(1)),
        })?;
        let (controllers, oom) = limits::put_on(self, &keeper, limits)?;
        let needed = !matches!(keeper, Keeper::None) || !controllers.is_empty();
        Ok(needed.then_some(Leaf { keeper, controllers, oom }))
    }

    fn keeper(&self, identity: &str, share: Option<Share>) -> io::Result<Keeper> {
        match (self.kind, &self.unified, self.version_1("freezer")) {
            (ContainmentKind::CgroupV2, Some(unified), _) => Ok(Keeper::Unified(unified.leaf(identity, share)?)),
            (ContainmentKind::CgroupV1, _, Some((_, freezer))) => Ok(Keeper::Freezer(freezer.tree.add_leaf()?)),
            (ContainmentKind::ProcessGroup | ContainmentKind::CgroupV1 | ContainmentKind::CgroupV2, ..) => {
                Ok(Keeper::None)
            }
        }
    }

    /// The resource is limited in the version 2 hierarchy.
    fn is_unified(&self, resource: Resource) -> bool {
        let controllers = self.unified.iter().flat_map(|unified| &unified.controllers);
        controllers.into_iter().any(|has| has == resource.controller())
    }

    /// The version 1 hierarchy with this controller, and its number.
    fn version_1(&self, controller: &str) -> Option<(usize, &Version1)> {
        self.version_1.iter().enumerate().find(|(_, hierarchy)| hierarchy.has(controller))
    }

    fn try_freezer(&self) -> Result<(), String> {
        if self.version_1("freezer").is_none() {
            return Err(self.freezer_fault.clone().unwrap_or_else(|| "no freezer is mounted".into()));
        }
        let keeper = self.keeper("", None).map_err(|error| error.to_string())?;
        try_out(Leaf { keeper, controllers: Vec::new(), oom: None })
    }
}

/// Of version 1, if the memory controller is there; or of version 2, which counts for all cgroups below too.
fn own_oom() -> Option<File> {
    let hierarchies = hierarchy::all().ok()?;
    let has_memory = |hierarchy: &&Hierarchy| hierarchy.controllers.iter().any(|has| has == "memory");
    let file = match hierarchies.iter().find(has_memory) {
        Some(version_1) => version_1.own.join(leaf::OOM_CONTROL),
        None => hierarchies.iter().find(|hierarchy| hierarchy.unified)?.own.join(leaf::MEMORY_EVENTS),
    };
    File::open(file).ok()
}

/// The parts of the version 1 hierarchies that this process may use, and why it may not use the one with the freezer.
fn version_1(hierarchies: &[Hierarchy], inherited: &[PathBuf]) -> (Vec<Version1>, Option<String>) {
    let wanted = |controller: &String| ["freezer", "memory", "pids", "cpu"].contains(&controller.as_str());
    let (mut usable, mut freezer_fault) = (Vec::new(), None);
    for hierarchy in hierarchies.iter().filter(|hierarchy| !hierarchy.unified) {
        let controllers: Vec<_> = hierarchy.controllers.iter().filter(|c| wanted(c)).cloned().collect();
        if controllers.is_empty() {
            continue;
        }
        match Tree::new(&hierarchy.own, inherited) {
            Ok(tree) => usable.push(Version1 { tree, controllers }),
            Err(error) if controllers.iter().any(|c| c == "freezer") => {
                freezer_fault = Some(format!("{}: {error}", hierarchy.own.display()));
            }
            Err(_) => {}
        }
    }
    (usable, freezer_fault)
}

/// The part of a version 2 hierarchy that a trial proves.
fn unified(hierarchies: &[Hierarchy], movable: &[Pid], inherited: &[PathBuf]) -> Result<Unified, String> {
    let mut faults = Vec::new();
    for hierarchy in hierarchies.iter().filter(|hierarchy| hierarchy.unified) {
        for base in bases(&hierarchy.own) {
            // where a manager has not given it away, this process stays where that has put it
            let given = || is_delegated(&base) || hierarchy.is_top();
            let may_move = base == hierarchy.own && given();
            match unified_in(&base, if may_move { movable } else { &[] }, inherited) {
                Ok(unified) => return Ok(unified),
                Err(fault) => faults.push(format!("{}: {fault}", base.display())),
            }
        }
    }
    match faults.is_empty() {
        true => Err("none is mounted".into()),
        false => Err(faults.join("; ")),
    }
}

/// Where cgroups may be made, the best place first: beside this process's own if all that was given to it, since a
/// cgroup with processes cannot share out controllers; otherwise below its own.
fn bases(own: &Path) -> Vec<PathBuf> {
    let parent = own.parent().filter(|parent| is_delegated(parent));
    parent.into_iter().chain([own]).map(Path::to_owned).collect()
}

/// Whether the cgroup was given to this process to divide: a manager such as systemd marks it by an attribute, or has
/// made it this user's.
fn is_delegated(cgroup: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    let marked = ["trusted.delegate", "user.delegate"].into_iter().any(|name| {
        let mut value = [0; 1];
        rustix::fs::getxattr(cgroup, name, &mut value).is_ok() && value == *b"1"
    });
    let uid = rustix::process::geteuid().as_raw();
    marked || (uid != 0 && fs::metadata(cgroup).is_ok_and(|metadata| metadata.uid() == uid))
}

fn unified_in(base: &Path, movable: &[Pid], inherited: &[PathBuf]) -> Result<Unified, String> {
    let text = |error: io::Error| error.to_string();
    let tree = Tree::new(base, inherited).map_err(text)?;
    let leaf = |directory| Leaf { keeper: Keeper::Unified(directory), controllers: Vec::new(), oom: None };
    try_out(leaf(tree.add_leaf().map_err(text)?))?;
    let controllers = share_out(base, &tree, movable);
    let unified = Unified::new(tree, controllers);
    // once more, with the controllers
    try_out(leaf(unified.leaf("", None).map_err(text)?))?;
    unified.groups.clear();
    Ok(unified)
}

/// Gives the leaves of `tree`, which is below `base`, all controllers that can be had; returns those that they have.
fn share_out(base: &Path, tree: &Tree, movable: &[Pid]) -> Vec<String> {
    enable_controllers(base, movable, |controller| tree.share(controller))
}

/// Gives what is below `base` all controllers that can be had, for which these processes may be moved; returns those with
/// which `share` succeeds too.
fn enable_controllers(base: &Path, movable: &[Pid], share: impl Fn(&str) -> io::Result<()>) -> Vec<String> {
    let mut moved = false;
    let mut enable = |controller: &str| {
        let value = format!("+{controller}");
        let enabled = match files::write(base, SUBTREE, &value) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && !movable.is_empty() && !moved => {
                moved = true;
                make_room(base, movable).and_then(|()| files::write(base, SUBTREE, &value))
            }
            result => result,
        };
        enabled.and_then(|()| share(controller)).is_ok()
    };
    let there = fs::read_to_string(base.join("cgroup.controllers")).unwrap_or_default();
    let there: Vec<&str> = there.split_whitespace().collect();
    let wanted = Resource::ALL.map(Resource::controller).into_iter().chain(usage::CONTROLLERS);
    let wanted = wanted.filter(|wanted| there.contains(wanted));
    wanted.filter(|controller| enable(controller)).map(str::to_owned).collect()
}

/// Moves processes into a cgroup below their own: one with processes cannot share out its controllers.
fn make_room(base: &Path, movable: &[Pid]) -> io::Result<()> {
    let room = base.join("agent");
    match fs::create_dir(&room) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    movable.iter().try_for_each(|pid| files::write(&room, "cgroup.procs", &pid.as_raw_nonzero().to_string()))
}

/// Thaws processes that are frozen in a cgroup of version 1 which they or others chose: SIGKILL takes effect only after
/// that. A cgroup with other processes in it is left alone.
pub(super) fn thaw(processes: &[Process]) {
    let is_other = |pid: &i32| !processes.iter().any(|process| process.pid == *pid);
    for process in processes {
        let hierarchies = hierarchy::all_of(process.pid).unwrap_or_default();
        for freezer in hierarchies.iter().filter(|h| h.controllers.iter().any(|c| c == "freezer")) {
            // the one that is frozen may be above its own; the root cannot be
            let above = freezer.own.ancestors().take_while(|cgroup| cgroup.join(leaf::STATE).exists());
            for cgroup in above.take_while(|cgroup| files::pids(cgroup).is_ok_and(|pids| !pids.iter().any(is_other))) {
                let _ = files::write(cgroup, leaf::STATE, "THAWED");
            }
        }
    }
}

/// A cgroup of an execution whose engine is dead. Dropping it removes it, if no process is in it.
pub(super) struct Abandoned {
    leaf: Leaf,
    path: PathBuf,
}

impl Abandoned {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The live processes in it.
    ///
    /// # Errors
    /// They cannot be read now; trying again helps.
    pub(super) fn members(&self) -> io::Result<Vec<Process>> {
        self.leaf.members()
    }

    /// Sends SIGKILL to all in it.
    ///
    /// # Errors
    /// It cannot be done now; trying again helps.
    pub(super) fn kill(&self) -> io::Result<()> {
        self.leaf.kill(&Signaller::default()).map(drop)
    }
}

/// The cgroups of executions in the tree of a dead engine, where they keep processes together; without those that go on.
///
/// # Errors
/// They cannot be read.
pub(super) fn abandoned(tree: &Path, inherited: &BTreeSet<PathBuf>) -> io::Result<Vec<Abandoned>> {
    let mut found = Vec::new();
    for path in tree::leaves(tree)? {
        if inherited.contains(&path) {
            continue;
        }
        let directory = Directory::abandoned(path.clone());
        let keeper = match path.join("cgroup.kill").exists() {
            true => Keeper::Unified(directory),
            false => Keeper::Freezer(directory),
        };
        if leaf::can_keep(&keeper) {
            found.push(Abandoned { leaf: Leaf { keeper, controllers: Vec::new(), oom: None }, path });
        }
    }
    Ok(found)
}

/// Whether a process is in a cgroup that keeps an execution together, of this engine or of any on this machine. One
/// that is only limited by a cgroup of version 1 has left it.
pub(super) fn keeps(pid: i32) -> bool {
    let cgroups = table::read_all(&format!("/proc/{pid}/cgroup"));
    cgroups.is_ok_and(|cgroups| String::from_utf8_lossy(&cgroups).lines().any(is_keeping))
}

/// A line of /proc/PID/cgroup: `number:controllers:path`.
fn is_keeping(line: &str) -> bool {
    let mut parts = line.splitn(3, ':').skip(1);
    let controllers = parts.next().unwrap_or_default();
    let keeps = controllers.is_empty() || controllers.split(',').any(|controller| controller == "freezer");
    keeps && parts.next().is_some_and(|path| path.contains(PREFIX))
}

/// Checks that an orphan in a session of its own, which only its cgroup identifies, is found and ended in it.
fn try_out(leaf: Leaf) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    if !leaf::can_keep(&leaf.keeper) {
        return Err("this kernel cannot end all processes of a cgroup".into());
    }
    vfork::leave_orphan(&leaf.entry().map_err(text)?).map_err(|errno| io::Error::from(errno).to_string())?;
    // not by its members: the orphan runs no program of its own, so it is undumpable if this process is
    // (PR_SET_DUMPABLE), and where /proc hides such processes it is not seen there
    if leaf.is_empty().map_err(text)? {
        return Err("a process in it is not found".into());
    }
    let began = Instant::now();
    while !leaf.kill(&Signaller::default()).map_err(text)?.all {
        if began.elapsed() > TRIAL_TIMEOUT {
            return Err("a process in it is not ended".into());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}
