//! The cgroups of one execution.

use std::collections::HashSet;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use telexec_executor::Signal;
use telexec_spawn::CgroupEntry;
use tokio::io::Interest;

use super::directory::Directory;
use super::files::{read_text, write_at};
use crate::process::control;
use crate::process::signaller::Signaller;
use crate::process::table::{self, Process};
use crate::wait::{RETRY_DELAY, is_transient};

/// Where the processes of one execution are kept. Dropping it removes what holds no process.
#[derive(Debug)]
pub(crate) struct Leaf {
    pub(super) keeper: Keeper,
    /// Of version 1, beside the keeper.
    pub(super) controllers: Vec<Directory>,
    /// The file that counts the processes ended for want of memory, and of which directory: see [`Leaf::directory`].
    pub(super) oom: Option<OomCounter>,
}

/// The cgroup that finds and ends all its processes.
#[derive(Debug)]
pub(super) enum Keeper {
    /// Of version 2: it can be killed as a whole, and reports when it is empty.
    Unified(Directory),
    /// Of version 1: it can be frozen, so that none can get away.
    Freezer(Directory),
    /// There is none; cgroups are only there for limits.
    None,
}

/// Which directory counts kills by the OOM killer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OomCounter {
    /// The keeper.
    Keeper,
    /// The controller with this number.
    Controller(usize),
}

/// What came of a [`Leaf::kill`].
#[derive(Debug)]
pub(crate) struct Killed {
    /// For certain no process was left in it.
    pub(crate) all: bool,
    /// Those, by id and start time, that this process may not signal.
    pub(crate) refused: HashSet<(i32, u64)>,
}

/// How long processes may take to freeze. Some cannot, while they are in the kernel.
const FREEZE_TIMEOUT: Duration = Duration::from_millis(50);

