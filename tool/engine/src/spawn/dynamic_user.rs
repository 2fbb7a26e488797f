//! Users that exist for one execution alone: ids that no account has.
//!
//! Ids are used one after the other, across restarts, so that what an execution has left somewhere is not the next one's. They are
//! reserved on disk many at a time.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use telexec_keeper::users::DYNAMIC;

use crate::lock::lock;
use crate::state::directory::lock_all;
use crate::state::disk::{DISK_TIMEOUT, Disk};
use crate::state::{DYNAMIC_USER_PREFIX, own_directory};

/// What a request calls such a user. No account has this name, see useradd(8).
pub const DYNAMIC_USER: &str = "@dynamic";

/// Has the first id that is free, as text.
const FILE: &str = "dynamic-user-next";

/// How many are reserved at a time. After a crash the rest of them is not used.
const RESERVED: u32 = 1024;

/// The ids of one state directory.
pub(crate) struct DynamicIds {
    disk: Disk,
    state_dir: PathBuf,
    reserved: Mutex<Range<u32>>,
}

impl DynamicIds {
    /// Those that follow the ones that were reserved in this state directory. Blocks.
    ///
    /// # Errors
    /// What is reserved there cannot be read or written.
    pub(crate) fn new(disk: Disk, state_dir: &Path) -> io::Result<Self> {
        let reserved = Mutex::new(reserve(state_dir)?);
        Ok(Self { disk, state_dir: state_dir.to_owned(), reserved })
    }

    /// The next one. May block for as long as the disk is waited for.
    ///
    /// # Errors
    /// More cannot be reserved.
    pub(crate) fn next(&self) -> io::Result<u32> {
        let mut reserved = lock(&self.reserved);
        if let Some(id) = reserved.next() {
            return Ok(id);
        }
        let state_dir = self.state_dir.clone();
        *reserved = self.disk.run_blocking(DISK_TIMEOUT, move || reserve(&state_dir))??;
        reserved.next().ok_or_else(|| ErrorKind::Other.into())
    }
}

/// Whether this process can start commands as dynamic users.
///
/// # Errors
/// It cannot, as [`telexec_spawn::private::try_out`].
pub fn try_dynamic_users() -> io::Result<()> {
    // the last one, too, has to exist in its user namespace
    [*DYNAMIC.end(), *DYNAMIC.start()].into_iter().try_for_each(telexec_spawn::private::try_out)
}

/// Reserves ids. Blocks.
fn reserve(state_dir: &Path) -> io::Result<Range<u32>> {
    let state_dir = own_directory(state_dir)?;
    // other engines may have the same directory
    let _all = lock_all(&state_dir)?;
    let file = state_dir.join(FILE);
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
    let first = match fs::read_to_string(&file) {
        Ok(text) => {
            let id = text.trim_end().parse().ok().filter(|id| DYNAMIC.contains(id));
            id.ok_or_else(|| failed(io::Error::new(ErrorKind::InvalidData, "is not the id of a dynamic user")))?
        }
        // other agents on this machine begin elsewhere
        Err(error) if error.kind() == ErrorKind::NotFound => random(),
        Err(error) => return Err(failed(error)),
    };
    let ids = block(first);
    let next = if DYNAMIC.contains(&ids.end) { ids.end } else { *DYNAMIC.start() };
    write(&state_dir, next).map_err(failed)?;
    Ok(ids)
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

fn write(state_dir: &Path, next: u32) -> io::Result<()> {
    let mut file = tempfile::Builder::new().prefix(DYNAMIC_USER_PREFIX).tempfile_in(state_dir)?;
    writeln!(file, "{next}")?;
    file.as_file().sync_all()?;
    file.persist(state_dir.join(FILE))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
            assert!(refused.to_string().contains("is not the id of a dynamic user"), "{wrong}: {refused}");
        }
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(DynamicIds::new(Disk::new().unwrap(), directory.path()).is_err());
    }
}
