//! A part of the version 2 hierarchy for an agent that runs as a user of its own.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use rustix::process::getpid;
use telexec_keeper::agent_user::CGROUP;

use super::hierarchy;
use super::leaf::{EVENTS, is_populated};
use super::{SUBTREE, bases, enable_controllers, is_delegated};

/// What the names of these directories begin with; after a dot comes the keeper's process.
const PREFIX: &str = "telexec-agent";

/// What the owner of a part may write, see "Model of Delegation" in the kernel's cgroup-v2.rst. Not here are the files that
/// end or freeze all of it, its agent's cgroup included.
const GIVEN: [&str; 3] = ["cgroup.procs", "cgroup.threads", SUBTREE];

/// Makes a directory in the version 2 hierarchy that this user may divide, with all controllers that can be had, and in it the
/// cgroup `agent`. For a process that is root and becomes the keeper, which may be moved for that. What keepers that are gone
/// have left is removed, if no process is in it.
///
/// # Errors
/// There is no such hierarchy, or this process may not do that.
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

fn delegate_in(base: &Path, may_move: bool, uid: u32, gid: u32) -> io::Result<PathBuf> {
    remove_unused(base)?;
    let made = base.join(format!("{PREFIX}.{}", std::process::id()));
    match fs::create_dir(&made) {
        // of a keeper with the same number, whose processes run on
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => created?,
    }
    let movable = [getpid()];
    enable_controllers(base, if may_move { &movable } else { &[] }, |_| Ok(()));
    match fs::create_dir(made.join(CGROUP)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => created?,
    }
    for file in GIVEN {
        chown(made.join(file), Some(uid), Some(gid))?;
    }
    chown(&made, Some(uid), Some(gid))?;
    Ok(made)
}

fn remove_unused(base: &Path) -> io::Result<()> {
    for entry in fs::read_dir(base)? {
        let (path, name) = match entry? {
            entry if entry.file_type()?.is_dir() => (entry.path(), entry.file_name()),
            _ => continue,
        };
        let keeper = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_prefix('.'));
        // one that is being made has no process in it yet, but a keeper
        let is_gone = |pid: &str| !Path::new("/proc").join(pid).exists();
        if keeper.is_some_and(is_gone) && fs::read_to_string(path.join(EVENTS)).is_ok_and(|text| !is_populated(&text)) {
            let _ = super::tree::remove(&path);
        }
    }
    Ok(())
}
