//! What a killed engine has left running, and its temporary files: the next engine on the same state directory ends and
//! removes them.
//!
//! The engine's directory has a file that names the engine and its cgroups, one for each execution that may outlive the
//! call that started it, and one with the sessions that no cgroup keeps (see `state`). Everything of that engine is
//! ended but for the executions that may outlive their calls; those are left running, and the log names them.
//!
//! A process is ended if its environment has the dead engine's random name, if it is in a cgroup of that engine
//! (recognized by its inode), if it is in a session whose leader is the one that was noted, or if it descends from one
//! of these. No request can set that variable, but any process can take it for its own: so others in its session are
//! ended only if the session's leader has the same key, or is gone and all of them are of the same user. After a reboot
//! there is nothing to end.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use telexec_executor::Signal;
use tracing::{info, warn};

use crate::cgroup::{self, Abandoned};
use crate::key;
use crate::process::control;
use crate::process::scanner::{ProcessScanner, Snapshot};
use crate::process::table::{self, Process};
use crate::state::directory::{abandoned, lock_all, try_lock_all};
use crate::state::engine_file::{self, EngineFile, NotedCgroup, VERSION, Version, boot_id};
use crate::state::notes::OUTLIVES_PREFIX;
use crate::state::sessions::{self, Session};
use crate::state::{REPORT_PREFIX, TEMPORARY_PREFIX};
use crate::wait::RETRY_DELAY;

/// How long processes may take to end after SIGKILL: far longer than they do.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Executions of dead engines that go on, under this one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Continued {
    /// What their processes carry in their environment.
    pub(crate) keys: BTreeSet<String>,
    pub(crate) cgroups: BTreeSet<PathBuf>,
    /// Those of these engines in which their output is.
    pub(crate) directories: BTreeSet<PathBuf>,
}

/// Ends what dead engines on this state directory have left running, and removes their temporary files; their
/// directories stay for the handover. Blocks.
///
/// # Errors
/// The state directory cannot be read.
pub(crate) fn end_in(state_dir: &Path, continued: &Continued) -> io::Result<()> {
    let _all = lock_all(state_dir)?;
    for directory in abandoned(state_dir)? {
        end_of(state_dir, &directory, continued);
    }
    Ok(())
}

/// The same for dead engines whose state directories were temporary, which are removed unless there is output in them that is
/// still needed. Blocks.
pub(crate) fn end_in_temporary(continued: &Continued) {
    let own = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        // anyone can make such a directory there
        let is_own = || {
            fs::symlink_metadata(entry.path())
                .is_ok_and(|found| found.is_dir() && found.uid() == own && found.mode() & 0o077 == 0)
        };
        if !entry.file_name().to_string_lossy().starts_with(TEMPORARY_PREFIX) || !is_own() {
            continue;
        }
        let state_dir = entry.path();
        // one that is being made is locked, or has no lock yet
        let Ok(_all) = try_lock_all(&state_dir) else { continue };
        let Ok(dead) = abandoned(&state_dir) else { continue };
        dead.iter().for_each(|directory| end_of(&state_dir, directory, continued));
        if !dead.is_empty() && !dead.iter().any(|directory| continued.directories.contains(directory)) {
            let _ = fs::remove_dir_all(&state_dir);
        }
    }
}

/// The same for one of them, once.
pub(crate) fn end_of(state_dir: &Path, directory: &Path, continued: &Continued) {
    match Leftovers::read(directory, continued) {
        Ok(Some(leftovers)) => {
            leftovers.end();
            for place in [state_dir, &std::env::temp_dir()] {
                leftovers.remove_files(place);
            }
        }
        // it ended in an orderly way, or before anything ran
        Ok(None) => {}
        Err(error) => {
            warn!(path = %directory.display(), %error, "cannot find the processes that a killed agent left running");
        }
    }
    let _ = fs::remove_file(directory.join(engine_file::FILE));
}

/// What a dead engine may have left.
struct Leftovers<'a> {
    engine: EngineFile,
    /// The keys of executions that stay, and their cgroups.
    spared: BTreeMap<String, Option<NotedCgroup>>,
    /// Those of all executions that no cgroup keeps.
    sessions: Vec<Session>,
    continued: &'a Continued,
}

/// What a scan has found.
#[derive(Debug, Default)]
struct Found {
    live: Vec<Process>,
    spared: BTreeSet<i32>,
    /// This process may not signal them.
    refused: BTreeSet<i32>,
    /// A cgroup could not be ended.
    fault: Option<io::Error>,
}

