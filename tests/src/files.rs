//! Files that commands read, write and run.

use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

/// A new directory that commands of any user can read and write.
///
/// # Panics
/// It cannot be made.
pub fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    // afterwards: the umask cuts what it is made with
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
    directory
}

/// Makes a program of these bytes in `directory`, and gives its path.
///
/// # Panics
/// It cannot be made.
pub fn executable(directory: &Path, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let (draft, program) = (directory.join(format!("{name}.draft")), directory.join(name));
    std::fs::write(&draft, bytes).unwrap();
    // Copied by another process: while this one writes to a file, any child that some other test starts here may hold
    // it open too, and until that child runs its own program this one is "text file busy".
    let done = Command::new("install").args(["-m", "755"]).arg(&draft).arg(&program).status().unwrap();
    assert!(done.success(), "install(1): {done}");
    program
}

/// The lines of a file; none, if it is not there.
pub fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Something that commands of any user wait for, without looking again and again.
#[derive(Debug)]
pub struct Gate {
    path: PathBuf,
    _directory: TempDir,
}

/// An open [`Gate`]: it is closed again when this is dropped.
#[derive(Debug)]
#[must_use = "the gate closes"]
pub struct Opened(#[allow(dead_code, reason = "held open")] File);

impl Gate {
    /// A closed one.
    ///
    /// # Panics
    /// It cannot be made.
    pub fn new() -> Self {
        let directory = directory();
        let path = directory.path().join("gate");
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        Self { path, _directory: directory }
    }

    /// Shell text that waits until it is open: opening a FIFO for reading waits for a writer.
    pub fn wait(&self) -> String {
        format!(": < {}", self.path.display())
    }

    /// Opens it.
    ///
    /// # Panics
    /// It cannot be opened.
    pub fn open(&self) -> Opened {
        Opened(OpenOptions::new().read(true).write(true).open(&self.path).unwrap())
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}
