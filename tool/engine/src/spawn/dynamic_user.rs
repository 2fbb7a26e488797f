//! Users that exist for one execution alone: ids that no account has.
//!
//! Ids are used one after the other, across restarts, so that what an execution has left somewhere is not the next one's. They are
//! reserved on disk, many at a time.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use rustix::io::Errno;
use telexec_executor::SpawnError;
use telexec_keeper::users::DYNAMIC;
use telexec_spawn::{Step, private};

use crate::lock::lock;
use crate::process::table;
use crate::process::vfork::stage;
use crate::state::directory::lock_all_within;
use crate::state::disk::{DISK_TIMEOUT, Disk};
use crate::state::own_directory;

/// What a request calls such a user. No account has this name, see useradd(8).
pub const DYNAMIC_USER: &str = "@dynamic";

/// Has the first id that is free, as text.
const FILE: &str = "dynamic-user-next";
/// Becomes that.
const NEW_FILE: &str = "dynamic-user-new";

/// More than an id takes.
const MAX_BYTES: u64 = 32;
/// They do not wait for others, nor lead elsewhere.
const PLAIN: i32 = libc::O_NONBLOCK | libc::O_NOFOLLOW;

/// How many are reserved at a time. After a crash the rest of them is not used.
const RESERVED: u32 = 1024;

/// The ids of one state directory.
pub(crate) struct DynamicIds {
    disk: Disk,
    state_dir: PathBuf,
    reserved: Mutex<Reserved>,
}

struct Reserved {
    /// The next one last.
    ids: Vec<u32>,
    /// When more were asked for in vain.
    failed: Option<Instant>,
}

impl DynamicIds {
    /// Those that follow the ones that were reserved in this state directory. Blocks.
    ///
    /// # Errors
    /// What is reserved there cannot be read or written.
    pub(crate) fn new(disk: Disk, state_dir: &Path) -> io::Result<Self> {
        let reserved = Mutex::new(Reserved { ids: reserve(state_dir)?, failed: None });
        Ok(Self { disk, state_dir: state_dir.to_owned(), reserved })
    }

    /// The next one. May block for as long as the disk is waited for: where that is in vain, the next ones are refused for a while.
    ///
    /// # Errors
    /// More cannot be reserved.
    pub(crate) fn next(&self) -> io::Result<u32> {
        let mut reserved = lock(&self.reserved);
        if let Some(id) = reserved.ids.pop() {
            return Ok(id);
        }
        if reserved.failed.is_some_and(|failed| failed.elapsed() < DISK_TIMEOUT) {
            return Err(io::Error::new(ErrorKind::TimedOut, "the state directory could not be used just now"));
        }
        let state_dir = self.state_dir.clone();
        let more = self.disk.run_blocking(DISK_TIMEOUT, move || reserve(&state_dir));
        let more = more.map_err(io::Error::from).and_then(|more| more);
        reserved.failed = more.is_err().then(Instant::now);
        reserved.ids = more?;
        reserved.ids.pop().ok_or_else(|| io::Error::other("all that were reserved are in use"))
    }
}

/// Tries whether this process can start commands as dynamic users, with processes that run no program. Blocks.
///
/// # Errors
/// The step that failed.
pub fn try_dynamic_users() -> Result<(), SpawnError> {
    let failed = |(step, errno): (Step, Errno)| SpawnError {
        stage: stage(step),
        subject: DYNAMIC_USER.into(),
        errno: errno.raw_os_error(),
        missing_interpreter: false,
    };
    // not each user namespace has all of the ids
    [*DYNAMIC.start(), *DYNAMIC.end()].into_iter().try_for_each(|id| private::try_out(id).map_err(failed))
}

/// Reserves ids. Blocks.
fn reserve(state_dir: &Path) -> io::Result<Vec<u32>> {
    let state_dir = own_directory(state_dir)?;
    // other engines may have the same directory
    let _all = lock_all_within(&state_dir, DISK_TIMEOUT)?;
    let file = state_dir.join(FILE);
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
    let first = match read(&file) {
        Ok(text) => {
            let id = text.trim_end().parse().ok().filter(|id| DYNAMIC.contains(id));
            id.ok_or_else(|| {
                failed(io::Error::new(ErrorKind::InvalidData, "is not the ID of a dynamic user: remove the file"))
            })?
        }
        // other agents on this machine begin elsewhere
        Err(error) if error.kind() == ErrorKind::NotFound => random(),
        Err(error) => return Err(failed(error)),
    };
    let ids = block(first);
    let next = if DYNAMIC.contains(&ids.end) { ids.end } else { *DYNAMIC.start() };
    write(&state_dir, next).map_err(failed)?;
    let in_use = in_use()?;
    Ok(ids.filter(|id| !in_use.contains(id)).rev().collect())
}

