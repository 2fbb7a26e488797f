//! What an engine notes in case it is killed, and what the next one on the same state directory does about it.
//!
//! An engine's directory holds a file that names the engine and its cgroups, one for each execution that may outlive the call
//! that started it, and one with the sessions that no cgroup keeps. Of a killed engine nobody can reach anything any more. The next one ends what carries its name, whatever state it is in, but for those that may outlive their
//! calls; those are left running, and the log names them.
//!
//! A process is ended if its environment has the dead engine's random name, if it is in a cgroup of that engine, which is
//! recognized by its inode, or in a session whose leader is the one that was noted, or if it descends from one of these. No request can set that variable, but any process can give
//! it to itself, wherever it is: so others in its session are ended only if the session's leader has the same key, or is gone
//! and all of them are of the same user. After a reboot there is nothing to end.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::cgroup::{self, Abandoned};
use super::disk::{Disk, NoAnswer};
use super::key::{self, Key};
use super::process;
use super::processes::{self, Census, Process, Snapshot};
use super::sessions::{self, Session, SessionNote, Sessions};
use super::spool::{self, Spool};
use crate::Signal;

/// What the names of temporary directories begin with.
pub(super) const TEMPORARY: &str = "telexec-";
/// What the names of the files begin with that shells report their directories in.
pub(super) const REPORT: &str = "cwd-";
const ENGINE: &str = "engine";
/// What the names of the files begin with that spare an execution.
const OUTLIVES: &str = "outlives-";
const VERSION: u32 = 1;
/// How long processes may take to end that were sent SIGKILL: far longer than they do.
const ENDING: Duration = Duration::from_secs(10);
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The file of an engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Engine {
    version: u32,
    /// What the keys of its executions begin with.
    name: String,
    boot_id: String,
    /// `None`: it could not be found out.
    #[serde(default)]
    process: Option<Itself>,
    cgroups: Vec<Cgroup>,
}

/// What a file of any version says of itself.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// The process of an engine. Ids are used again, and mean something only in their namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Itself {
    pid: i32,
    start_ticks: u64,
    pid_namespace: u64,
    /// Kernels before Linux 5.6 have none.
    time_namespace: Option<u64>,
}

impl Itself {
    /// This one.
    ///
    /// # Errors
    /// /proc cannot be read.
    fn own() -> io::Result<Self> {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let process = processes::read(pid)?.ok_or(io::ErrorKind::NotFound)?;
        let pid_namespace = fs::metadata("/proc/self/ns/pid")?.ino();
        let time_namespace = fs::metadata("/proc/self/ns/time").ok().map(|found| found.ino());
        Ok(Self { pid, start_ticks: process.start_ticks, pid_namespace, time_namespace })
    }

    /// Its ids and times are those of this process too.
    fn is_comparable(&self) -> bool {
        let namespaces = |of: &Self| (of.pid_namespace, of.time_namespace);
        Self::own().is_ok_and(|own| namespaces(&own) == namespaces(self))
    }

    /// Only what is seen counts: /proc may hide a process that lives (hidepid, see proc(5)).
    fn has_ended(&self) -> bool {
        let Some(pid) = rustix::process::Pid::from_raw(self.pid).filter(|_| self.is_comparable()) else { return false };
        if let Err(error) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
            return error == rustix::io::Errno::SRCH;
        }
        let is_another = |process: Process| process.start_ticks != self.start_ticks || process.zombie;
        processes::read(self.pid).is_ok_and(|seen| seen.is_some_and(is_another))
    }
}

/// A cgroup by its path and inode: paths are used again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cgroup {
    path: PathBuf,
    inode: u64,
}

impl Cgroup {
    /// `None`: it is not there.
    fn of(path: &Path) -> Option<Self> {
        Some(Self { path: path.to_owned(), inode: fs::metadata(path).ok()?.ino() })
    }

    fn is_there(&self) -> bool {
        Self::of(&self.path).as_ref() == Some(self)
    }
}

/// The files of one engine, which are written again with their directory.
pub(super) struct Notes {
    directory: PathBuf,
    /// Locked while it is written. `None`: the engine has not begun, or has ended in an orderly way.
    engine: Mutex<Option<Engine>>,
    sessions: Arc<Sessions>,
    /// Of executions that may outlive their calls, by the names of the files.
    outlives: Mutex<BTreeMap<String, Option<Cgroup>>>,
    next: AtomicU64,
}