impl Leaf {
    /// How a process enters it that is made by this one.
    ///
    /// # Errors
    /// Descriptors have run out.
    pub(crate) fn entry(&self) -> io::Result<CgroupEntry> {
        let mut entry = CgroupEntry::default();
        match &self.keeper {
            Keeper::Unified(directory) if telexec_spawn::can_be_born_in_a_cgroup() => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                entry.birthplace = Some(rustix::fs::open(directory.path(), flags, Mode::empty())?);
            }
            Keeper::Unified(directory) | Keeper::Freezer(directory) => entry.joins.push(procs(directory)?),
            Keeper::None => {}
        }
        for directory in &self.controllers {
            entry.joins.push(procs(directory)?);
        }
        Ok(entry)
    }

    /// How a process enters it that is made by a keeper: that is born in the cgroup of this path, and joins the others.
    ///
    /// # Errors
    /// Descriptors have run out.
    pub(crate) fn entry_by_keeper(&self) -> io::Result<(CString, CgroupEntry)> {
        let Keeper::Unified(directory) = &self.keeper else { return Ok((CString::default(), self.entry()?)) };
        let path = CString::new(directory.path().as_os_str().as_bytes())?;
        let joins = self.controllers.iter().map(procs).collect::<io::Result<_>>()?;
        Ok((path, CgroupEntry { birthplace: None, joins }))
    }

    /// A process of the execution is in it from now on. Before that, dropping it ends what is in it.
    pub(crate) fn set_entered(&mut self) {
        let keeper = match &mut self.keeper {
            Keeper::Unified(directory) | Keeper::Freezer(directory) => Some(directory),
            Keeper::None => None,
        };
        keeper.into_iter().chain(&mut self.controllers).for_each(Directory::set_entered);
    }

    /// Processes are found and ended by it, rather than one by one.
    pub(crate) fn keeps(&self) -> bool {
        !matches!(self.keeper, Keeper::None)
    }

    /// The directory that keeps its processes together.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.keeps().then(|| self.directory()).flatten().map(Directory::path)
    }

    fn directory(&self) -> Option<&Directory> {
        match &self.keeper {
            Keeper::Unified(directory) | Keeper::Freezer(directory) => Some(directory),
            Keeper::None => self.controllers.first(),
        }
    }

    /// The live processes in it.
    ///
    /// # Errors
    /// They cannot be read now; trying again helps.
    pub(crate) fn members(&self) -> io::Result<Vec<Process>> {
        self.unless_gone(self.read_members(), Vec::new())
    }

    fn read_members(&self) -> io::Result<Vec<Process>> {
        let Some(directory) = self.directory() else { return Ok(Vec::new()) };
        let mut members = Vec::new();
        let pids = match directory.pids() {
            // a command of root has closed it
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Vec::new(),
            pids => pids?,
        };
        for pid in pids {
            members.extend(table::read(pid)?.filter(|process| !process.zombie));
        }
        if !members.is_empty() {
            // an id that is still listed was not given to a stranger before its process was read
            let still = directory.pids()?;
            members.retain(|process| still.contains(&process.pid));
        }
        Ok(members)
    }

    /// No process is in it: for certain or, with a freezer, most likely.
    ///
    /// # Errors
    /// It cannot be read now; trying again helps.
    pub(crate) fn is_empty(&self) -> io::Result<bool> {
        let is_empty = match &self.keeper {
            Keeper::Unified(directory) => directory.read(EVENTS).map(|events| !is_populated(&events)),
            Keeper::Freezer(directory) => directory.pids().map(|pids| pids.is_empty()),
            Keeper::None => Ok(false),
        };
        self.unless_gone(is_empty, true)
    }

    /// The result, or `gone` if the cgroup does not exist any more.
    fn unless_gone<T>(&self, found: io::Result<T>, gone: T) -> io::Result<T> {
        match found {
            Err(_) if self.directory().is_some_and(Directory::is_gone) => Ok(gone),
            found => found,
        }
    }

    /// Sends SIGKILL to all in it, whatever they do meanwhile.
    ///
    /// # Errors
    /// It cannot be done now; trying again helps.
    pub(crate) fn kill(&self, signaller: &Signaller) -> io::Result<Killed> {
        self.unless_gone(self.kill_all(signaller), Killed { all: true, refused: HashSet::new() })
    }

    fn kill_all(&self, signaller: &Signaller) -> io::Result<Killed> {
        match &self.keeper {
            Keeper::Unified(directory) => match directory.write("cgroup.kill", "1") {
                Ok(()) => Ok(Killed { all: self.is_empty()?, refused: HashSet::new() }),
                Err(error) if is_transient(&error) => Err(error),
                // the command has made it threaded, see cgroups(7), or this process is kept out of it
                Err(_) => self.kill_each(true, signaller),
            },
            Keeper::Freezer(directory) => {
                let killed = freeze(directory).and_then(|frozen| self.kill_each(frozen, signaller));
                // also those that the command has frozen itself
                directory.each(|cgroup| write_at(cgroup, STATE, "THAWED"))?;
                killed
            }
            Keeper::None => Ok(Killed { all: false, refused: HashSet::new() }),
        }
    }

    /// `certain`: if it looks empty afterwards, it is.
    fn kill_each(&self, certain: bool, signaller: &Signaller) -> io::Result<Killed> {
        let members = self.members()?;
        let mut refused = HashSet::new();
        for member in &members {
            if let Some(pidfd) = table::open(member)?
                // if it fails otherwise, it has ended
                && let Err(error) = signaller.send(member, &pidfd, Signal::KILL)
                && error.raw_os_error() == Some(libc::EPERM)
            {
                refused.insert(member.key());
            }
        }
        Ok(Killed { all: certain && self.is_empty()?, refused })
    }

    /// Waits until no process is in it.
    pub(crate) async fn emptied(&self) {
        while !self.is_empty().unwrap_or(false) {
            let waited = match &self.keeper {
                Keeper::Unified(directory) => changed(directory).await,
                Keeper::Freezer(_) | Keeper::None => match self.members() {
                    // one that is ending is still counted
                    Ok(members) if members.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
                    Ok(members) => {
                        table::all_ended(members).await;
                        Ok(())
                    }
                    Err(error) => Err(error),
                },
            };
            if waited.is_err() {
                // or there are no descriptors or no memory
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }

    /// The kernel's OOM killer ended a process in it; `None`: that is not counted here.
    pub(crate) fn has_run_out_of_memory(&self) -> Option<bool> {
        let kills = match (self.oom, &self.keeper) {
            (Some(OomCounter::Keeper), Keeper::Unified(directory)) => directory.number(MEMORY_EVENTS, OOM_KILLS),
            (Some(OomCounter::Keeper), Keeper::Freezer(directory)) => directory.number(OOM_CONTROL, OOM_KILLS),
            (Some(OomCounter::Controller(number)), _) => {
                self.controllers.get(number).and_then(|memory| memory.number(OOM_CONTROL, OOM_KILLS))
            }
            _ => None,
        };
        kills.map(|kills| kills > 0)
    }
}

/// The files that count kills by the OOM killer, of version 1 and of version 2, and the line that does.
pub(super) const OOM_CONTROL: &str = "memory.oom_control";
pub(super) const MEMORY_EVENTS: &str = "memory.events";
pub(super) const OOM_KILLS: &str = "oom_kill";

fn procs(directory: &Directory) -> io::Result<OwnedFd> {
    Ok(directory.file("cgroup.procs", OFlags::WRONLY)?.into())
}

pub(super) const EVENTS: &str = "cgroup.events";

pub(super) fn is_populated(events: &str) -> bool {
    events.lines().any(|line| line == "populated 1")
}

/// Waits for a change of a cgroup's events, if it is populated.
async fn changed(directory: &Directory) -> io::Result<()> {
    let events = directory.file(EVENTS, OFlags::RDONLY)?;
    // a change is one after the last time that it was read by this descriptor
    if !is_populated(&read_text(&events)?) {
        return Ok(());
    }
    let events = control::watch_for(OwnedFd::from(events), Interest::PRIORITY)?;
    events.ready(Interest::PRIORITY).await.map(|_| ())
}

pub(super) const STATE: &str = "freezer.state";

/// Freezes all; or, if that is false, all that can be frozen soon.
fn freeze(directory: &Directory) -> io::Result<bool> {
    directory.write(STATE, "FROZEN")?;
    let began = std::time::Instant::now();
    while directory.read(STATE)?.trim() != "FROZEN" {
        if began.elapsed() > FREEZE_TIMEOUT {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(true)
}

/// Whether this cgroup file system has what a keeper needs.
pub(super) fn can_keep(keeper: &Keeper) -> bool {
    let has = |directory: &Directory, name| fs::exists(directory.path().join(name)).unwrap_or(false);
    match keeper {
        Keeper::Unified(directory) => has(directory, "cgroup.kill") && has(directory, EVENTS),
        Keeper::Freezer(directory) => has(directory, STATE),
        Keeper::None => false,
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;
    use crate::ContainmentKind;
    use crate::cgroup::Cgroups;
    use crate::cgroup::tree::PREFIX;
    use crate::process::own::{EndSource, OwnChild};
    use crate::spawn::{Child, DirectSpawner, SpawnSpec, Spawner};
    use crate::streams::with_output_in_one_pipe;
    use telexec_executor::{ResourceLimits, SpawnStage};

    fn reap(own: OwnChild, child: Child) {
        let EndSource::Pidfd(_, pidfd) = child.end else { panic!("it is this process's") };
        control::wait_briefly(&pidfd);
        own.reap();
    }

    /// New cgroups of this kind, if they can be made here, and the engine's that hold them.
    fn leaf(kind: ContainmentKind) -> Option<(Cgroups, Leaf)> {
        let (cgroups, faults) = Cgroups::probe(Some(kind), &[], &[], false);
        if cgroups.kind() != kind {
            eprintln!("skipped: {kind} does not work here: {}", faults.join("; "));
            return None;
        }
        let leaf = cgroups.leaf("", None, &ResourceLimits::default()).unwrap()?;
        Some((cgroups, leaf))
    }

    /// Where a process is that starts so.
    fn whereabouts(cgroups: CgroupEntry) -> String {
        let cat = || CString::new("cat").unwrap();
        let spec = SpawnSpec {
            candidates: vec![CString::new("/bin/cat").unwrap()],
            argv: vec![cat(), CString::new("/proc/self/cgroup").unwrap()],
            working_directory: CString::new("/").unwrap(),
            cgroups,
            ..SpawnSpec::default()
        };
        let (output, ends) = with_output_in_one_pipe();
        let spawner = DirectSpawner::new().unwrap();
        let spawned = spawner.spawn(&spec, ends, spawner.expect());
        let (own, child) = spawned.map_err(|error| error.to_string()).unwrap();
        let text = io::read_to_string(output).unwrap();
        reap(own, child);
        text
    }

    fn is_in(leaf: &Leaf, whereabouts: &str) -> bool {
        let path = leaf.directory().unwrap().path();
        let base = path.ancestors().find(|path| !path.to_string_lossy().contains(PREFIX)).unwrap();
        let name = path.strip_prefix(base).unwrap();
        whereabouts.lines().any(|line| line.ends_with(&format!("/{}", name.display())))
    }

    #[test]
    fn a_process_is_born_in_a_cgroup_or_enters_it() {
        for kind in [ContainmentKind::CgroupV2, ContainmentKind::CgroupV1] {
            let Some((_cgroups, leaf)) = leaf(kind) else { continue };
            let entry = leaf.entry().unwrap();
            let is_born = kind == ContainmentKind::CgroupV2 && telexec_spawn::can_be_born_in_a_cgroup();
            // version 1 counts kills for want of memory elsewhere
            let joins = usize::from(!is_born) + leaf.controllers.len();
            assert_eq!((entry.birthplace.is_some(), entry.joins.len()), (is_born, joins));
            assert!(is_in(&leaf, &whereabouts(entry)), "{kind}");
            // as it does where there is no clone3(2)
            let joins = vec![procs(leaf.directory().unwrap()).unwrap()];
            assert!(is_in(&leaf, &whereabouts(CgroupEntry { birthplace: None, joins })), "{kind}");
            assert!(leaf.is_empty().unwrap(), "{kind}");
        }
    }

    /// Not a test but a measurement: `cargo test --release -p telexec-engine -- --ignored --nocapture spawning_takes`.
    #[test]
    #[ignore = "it measures"]
    fn spawning_takes() {
        use std::time::Instant;

        let Some((cgroups, _leaf)) = leaf(ContainmentKind::CgroupV2) else { return };
        let spawner = DirectSpawner::new().unwrap();
        let environment: Vec<_> = std::env::vars().map(|(k, v)| CString::new(format!("{k}={v}")).unwrap()).collect();
        let mut times = [const { Vec::new() }; 4];
        for round in 0..2100 {
            let begin = Instant::now();
            let mut program = std::process::Command::new("/bin/true");
            let pipe = std::process::Stdio::piped;
            let mut child = program.stdin(std::process::Stdio::null()).stdout(pipe()).stderr(pipe()).spawn().unwrap();
            let started = begin.elapsed();
            child.wait().unwrap();
            let ended = begin.elapsed();

            let begin = Instant::now();
            let leaf = cgroups.leaf("", None, &ResourceLimits::default()).unwrap().unwrap();
            let spec = SpawnSpec {
                candidates: vec![CString::new("/bin/true").unwrap()],
                argv: vec![CString::new("true").unwrap()],
                environment: environment.clone(),
                working_directory: CString::new("/").unwrap(),
                cgroups: leaf.entry().unwrap(),
                ..SpawnSpec::default()
            };
            let (_output, ends) = with_output_in_one_pipe();
            let spawned = spawner.spawn(&spec, ends, spawner.expect());
            let (own, child) = spawned.map_err(|error| error.to_string()).unwrap();
            let own_started = begin.elapsed();
            reap(own, child);
            if round >= 100 {
                for (times, time) in times.iter_mut().zip([started, own_started, ended, begin.elapsed()]) {
                    times.push(time);
                }
            }
        }
        for (name, index) in [("has started", 0), ("has ended", 2)] {
            let [mut base, mut own] = [times[index].clone(), times[index + 1].clone()];
            for (times, name) in [(&mut base, "std::process"), (&mut own, "engine, cgroup included")] {
                times.sort();
                eprintln!("/bin/true {name}: p50 {:?} p99 {:?}", times[times.len() / 2], times[times.len() * 99 / 100]);
            }
            eprintln!(
                "/bin/true {name}: p50 {:.2}x",
                own[own.len() / 2].as_secs_f64() / base[base.len() / 2].as_secs_f64()
            );
        }
    }

    /// As systemd and others clear away empty ones.
    #[test]
    fn cgroups_that_a_tool_has_removed_are_made_again() {
        for kind in [ContainmentKind::CgroupV2, ContainmentKind::CgroupV1] {
            let Some((cgroups, leaf)) = leaf(kind) else { continue };
            let path = leaf.directory().unwrap().path().to_owned();
            drop(leaf);
            let above = path.ancestors().skip(1);
            let removed: Vec<_> = above.take_while(|path| path.to_string_lossy().contains(PREFIX)).collect();
            let tree = *removed.last().unwrap();
            let had = fs::read_to_string(tree.join("cgroup.controllers")).ok();
            for count in 1..=removed.len() {
                removed[..count].iter().for_each(|path| fs::remove_dir(path).unwrap());
                let leaf = cgroups.leaf("", None, &ResourceLimits::default()).unwrap().unwrap();
                assert!(is_in(&leaf, &whereabouts(leaf.entry().unwrap())), "{kind}");
                assert_eq!(fs::read_to_string(tree.join("cgroup.controllers")).ok(), had, "{kind}");
            }
            drop(cgroups);
            assert!(!tree.exists(), "{kind}");
        }
    }

    #[test]
    fn nothing_starts_in_a_cgroup_that_is_gone() {
        for kind in [ContainmentKind::CgroupV2, ContainmentKind::CgroupV1] {
            let Some((_cgroups, leaf)) = leaf(kind) else { continue };
            let entry = leaf.entry().unwrap();
            let expected = match entry.birthplace {
                Some(_) => (SpawnStage::Clone, libc::ENOENT),
                None => (SpawnStage::Cgroup, libc::ENODEV),
            };
            drop(leaf);
            let spec =
                SpawnSpec { working_directory: CString::new("/").unwrap(), cgroups: entry, ..SpawnSpec::default() };
            let spawner = DirectSpawner::new().unwrap();
            let spawned = spawner.spawn(&spec, with_output_in_one_pipe().1, spawner.expect());
            let error = spawned.err().expect("it has no cgroup");
            assert_eq!((error.stage, error.errno), expected, "{kind}");
        }
    }
}