impl<'a> Leftovers<'a> {
    /// `None`: there are none.
    ///
    /// # Errors
    /// A file cannot be read, or is of another version.
    fn read(directory: &Path, continued: &'a Continued) -> io::Result<Option<Self>> {
        let file = match fs::read(directory.join(engine_file::FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let Version { version } = serde_json::from_slice(&file)?;
        if version != VERSION {
            return Err(io::Error::other(format!("the file is of version {version}, not {VERSION}")));
        }
        let engine: EngineFile = serde_json::from_slice(&file)?;
        let mut spared = BTreeMap::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_str().and_then(|name| name.strip_prefix(OUTLIVES_PREFIX));
            if let Some(key) = name.and_then(|name| name.split('-').next()) {
                // one that is not whole was being written when the engine was killed: its execution was still bound
                if let Ok(cgroup) = serde_json::from_slice(&fs::read(entry.path())?) {
                    spared.insert(key.to_owned(), cgroup);
                }
            }
        }
        let sessions = sessions::read(directory)?;
        Ok(Some(Self { engine, spared, sessions, continued }))
    }

    fn end(&self) {
        if boot_id() != self.engine.boot_id {
            return;
        }
        let scanner = match ProcessScanner::of_all() {
            Ok(scanner) => scanner,
            Err(error) => return warn!(%error, "cannot search for processes that a killed agent left running"),
        };
        let (began, mut sessions, mut ended) = (Instant::now(), HashMap::new(), HashSet::new());
        loop {
            let fault = match self.kill(&scanner, &mut sessions) {
                Ok(found) if found.live.is_empty() && found.fault.is_none() => {
                    self.report(&ended, &found);
                    return;
                }
                Ok(found) => {
                    ended.extend(found.live.iter().map(Process::key));
                    found.fault
                }
                Err(error) => Some(error),
            };
            if began.elapsed() > END_TIMEOUT {
                return match fault {
                    Some(error) => warn!(%error, "cannot end processes that a killed agent left running"),
                    None => {
                        warn!(processes = ended.len(), "some processes that a killed agent left running do not end")
                    }
                };
            }
            std::thread::sleep(RETRY_DELAY);
        }
    }

    fn report(&self, ended: &HashSet<(i32, u64)>, found: &Found) {
        let list = |pids: &BTreeSet<i32>| pids.iter().map(i32::to_string).collect::<Vec<_>>().join(",");
        if !ended.is_empty() {
            info!(processes = ended.len(), "ended processes that a killed agent left running");
        }
        if !found.refused.is_empty() {
            let pids = list(&found.refused);
            warn!(pids, "this agent may not end processes that a killed agent left running");
        }
        if !found.spared.is_empty() {
            let pids = list(&found.spared);
            warn!(pids, "a killed agent left commands running in the background; telexec can no longer reach them");
        }
    }

    /// Sends SIGKILL to all processes that may not stay. `sessions` gets theirs, with the start times of their
    /// leaders, which may be gone when the others are scanned again.
    ///
    /// # Errors
    /// They cannot be found now; trying again helps.
    fn kill(&self, scanner: &ProcessScanner, sessions: &mut HashMap<i32, Option<u64>>) -> io::Result<Found> {
        let mut found = Found::default();
        for leaf in self.leaves()? {
            if self.spared.values().flatten().any(|spared| spared.path == leaf.path() && spared.is_there()) {
                found.spared.extend(leaf.members()?.iter().map(|process| process.pid));
            } else if let Err(error) = end_leaf(&leaf, &mut found.live) {
                // the others are ended all the same
                found.fault = Some(error);
            }
        }
        let all = scanner.scan(Instant::now(), |_| {})?;
        let marked: Vec<_> = all.all().filter(|process| self.is_of_engine(process)).collect();
        let stays = |process: &Process| self.is_spared(process) || self.is_continued(process);
        let is_bound = |process: &Process| self.is_of_engine(process) && !stays(process);
        let bound = marked.iter().filter(|process| is_bound(process));
        let leader = |session: i32| (session, all.get(session).map(|leader| leader.start_ticks));
        // a number that leads another process has been given out again
        sessions.retain(|session, ticks| all.get(*session).is_none_or(|process| Some(process.start_ticks) == *ticks));
        sessions.extend(bound.filter(|process| is_own_session(&all, process)).map(|process| leader(process.session)));
        sessions.extend(self.noted_sessions(&all, false).map(leader));
        found.spared.extend(self.noted_sessions(&all, true));
        let roots = all.all().filter(|process| is_bound(process) || sessions.contains_key(&process.session));
        for process in all.with_descendants(roots, 0) {
            if stays(&process) || found.spared.contains(&process.pid) {
                continue;
            }
            let sent = table::open(&process)?.map_or(Ok(()), |pidfd| control::send(&pidfd, Signal::KILL));
            if sent.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM)) {
                found.refused.insert(process.pid);
                continue;
            }
            found.live.push(process);
        }
        cgroup::thaw(&found.live);
        let spared = marked.iter().filter(|process| self.is_spared(process) && !self.is_continued(process));
        found.spared.extend(spared.map(|process| process.pid));
        Ok(found)
    }

    fn leaves(&self) -> io::Result<Vec<Abandoned>> {
        let there = self.engine.cgroups.iter().filter(|cgroup| cgroup.is_there());
        let mut leaves = Vec::new();
        for tree in there {
            leaves.extend(cgroup::abandoned(&tree.path, &self.continued.cgroups)?);
        }
        Ok(leaves)
    }

    /// Those whose leaders are there, of executions that may stay or may not.
    fn noted_sessions(&self, all: &Snapshot, spared: bool) -> impl Iterator<Item = i32> {
        let is_leader = |session: &Session| {
            all.get(session.leader).is_some_and(|process| process.key() == (session.leader, session.start_ticks))
        };
        let key = |session: &Session| key::text(&self.engine.name, session.execution);
        let is_spared = move |session: &Session| self.spared.contains_key(&key(session));
        let is_continued = move |session: &Session| self.continued.keys.contains(&key(session));
        let comparable = self.engine.process.is_some_and(|process| process.is_comparable());
        let known = if comparable { self.sessions.as_slice() } else { &[] };
        known
            .iter()
            .filter(move |session| !is_continued(session) && is_spared(session) == spared && is_leader(session))
            .map(|session| session.leader)
    }

    fn is_of_engine(&self, process: &Process) -> bool {
        let engine = |marker: &String| marker.split_once('.').is_some_and(|(engine, _)| engine == self.engine.name);
        !process.zombie && process.marker.as_ref().is_some_and(engine)
    }

    fn is_spared(&self, process: &Process) -> bool {
        process.marker.as_ref().is_some_and(|marker| self.spared.contains_key(marker))
    }

    fn is_continued(&self, process: &Process) -> bool {
        process.marker.as_ref().is_some_and(|marker| self.continued.keys.contains(marker))
    }

    /// Removes what is named after it and was made by this user. Others can make what is named so, where everybody can
    /// make files: of a directory no more is removed than an engine makes.
    fn remove_files(&self, place: &Path) {
        let own = rustix::process::geteuid().as_raw();
        let engine = format!("{}.", self.engine.name);
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            let name = name.to_string_lossy();
            let is_continued = |key: &str| self.continued.keys.iter().any(|continued| is_of(key, continued));
            let of_engine =
                |prefix| name.strip_prefix(prefix).filter(|key| key.starts_with(&engine) && !is_continued(key));
            let is_own = || fs::symlink_metadata(&path).is_ok_and(|found| found.uid() == own);
            if of_engine(REPORT_PREFIX).is_some() && is_own() {
                let _ = fs::remove_file(path);
            } else if let Some((key, _)) = of_engine(TEMPORARY_PREFIX).and_then(|key| key.rsplit_once('.'))
                && is_own()
            {
                let _ = fs::remove_file(path.join(format!("{REPORT_PREFIX}{key}")));
                let _ = fs::remove_dir(path);
            }
        }
    }
}