impl Notes {
    pub(super) fn new(directory: PathBuf) -> Self {
        let sessions = Sessions::new(&directory);
        Self { directory, engine: Mutex::default(), sessions, outlives: Mutex::default(), next: AtomicU64::new(0) }
    }

    /// Where that cannot be done, as on a full disk, the log says so. Blocks.
    pub(super) fn write_again(&self) {
        self.sessions.write_again();
        let outlives = lock(&self.outlives).clone();
        // the engine's comes last: without it nothing is ended
        let written = outlives.iter().try_for_each(|(name, cgroup)| self.write(name, cgroup.as_ref()));
        if let Err(error) = written.and_then(|()| self.change_engine(|_| {})) {
            warn!(%error, "after a crash of this agent its commands would run on");
        }
    }

    fn write(&self, name: &str, cgroup: Option<&Cgroup>) -> io::Result<()> {
        let file =
            File::options().create(true).truncate(true).write(true).mode(0o600).open(self.directory.join(name))?;
        Ok(serde_json::to_writer(file, &cgroup)?)
    }

    fn change_engine(&self, change: impl FnOnce(&mut Option<Engine>)) -> io::Result<()> {
        let mut engine = lock(&self.engine);
        change(&mut engine);
        let path = self.directory.join(ENGINE);
        let Some(engine) = &*engine else {
            let _ = fs::remove_file(path);
            return Ok(());
        };
        let mut file = tempfile::NamedTempFile::new_in(&self.directory)?;
        serde_json::to_writer(file.as_file_mut(), engine)?;
        file.persist(path)?;
        Ok(())
    }

    fn remove(&self, name: &str) {
        lock(&self.outlives).remove(name);
        let _ = fs::remove_file(self.directory.join(name));
    }
}

/// A panic while the lock was held leaves nothing half done here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where one engine notes what the next one needs to know.
pub(super) struct Journal {
    spool: Arc<Spool>,
}

/// An execution may outlive its call, for as long as this is not dropped.
pub(super) struct Note {
    disk: Disk,
    notes: Arc<Notes>,
    name: String,
}

impl Drop for Note {
    fn drop(&mut self) {
        let (notes, name) = (Arc::clone(&self.notes), std::mem::take(&mut self.name));
        drop(self.disk.spawn("", move || notes.remove(&name)));
    }
}

impl Journal {
    /// Notes the engine and the directories of its cgroups; where that cannot be written, as on a full disk, the log says so.
    /// Blocks.
    pub(super) fn begin(spool: Arc<Spool>, name: &str, cgroups: &[PathBuf]) -> Self {
        let (name, boot_id) = (name.to_owned(), boot_id());
        let (process, cgroups) = (Itself::own().ok(), present(cgroups));
        *lock(&spool.notes().engine) = Some(Engine { version: VERSION, name, boot_id, process, cgroups });
        spool.notes().write_again();
        Self { spool }
    }

    /// Notes the directories of the engine's cgroups anew, some of which were made again. Blocks.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn note_cgroups(&self, cgroups: &[PathBuf]) -> io::Result<()> {
        self.spool.make_again()?;
        self.spool.notes().change_engine(|engine| {
            if let Some(engine) = engine {
                engine.cgroups = present(cgroups);
            }
        })
    }

    /// The engine ends in an orderly way: what it leaves running was asked to stay. Blocks.
    pub(super) fn end(&self) {
        // which cannot fail
        let _ = self.spool.notes().change_engine(|engine| *engine = None);
    }

    /// Notes that an execution, in this cgroup, may outlive its call. Blocks.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn outlives(&self, key: &Key, cgroup: Option<&Path>) -> io::Result<Note> {
        self.spool.make_again()?;
        let (notes, cgroup) = (Arc::clone(self.spool.notes()), cgroup.and_then(Cgroup::of));
        // not that of an earlier attempt, which was given up and may still be removed
        let name = format!("{OUTLIVES}{key}-{}", notes.next.fetch_add(1, Ordering::Relaxed));
        lock(&notes.outlives).insert(name.clone(), cgroup.clone());
        let note = Note { disk: self.spool.disk().clone(), notes, name };
        note.notes.write(&note.name, cgroup.as_ref())?;
        Ok(note)
    }

    /// The same in the turn of `owner`, off the runtime's threads. An execution that cannot be noted is ended after a crash.
    pub(super) async fn note(self: &Arc<Self>, owner: &str, key: Key, cgroup: Option<PathBuf>) -> Option<Note> {
        let this = Arc::clone(self);
        said(self.spool.disk().run(owner, move || this.outlives(&key, cgroup.as_deref())).await)
    }

    /// Notes the session of an execution that no cgroup keeps. Does not block.
    pub(super) fn session(&self, key: &Key, leader: i32, start_ticks: u64) -> SessionNote {
        let session = Session { execution: key.number(), leader, start_ticks };
        self.spool.notes().sessions.note(session, self.spool.disk())
    }
}

