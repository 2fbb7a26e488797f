//! Files that commands read, write and run.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

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
