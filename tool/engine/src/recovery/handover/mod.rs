//! What an engine leaves to the next one on the same state directory: the ended executions that it remembers, in a file
//! beside those of its spool.

pub(super) mod format;

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter};
use std::path::Path;
use std::sync::Arc;

use tracing::warn;

use super::handed_over::{self, HandedOver};
use super::leftovers;
use crate::SpoolLimits;
use crate::output::spool::Spool;
use crate::registry::{Ended, Inherited};
use crate::state::directory::{DIRECTORY_PREFIX, EngineDirectory, LOCK};
use crate::state::disk::Disk;
use crate::state::{DYNAMIC_USER_PREFIX, REPORT_PREFIX};

const FILE: &str = "executions";
/// What the directory becomes whose file cannot be read.
const ASIDE_PREFIX: &str = "unreadable-";

/// Whether an engine makes files or directories with this name in its state directory.
pub fn is_state_file(name: &str) -> bool {
    let prefixes = [DIRECTORY_PREFIX, ASIDE_PREFIX, REPORT_PREFIX, DYNAMIC_USER_PREFIX];
    name == LOCK || prefixes.into_iter().any(|prefix| name.starts_with(prefix))
}

/// Writes what the next engine is to find. Blocks.
///
/// # Errors
/// It cannot be written; then no part of it is there.
pub(crate) fn write(directory: &Path, executions: &[Ended]) -> io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    format::write(BufWriter::new(file.as_file_mut()), executions)?;
    file.as_file().sync_all()?;
    file.persist(directory.join(FILE))?;
    Ok(())
}

/// A new engine's spool, below the state directory or a temporary one, and what earlier engines have left there for it, and
/// for executions that were handed over.
/// What dead ones have left is removed. Blocks.
///
/// # Errors
/// The directory cannot be made or used.
pub(crate) fn open(
    disk: Disk,
    state_dir: Option<&Path>,
    limits: SpoolLimits,
    handed_over: &mut [HandedOver],
) -> io::Result<(Arc<Spool>, Vec<Inherited>)> {
    let (directory, earlier) = EngineDirectory::new(disk, state_dir)?;
    let spool = Spool::new(directory, limits);
    // one may have been killed since the start of this one
    let state_dir = spool.directory().state_dir();
    let continued = handed_over::continued(handed_over);
    earlier.directories.iter().for_each(|directory| leftovers::end_of(state_dir, directory, &continued));
    if !handed_over.is_empty() {
        // until they are claimed
        spool.directory().leave();
    }
    handed_over.iter_mut().for_each(|one| one.take_over(&spool));
    let inherited = earlier.directories.iter().flat_map(|directory| take_over(directory, &spool)).collect();
    Ok((spool, inherited))
}

/// What an earlier engine has left in its directory, which is removed; or set aside, if that cannot be read. Blocks.
fn take_over(directory: &Path, spool: &Arc<Spool>) -> Vec<Inherited> {
    match read(directory) {
        Ok(executions) => {
            let inherited = executions.into_iter().map(|ended| inherit(ended, directory, spool)).collect();
            let _ = fs::remove_dir_all(directory);
            inherited
        }
        Err(error) => {
            set_aside(directory, &error);
            Vec::new()
        }
    }
}

/// # Errors
/// It is not whole, or of another version.
fn read(directory: &Path) -> io::Result<Vec<Ended>> {
    let file = match File::open(directory.join(FILE)) {
        // a killed engine's
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    format::read(BufReader::new(file))
}

/// Without its files an execution is remembered all the same; what was in them is a gap then.
fn inherit(ended: Ended, directory: &Path, spool: &Arc<Spool>) -> Inherited {
    let file = ended.output.stored.and_then(|stored| {
        let taken = spool.take_over(&ended.asked.identity, directory, stored);
        taken.inspect_err(|error| warn!(id = %ended.id, %error, "the kept output of an execution is lost")).ok()
    });
    // the engine after this one is to have what is in memory, too
    let file = file.or_else(|| (!ended.output.tail.is_empty()).then(|| spool.file(&ended.asked.identity)));
    Inherited { ended, file, saved: None }
}

/// Only the last one is kept, so that they do not fill the disk.
fn set_aside(directory: &Path, error: &io::Error) {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let aside = directory.with_file_name(name.replacen(DIRECTORY_PREFIX, ASIDE_PREFIX, 1));
    let siblings = directory.parent().and_then(|state_dir| fs::read_dir(state_dir).ok());
    for sibling in siblings.into_iter().flatten().flatten() {
        if sibling.file_name().to_string_lossy().starts_with(ASIDE_PREFIX) {
            let _ = fs::remove_dir_all(sibling.path());
        }
    }
    match fs::rename(directory, &aside) {
        Ok(()) => {
            warn!(path = %aside.display(), %error, "the state of the previous agent cannot be read, and is set aside");
        }
        Err(rename) => {
            warn!(path = %directory.display(), %error, %rename, "the state of the previous agent cannot be read");
        }
    }
}