/// What is in it, if it is a file; in its place may be anything, such as a FIFO that would never answer.
fn read(file: &Path) -> io::Result<String> {
    let file = File::options().read(true).custom_flags(PLAIN).open(file)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidData, "is not a regular file: remove it"));
    }
    io::read_to_string(file.take(MAX_BYTES))
}

/// Up to so many from this one on.
fn block(first: u32) -> Range<u32> {
    first..first.saturating_add(RESERVED).min(DYNAMIC.end() + 1)
}

fn random() -> u32 {
    let (first, count) = (*DYNAMIC.start(), DYNAMIC.end() - DYNAMIC.start() + 1);
    let [.., a, b, c, d] = uuid::Uuid::now_v7().into_bytes();
    first + u32::from_le_bytes([a, b, c, d]) % count
}

/// Those of processes that live, as far as this process sees them: of another agent's, or from before the last one began again.
fn in_use() -> io::Result<BTreeSet<u32>> {
    let pids = table::listed()?.into_iter();
    Ok(pids.flat_map(|pid| table::uids(pid).unwrap_or_default()).filter(|id| DYNAMIC.contains(id)).collect())
}

fn write(state_dir: &Path, next: u32) -> io::Result<()> {
    // one name, which a crash leaves at most; the directory is locked
    let new = state_dir.join(NEW_FILE);
    let mut file =
        File::options().create(true).truncate(true).write(true).mode(0o600).custom_flags(PLAIN).open(&new)?;
    writeln!(file, "{next}")?;
    file.sync_all()?;
    fs::rename(new, state_dir.join(FILE))?;
    File::open(state_dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_id_is_given_twice_also_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let mut given = BTreeSet::new();
        for count in [0, 1, 3 * RESERVED, 5] {
            let ids = DynamicIds::new(Disk::new().unwrap(), directory.path()).unwrap();
            for _ in 0..count {
                let id = ids.next().unwrap();
                assert!(DYNAMIC.contains(&id) && given.insert(id), "{id}");
            }
        }
        let mut names: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [FILE, "lock"]);
    }

    #[test]
    fn engines_of_one_directory_give_others() {
        let directory = tempfile::tempdir().unwrap();
        let ids = || DynamicIds::new(Disk::new().unwrap(), directory.path()).unwrap();
        let (one, other) = (ids(), ids());
        let given: Vec<_> = (0..3 * RESERVED).flat_map(|_| [one.next().unwrap(), other.next().unwrap()]).collect();
        assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), given.len());
    }

    #[test]
    fn ids_of_processes_that_live_are_left_out() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let used = *DYNAMIC.start() + 77;
        fs::write(directory.path().join(FILE), format!("{}\n", used - 1)).unwrap();
        let mut process = std::process::Command::new("cat");
        std::os::unix::process::CommandExt::uid(&mut process, used).stdin(std::process::Stdio::piped());
        let mut process = process.spawn().unwrap();
        let ids = DynamicIds::new(Disk::new().unwrap(), directory.path()).unwrap();
        assert_eq!([ids.next().unwrap(), ids.next().unwrap()], [used - 1, used + 1]);
        drop(process.stdin.take());
        process.wait().unwrap();
    }

    #[test]
    fn after_the_last_one_comes_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let (first, last) = DYNAMIC.into_inner();
        fs::write(directory.path().join(FILE), format!("{}\n", last - 1)).unwrap();
        let ids = DynamicIds::new(Disk::new().unwrap(), directory.path()).unwrap();
        let given: Vec<_> = (0..4).map(|_| ids.next().unwrap()).collect();
        assert_eq!(given, [last - 1, last, first, first + 1]);
    }

    #[test]
    fn what_is_not_an_id_is_not_guessed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FILE);
        for wrong in ["", "x", "-1", "0", "65534", "99999999999"] {
            fs::write(&file, wrong).unwrap();
            let refused = DynamicIds::new(Disk::new().unwrap(), directory.path()).err().unwrap();
            assert!(
                refused.to_string().contains("is not the ID of a dynamic user: remove the file"),
                "{wrong}: {refused}"
            );
        }
        let in_its_place: [fn(&Path) -> io::Result<()>; 3] = [
            |path| fs::create_dir(path),
            |path| Ok(rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RWXU)?),
            |path| std::os::unix::fs::symlink("/etc/hostname", path),
        ];
        for make in in_its_place {
            fs::remove_file(&file).or_else(|_| fs::remove_dir(&file)).unwrap();
            make(&file).unwrap();
            assert!(DynamicIds::new(Disk::new().unwrap(), directory.path()).is_err());
        }
    }
}