/// Those of these cgroups that are there.
fn present(cgroups: &[PathBuf]) -> Vec<Cgroup> {
    cgroups.iter().filter_map(|path| Cgroup::of(path)).collect()
}

/// The note, if there is one; the log says if it could not be written.
pub(super) fn said(noted: Result<io::Result<Note>, NoAnswer>) -> Option<Note> {
    let noted = noted.map_err(io::Error::from).and_then(|noted| noted);
    noted.inspect_err(|error| warn!(%error, "the command would not outlive a crash of the agent")).ok()
}

/// The engine of this directory has ended, whoever has its lock: a process that a killed engine was starting may have that for
/// a moment.
pub(super) fn has_ended(directory: &Path) -> bool {
    let engine = fs::read(directory.join(ENGINE)).ok().and_then(|bytes| serde_json::from_slice::<Engine>(&bytes).ok());
    let is_of_this_boot = |engine: &Engine| !engine.boot_id.is_empty() && engine.boot_id == boot_id();
    engine.filter(is_of_this_boot).and_then(|engine| engine.process).is_some_and(|process| process.has_ended())
}

fn boot_id() -> String {
    fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned()
}

/// Ends what dead engines on this state directory have left running, and removes their temporary files; their directories
/// stay for [`Spool::new`]. Blocks.
///
/// # Errors
/// The state directory cannot be read.
pub(super) fn end_in(state_dir: &Path) -> io::Result<()> {
    let _all = spool::lock_all(state_dir)?;
    for directory in spool::abandoned(state_dir)? {
        end_of(state_dir, &directory);
    }
    Ok(())
}

/// The same for dead engines whose state directories were temporary, which are removed. Blocks.
pub(super) fn end_in_temporary() {
    let own = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        // where everybody can make such a directory
        let is_own = || {
            fs::symlink_metadata(entry.path())
                .is_ok_and(|found| found.is_dir() && found.uid() == own && found.mode() & 0o077 == 0)
        };
        if !entry.file_name().to_string_lossy().starts_with(TEMPORARY) || !is_own() {
            continue;
        }
        let state_dir = entry.path();
        // one that is being made is locked, or has no lock yet
        let Ok(_all) = spool::try_lock_all(&state_dir) else { continue };
        let Ok(dead) = spool::abandoned(&state_dir) else { continue };
        dead.iter().for_each(|directory| end_of(&state_dir, directory));
        if !dead.is_empty() {
            let _ = fs::remove_dir_all(&state_dir);
        }
    }
}

/// The same for one of them, once.
pub(super) fn end_of(state_dir: &Path, directory: &Path) {
    match Leftovers::read(directory) {
        Ok(Some(leftovers)) => {
            leftovers.end();
            for place in [state_dir, &std::env::temp_dir()] {
                leftovers.remove_files(place);
            }
        }
        // it ended in an orderly way, or before anything ran
        Ok(None) => {}
        Err(error) => {
            warn!(path = %directory.display(), %error, "what a killed agent left running cannot be found");
        }
    }
    let _ = fs::remove_file(directory.join(ENGINE));
}

/// What a dead engine may have left.
struct Leftovers {
    engine: Engine,
    /// The keys of executions that go on, and their cgroups.
    spared: BTreeMap<String, Option<Cgroup>>,
    /// Those of all executions that no cgroup keeps.
    sessions: Vec<Session>,
}

/// What a look has found.
#[derive(Debug, Default)]
struct Found {
    live: Vec<Process>,
    spared: BTreeSet<i32>,
    /// This process may not signal them.
    refused: BTreeSet<i32>,
    /// A cgroup could not be ended.
    fault: Option<io::Error>,
}