/// The name of a file is that of an execution with this key, perhaps with something after it.
fn is_of(name: &str, key: &str) -> bool {
    name.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Sends SIGKILL to all in a cgroup; `live` gets those that are seen there.
fn end_leaf(leaf: &Abandoned, live: &mut Vec<Process>) -> io::Result<()> {
    let seen = leaf.members().map(|members| live.extend(members));
    leaf.kill().and(seen)
}

/// The session of a process that carries a key is that execution's. Each execution starts in a new one; but a process
/// of any session can take a key for its own.
fn is_own_session(all: &Snapshot, process: &Process) -> bool {
    let session = process.session;
    let lives = |process: &&Process| !process.zombie && !process.exiting;
    if let Some(leader) = all.get(session).filter(|leader| leader.session == session).filter(lives) {
        return leader.marker == process.marker;
    }
    let user = user_ids(process.pid);
    // its leader may be in a pid namespace that is not seen here; number 0 stands for all of these
    let mut others = all.in_session_or_group(session).filter(|other| other.session == session).filter(lives);
    session != 0 && user.is_some() && others.all(|other| user_ids(other.pid).is_none_or(|ids| Some(ids) == user))
}

/// All user ids of a process, as proc(5) shows them; `None`: it has ended.
fn user_ids(pid: i32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:")).map(str::to_owned)
}
