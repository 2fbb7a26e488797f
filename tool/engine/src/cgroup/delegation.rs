//! A part of the version 2 hierarchy for an agent that runs as a user of its own.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::getpid;
use telexec_keeper::agent_user::{AGENT, EXECUTIONS, make_agent_cgroup};

use super::files;
use super::hierarchy::{self, Hierarchy};
use super::leaf::{EVENTS, Keeper, Leaf, is_populated};
use super::tree::Tree;
use super::{SUBTREE, Unified, bases, enable_controllers, is_delegated, share_out, try_out};

/// What the names of these directories begin with; after a dot comes the keeper's process.
const PREFIX: &str = "telexec-agent";

/// How long an agent whose keeper was killed may take to end, and between two looks at it.
const AGENT_END_TIMEOUT: Duration = Duration::from_secs(10);
const AGENT_END_INTERVAL: Duration = Duration::from_millis(10);

/// What the owner of a part may write, see "Model of Delegation" in the kernel's cgroup-v2.rst.
const GIVEN: [&str; 3] = ["cgroup.procs", "cgroup.threads", SUBTREE];

/// Makes a directory of root in the version 2 hierarchy, with the cgroup `agent`, and `executions`, which this user may
/// divide, with all controllers that can be had. For a process that becomes the keeper, which may be moved for that. What
/// keepers that are gone have left is removed, if no process is in it.
///
/// # Errors
/// There is no such hierarchy, this process may not do that, or a trial shows that processes are not kept there.
pub fn delegate_cgroup(uid: u32, gid: u32) -> io::Result<PathBuf> {
    let mut failure = io::Error::other("none is mounted");
    for hierarchy in hierarchy::all()?.iter().filter(|hierarchy| hierarchy.unified) {
        for base in bases(&hierarchy.own) {
            let may_move = base == hierarchy.own && (is_delegated(&base) || hierarchy.is_top());
            match delegate_in(&base, may_move, uid, gid) {
                Ok(made) => return Ok(made),
                Err(error) => failure = io::Error::new(error.kind(), format!("{}: {error}", base.display())),
            }
        }
    }
    Err(failure)
}

/// Checks what can be checked of that without doing it: that the hierarchy is mounted.
///
/// # Errors
/// It is not.
pub fn check_delegation() -> io::Result<()> {
    match hierarchy::all()?.iter().any(|hierarchy| hierarchy.unified) {
        true => Ok(()),
        false => Err(io::Error::other("none is mounted")),
    }
}

fn delegate_in(base: &Path, may_move: bool, uid: u32, gid: u32) -> io::Result<PathBuf> {
    remove_unused(base)?;
    let made = base.join(format!("{PREFIX}.{}", std::process::id()));
    // not one that somebody else has made
    fs::create_dir(&made)?;
    let movable = [getpid()];
    enable_controllers(base, if may_move { &movable } else { &[] }, |_| Ok(()));
    enable_controllers(&made, &[], |_| Ok(()));
    let executions = made.join(EXECUTIONS);
    make_agent_cgroup(&made.join(AGENT))?;
    fs::create_dir(&executions)?;
    // whatever the umask
    for directory in [&made, &executions] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    }
    try_out_in(&executions).map_err(io::Error::other)?;
    for file in GIVEN {
        chown(executions.join(file), Some(uid), Some(gid))?;
    }
    chown(&executions, Some(uid), Some(gid))?;
    Ok(made)
}

/// The agent cannot do that: it may not move anything there from its own cgroup.
fn try_out_in(executions: &Path) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let tree = Tree::new(executions, &[]).map_err(text)?;
    let keeper = Keeper::Unified(tree.add_leaf().map_err(text)?);
    try_out(Leaf { keeper, controllers: Vec::new(), oom: None })
}

fn remove_unused(base: &Path) -> io::Result<()> {
    for entry in fs::read_dir(base)? {
        let (path, name) = match entry? {
            entry if entry.file_type()?.is_dir() => (entry.path(), entry.file_name()),
            _ => continue,
        };
        let keeper = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_prefix('.'));
        // one that is being made has no process in it yet, but a keeper
        let is_gone = |pid: &str| pid == std::process::id().to_string() || !Path::new("/proc").join(pid).exists();
        // one in another pid namespace is found by its lock alone
        if !keeper.is_some_and(is_gone) || has_keeper(&path) {
            continue;
        }
        end_agent(&path);
        if fs::read_to_string(path.join(EVENTS)).is_ok_and(|text| !is_populated(&text)) {
            let _ = files::remove(&path);
        }
    }
    Ok(())
}

/// A keeper that lives has this directory locked, but for the moment in which it executes its program anew.
fn has_keeper(made: &Path) -> bool {
    let directory = fs::File::open(made);
    directory.is_ok_and(|directory| flock(&directory, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK))
}

/// Waits for an agent whose keeper was killed: it ends what it runs, and itself, but not what it may have started as its user. One
/// that does not is killed, with all that it runs.
fn end_agent(made: &Path) {
    let runs = || {
        let is_populated = fs::read_to_string(made.join(AGENT).join(EVENTS)).is_ok_and(|text| is_populated(&text));
        is_populated && !has_keeper(made)
    };
    let until = Instant::now() + AGENT_END_TIMEOUT;
    while runs() && Instant::now() < until {
        std::thread::sleep(AGENT_END_INTERVAL);
    }
    if runs() {
        for cgroup in [AGENT, EXECUTIONS] {
            let _ = fs::write(made.join(cgroup).join("cgroup.kill"), "1");
        }
    }
}

/// What was delegated to this process, and tried out before.
///
/// # Errors
/// It is not there.
pub(super) fn unified(hierarchies: &[Hierarchy], inherited: &[PathBuf]) -> Result<Unified, String> {
    let own = hierarchies.iter().find(|hierarchy| hierarchy.unified).ok_or("none is mounted")?;
    let base = own.own.with_file_name(EXECUTIONS);
    let tree = Tree::new(&base, inherited).map_err(|error| format!("{}: {error}", base.display()))?;
    let controllers = share_out(&base, &tree, &[]);
    Ok(Unified::new(tree, controllers))
}