impl Leftovers {
    /// `None`: there are none.
    ///
    /// # Errors
    /// A file cannot be read, or is of another version.
    fn read(directory: &Path) -> io::Result<Option<Self>> {
        let file = match fs::read(directory.join(ENGINE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let Version { version } = serde_json::from_slice(&file)?;
        if version != VERSION {
            return Err(io::Error::other(format!("the file is of version {version}, not {VERSION}")));
        }
        let engine: Engine = serde_json::from_slice(&file)?;
        let mut spared = BTreeMap::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_str().and_then(|name| name.strip_prefix(OUTLIVES));
            if let Some(key) = name.and_then(|name| name.split('-').next()) {
                // one that is not whole was being written when the engine was killed: its execution was still bound
                if let Ok(cgroup) = serde_json::from_slice(&fs::read(entry.path())?) {
                    spared.insert(key.to_owned(), cgroup);
                }
            }
        }
        Ok(Some(Self { engine, spared, sessions: sessions::read(directory)? }))
    }

    fn end(&self) {
        if boot_id() != self.engine.boot_id {
            return;
        }
        let census = match Census::of_all() {
            Ok(census) => census,
            Err(error) => return warn!(%error, "what a killed agent left running cannot be looked for"),
        };
        let (began, mut sessions, mut ended) = (Instant::now(), HashMap::new(), HashSet::new());
        loop {
            let fault = match self.kill(&census, &mut sessions) {
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
            if began.elapsed() > ENDING {
                return match fault {
                    Some(error) => warn!(%error, "what a killed agent left running cannot be ended"),
                    None => warn!(processes = ended.len(), "some of what a killed agent left running does not end"),
                };
            }
            std::thread::sleep(super::PAUSE);
        }
    }

    fn report(&self, ended: &HashSet<(i32, u64)>, found: &Found) {
        let list = |pids: &BTreeSet<i32>| pids.iter().map(i32::to_string).collect::<Vec<_>>().join(",");
        if !ended.is_empty() {
            info!(processes = ended.len(), "ended what a killed agent left running");
        }
        if !found.refused.is_empty() {
            let pids = list(&found.refused);
            warn!(pids, "this agent may not end processes that a killed agent left running");
        }
        if !found.spared.is_empty() {
            let pids = list(&found.spared);
            warn!(
                pids,
                "a killed agent left commands of the background running; nobody can reach them by telexec any more"
            );
        }
    }

    /// Sends SIGKILL to all that may not go on. `sessions` gets theirs, with the start times of their leaders, which may be gone
    /// when the others are looked at again.
    ///
    /// # Errors
    /// They cannot be found now; asking again helps.
    fn kill(&self, census: &Census, sessions: &mut HashMap<i32, Option<u64>>) -> io::Result<Found> {
        let mut found = Found::default();
        for leaf in self.leaves()? {
            if self.spared.values().flatten().any(|spared| spared.path == leaf.path() && spared.is_there()) {
                found.spared.extend(leaf.members()?.iter().map(|process| process.pid));
            } else if let Err(error) = end_leaf(&leaf, &mut found.live) {
                // the others are ended all the same
                found.fault = Some(error);
            }
        }
        let all = census.take(Instant::now(), |_| {})?;
        let marked: Vec<_> = all.all().filter(|process| self.is_of_engine(process)).collect();
        let is_bound = |process: &Process| self.is_of_engine(process) && !self.is_spared(process);
        let bound = marked.iter().filter(|process| is_bound(process));
        let leader = |session: i32| (session, all.get(session).map(|leader| leader.start_ticks));
        // a number that leads another process has been given out again
        sessions.retain(|session, ticks| all.get(*session).is_none_or(|process| Some(process.start_ticks) == *ticks));
        sessions.extend(bound.filter(|process| is_own_session(&all, process)).map(|process| leader(process.session)));
        sessions.extend(self.noted_sessions(&all, false).map(leader));
        found.spared.extend(self.noted_sessions(&all, true));
        let roots = all.all().filter(|process| is_bound(process) || sessions.contains_key(&process.session));
        for process in all.with_descendants(roots, 0) {
            if self.is_spared(&process) || found.spared.contains(&process.pid) {
                continue;
            }
            let sent = processes::open(&process)?.map_or(Ok(()), |pidfd| process::send(&pidfd, Signal::KILL));
            if sent.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM)) {
                found.refused.insert(process.pid);
                continue;
            }
            found.live.push(process);
        }
        cgroup::thaw(&found.live);
        found.spared.extend(marked.iter().filter(|process| self.is_spared(process)).map(|process| process.pid));
        Ok(found)
    }

    fn leaves(&self) -> io::Result<Vec<Abandoned>> {
        let there = self.engine.cgroups.iter().filter(|cgroup| cgroup.is_there());
        let mut leaves = Vec::new();
        for tree in there {
            leaves.extend(cgroup::abandoned(&tree.path)?);
        }
        Ok(leaves)
    }

    /// Those whose leaders are there, of executions that may go on or may not.
    fn noted_sessions(&self, all: &Snapshot, spared: bool) -> impl Iterator<Item = i32> {
        let is_leader = |session: &Session| {
            all.get(session.leader).is_some_and(|process| process.key() == (session.leader, session.start_ticks))
        };
        let is_spared = |session: &Session| self.spared.contains_key(&key::text(&self.engine.name, session.execution));
        let comparable = self.engine.process.is_some_and(|process| process.is_comparable());
        let known = if comparable { self.sessions.as_slice() } else { &[] };
        known
            .iter()
            .filter(move |session| is_spared(session) == spared && is_leader(session))
            .map(|session| session.leader)
    }

    fn is_of_engine(&self, process: &Process) -> bool {
        let engine = |marker: &String| marker.split_once('.').is_some_and(|(engine, _)| engine == self.engine.name);
        !process.zombie && process.marker.as_ref().is_some_and(engine)
    }

    fn is_spared(&self, process: &Process) -> bool {
        process.marker.as_ref().is_some_and(|marker| self.spared.contains_key(marker))
    }

    /// Removes what is named after it and was made by this user. Others can make what is named so, where everybody can make
    /// files: of a directory no more is removed than an engine makes.
    fn remove_files(&self, place: &Path) {
        let own = rustix::process::geteuid().as_raw();
        let engine = format!("{}.", self.engine.name);
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            let name = name.to_string_lossy();
            let of_engine = |prefix| name.strip_prefix(prefix).filter(|key| key.starts_with(&engine));
            let is_own = || fs::symlink_metadata(&path).is_ok_and(|found| found.uid() == own);
            if of_engine(REPORT).is_some() && is_own() {
                let _ = fs::remove_file(path);
            } else if let Some((key, _)) = of_engine(TEMPORARY).and_then(|key| key.rsplit_once('.'))
                && is_own()
            {
                let _ = fs::remove_file(path.join(format!("{REPORT}{key}")));
                let _ = fs::remove_dir(path);
            }
        }
    }
}

/// Sends SIGKILL to all in a cgroup; `live` gets those that are seen there.
fn end_leaf(leaf: &Abandoned, live: &mut Vec<Process>) -> io::Result<()> {
    let seen = leaf.members().map(|members| live.extend(members));
    leaf.kill().and(seen)
}

/// The session of a process that carries a key is that execution's. Each execution starts in a new one; but a process of any
/// session can take a key for its own.
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

#[cfg(test)]
mod tests {
    use std::io::BufReader;
    use std::os::unix::fs::chown;
    use std::process::{Command, Stdio};

    use rustix::process::geteuid;

    use super::*;

    /// An engine of which nobody has heard.
    fn dead(cgroups: &[PathBuf]) -> Leftovers {
        let name = uuid::Uuid::now_v7().simple().to_string();
        let (boot_id, process) = (boot_id(), Itself::own().ok());
        let engine = Engine { version: VERSION, name, boot_id, process, cgroups: present(cgroups) };
        Leftovers { engine, spared: BTreeMap::new(), sessions: Vec::new() }
    }

    #[test]
    fn only_what_the_engine_made_is_removed() {
        let (place, leftovers) = (tempfile::tempdir().unwrap(), dead(&[]));
        let path = |name: &str| place.path().join(name.replace('E', &leftovers.engine.name));
        let kept = ["telexec-E.1.x/other", "telexec-E.1.x", "telexec-other.0.x", "cwd-other.0", "E"];
        let removed = ["telexec-E.0.x/cwd-E.0", "telexec-E.0.x", "cwd-E.2"];
        for name in ["telexec-E.0.x/cwd-E.0", "telexec-E.1.x/other", "telexec-other.0.x", "cwd-other.0", "cwd-E.2", "E"]
        {
            fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            fs::write(path(name), "x").unwrap();
        }
        let others = ["telexec-E.3.x", "cwd-E.4"];
        if geteuid().is_root() {
            fs::create_dir(path(others[0])).unwrap();
            fs::write(path(others[1]), "x").unwrap();
            others.iter().for_each(|name| chown(path(name), Some(65534), None).unwrap());
        }
        leftovers.remove_files(place.path());
        assert_eq!(kept.map(|name| path(name).exists()), [true; 5]);
        assert_eq!(removed.map(|name| path(name).exists()), [false; 3]);
        assert_eq!(others.map(|name| path(name).exists()), [geteuid().is_root(); 2], "those of other users");
    }

    /// Runs a text in a session of its own, in which `$KEY` sets the engine's key. Returns who says its number there, by
    /// their numbers.
    fn session<const N: usize>(leftovers: &Leftovers, text: &str) -> [i32; N] {
        let text = text.replace("$KEY", &format!("TELEXEC_EXECUTION_KEY={}.0", leftovers.engine.name));
        let mut session = Command::new("setsid");
        session.args(["--fork", "sh", "-c", &text]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut session = session.spawn().unwrap();
        let lines = io::BufRead::lines(BufReader::new(session.stdout.take().unwrap()));
        let mut lines: Vec<String> = lines.take(N).map(Result::unwrap).collect();
        lines.sort();
        session.wait().unwrap();
        std::array::from_fn(|number| lines[number].split_once(' ').unwrap().1.parse().unwrap())
    }

    /// Says its number once it has its environment.
    fn sleeper(number: usize) -> String {
        format!("sh -c 'echo {number} $$; exec sleep 300 >/dev/null'")
    }

    fn is_alive(pid: i32) -> bool {
        processes::read(pid).unwrap().is_some_and(|process| !process.zombie && !process.exiting)
    }

    fn until_ended(pid: i32) {
        while is_alive(pid) {
            std::thread::sleep(crate::local::PAUSE);
        }
    }

    /// Ends what is left; returns which of these live on, and ends those too.
    fn survivors<const N: usize>(leftovers: &Leftovers, pids: [i32; N]) -> [bool; N] {
        leftovers.end();
        let alive = pids.map(is_alive);
        for pid in pids.into_iter().filter(|pid| is_alive(*pid)) {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        alive
    }

    #[test]
    fn a_session_is_ended_only_with_a_leader_of_its_own() {
        let leftovers = dead(&[]);
        let [leader, other, marked] = [0, 1, 2].map(sleeper);
        let pids = session::<3>(&leftovers, &format!("{other} & $KEY {marked} & exec {leader}"));
        assert_eq!(survivors(&leftovers, pids), [true, true, false], "the session is another's");
        let orphan = format!("(env -i {other} &)");
        let pids = session::<2>(&leftovers, &format!("{orphan}; $KEY exec {leader}"));
        assert_eq!(survivors(&leftovers, pids), [false, false], "the session is the command's");
    }

    #[test]
    fn a_session_without_its_leader_is_ended_only_if_it_is_of_one_user() {
        let leftovers = dead(&[]);
        let [_, other, marked] = [0, 1, 2].map(sleeper);
        let start = |text: &str| {
            let [leader, other, marked] = session(&leftovers, &format!("echo 0 $$; {other} & {text}"));
            until_ended(leader);
            [other, marked]
        };
        assert_eq!(survivors(&leftovers, start(&format!("$KEY {marked} &"))), [false, false]);
        if geteuid().is_root() {
            let pids = start(&format!("$KEY setpriv --reuid 65534 --clear-groups {marked} &"));
            assert_eq!(survivors(&leftovers, pids), [true, false], "a stranger is in it");
        }
    }

    #[test]
    fn a_noted_session_is_ended_while_its_leader_is_there() {
        let survivors = |differs: u64, spares: bool| {
            let mut leftovers = dead(&[]);
            let [leader, other] = [0, 1].map(sleeper);
            let pids = session::<2>(&leftovers, &format!("env -i setsid {other} & exec env -i {leader}"));
            let start_ticks = processes::read(pids[0]).unwrap().unwrap().start_ticks + differs;
            leftovers.sessions.push(Session { execution: 7, leader: pids[0], start_ticks });
            if spares {
                leftovers.spared.insert(key::text(&leftovers.engine.name, 7), None);
            }
            survivors(&leftovers, pids)
        };
        assert_eq!(survivors(0, false), [false; 2]);
        assert_eq!(survivors(1, false), [true; 2], "its number was used again");
        assert_eq!(survivors(0, true), [true; 2], "it may outlive its call");
    }

    #[test]
    fn an_engine_whose_lock_another_process_holds_has_ended() {
        let state = tempfile::tempdir().unwrap();
        let directory = state.path().join(format!("{}x", spool::PREFIX));
        fs::create_dir(&directory).unwrap();
        let held = File::open(&directory).unwrap();
        rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let is_abandoned = |change: fn(&mut Engine)| {
            let mut engine = dead(&[]).engine;
            change(&mut engine);
            fs::write(directory.join(ENGINE), serde_json::to_vec(&engine).unwrap()).unwrap();
            !spool::abandoned(state.path()).unwrap().is_empty()
        };
        assert!(!is_abandoned(|_| {}), "it lives");
        fn process(engine: &mut Engine) -> &mut Itself {
            engine.process.as_mut().unwrap()
        }
        assert!(is_abandoned(|engine| process(engine).pid = i32::MAX));
        assert!(is_abandoned(|engine| process(engine).start_ticks += 1));
        assert!(!is_abandoned(|engine| engine.process = None));
        let unlike: [fn(&mut Engine); 3] = [
            |engine| engine.boot_id.clear(),
            |engine| process(engine).pid_namespace = 0,
            |engine| process(engine).time_namespace = Some(0),
        ];
        for unlike in unlike {
            let mut engine = dead(&[]).engine;
            process(&mut engine).pid = i32::MAX;
            unlike(&mut engine);
            fs::write(directory.join(ENGINE), serde_json::to_vec(&engine).unwrap()).unwrap();
            assert!(spool::abandoned(state.path()).unwrap().is_empty(), "not known: {engine:?}");
        }
        fs::remove_file(directory.join(ENGINE)).unwrap();
        assert!(spool::abandoned(state.path()).unwrap().is_empty(), "it has not begun");
    }

    #[test]
    fn one_cgroup_that_cannot_be_ended_keeps_no_other_process() {
        let tree = tempfile::tempdir().unwrap();
        let leaf = tree.path().join("0");
        fs::create_dir(&leaf).unwrap();
        // it can be neither killed nor looked into
        fs::create_dir(leaf.join("cgroup.kill")).unwrap();
        fs::create_dir(leaf.join("cgroup.procs")).unwrap();
        fs::write(leaf.join("cgroup.events"), "populated 1\n").unwrap();
        let leftovers = dead(&[tree.path().to_owned()]);
        let [pid] = session(&leftovers, &format!("$KEY {} &", sleeper(0)));
        let found = leftovers.kill(&Census::of_all().unwrap(), &mut HashMap::new()).unwrap();
        assert!(found.fault.is_some() && found.live.iter().any(|process| process.pid == pid), "{found:?}");
        until_ended(pid);
    }

    fn files(directory: &Path) -> Vec<String> {
        let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    fn remove(directory: &Path, note: Note) {
        let file = directory.join(&note.name);
        drop(note);
        while file.exists() {
            std::thread::sleep(crate::local::PAUSE);
        }
    }

    #[tokio::test]
    async fn a_note_is_not_removed_with_an_earlier_one_and_comes_back_with_its_directory() {
        let state = tempfile::tempdir().unwrap();
        let (spool, _) = Spool::new(Disk::new().unwrap(), Some(state.path()), spool::SpoolLimits::default()).unwrap();
        let keys = crate::local::key::Keys::new();
        let (key, directory) = (keys.next(), spool.directory().to_owned());
        let journal = Arc::new(Journal::begin(Arc::clone(&spool), keys.engine(), &[]));
        let given_up = journal.outlives(&key, None).unwrap();
        let note = journal.note("owner", key.clone(), None).await.unwrap();
        remove(&directory, given_up);
        let noted = files(&directory);
        assert!(noted.len() == 2 && noted.contains(&ENGINE.to_owned()), "{noted:?}");
        let spared = || Leftovers::read(&directory).unwrap().unwrap().spared.into_keys().collect::<Vec<_>>();
        assert_eq!(spared(), [key.to_string()]);

        fs::remove_dir_all(state.path()).unwrap();
        assert!(spool.is_full().await.unwrap().is_none());
        assert_eq!((files(&directory), spared()), (noted, vec![key.to_string()]));
        remove(&directory, note);
        journal.end();
        fs::remove_dir_all(&directory).unwrap();
        spool.make_again().unwrap();
        assert_eq!(files(&directory), [""; 0], "what has ended is not noted again");
    }
}
