//! Learning where a shell stood when it ended: it writes that to a file from an EXIT trap.
//!
//! The kernel forgets a process's directory before anyone can ask, and the file descriptors of a command are its own.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use telexec_executor::ExecutionId;
use telexec_spawn::Credentials;

use crate::key::Key;
use crate::state::disk::Disk;
use crate::state::{REPORT_PREFIX, TEMPORARY_PREFIX, own_directory};

/// A file that waits for a shell's last directory. Removed when dropped.
pub(crate) struct Report {
    disk: Disk,
    files: ReportFiles,
    /// Its owner is to be the user of the command, which only a keeper can do.
    pub(crate) to_chown: Option<OwnedFd>,
    is_removed: bool,
}

impl Report {
    /// A new empty file: in `directory`, which only this process's user can use, or, for another user, in a new one.
    /// Blocks.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn new(disk: Disk, directory: &Path, key: &Key, user: Option<&Credentials>) -> io::Result<Self> {
        // a name of this process's own making: a request's id never becomes a path
        let name = format!("{REPORT_PREFIX}{key}");
        let Some(user) = user else {
            // those who clean temporary directories may have removed it
            let path = own_directory(directory)?.join(name);
            create(&path)?;
            return Ok(Self { disk, files: ReportFiles { path, directory: None }, to_chown: None, is_removed: false });
        };
        // not by the crate tempfile, whose errors lack the system's number
        let directory = std::env::temp_dir().join(format!("{TEMPORARY_PREFIX}{key}.{}", ExecutionId::generate()));
        DirBuilder::new().mode(0o700).create(&directory)?;
        let files = ReportFiles { path: directory.join(name), directory: Some(directory.clone()) };
        // from here on a failure removes it
        let mut this = Self { disk, files, to_chown: None, is_removed: false };
        // the user may write to the file, and put nothing in its place; the umask of this process does not matter
        fs::set_permissions(directory, fs::Permissions::from_mode(0o711))?;
        let file = create(&this.files.path)?;
        // if this process may not give it away, its keeper does; without one the start fails, for the same reason
        if fchown(&file, Some(user.uid), Some(user.gid)).is_err() {
            // then it is read as one of the group
            file.set_permissions(fs::Permissions::from_mode(0o640))?;
            this.to_chown = Some(file.into());
        }
        Ok(this)
    }

    /// That of an execution which was started by an earlier agent.
    pub(crate) fn restored(disk: Disk, files: ReportFiles) -> Self {
        Self { disk, files, to_chown: None, is_removed: false }
    }

    /// For the next agent.
    pub(crate) fn files(&self) -> ReportFiles {
        self.files.clone()
    }

    /// The text, made to report where it ended. Its lines keep their numbers.
    pub(crate) fn wrap(&self, text: &str) -> String {
        let report = format!("pwd -P 2>/dev/null >|{}", quote(&self.files.path.to_string_lossy()));
        format!("trap {} EXIT; {text}", quote(&report))
    }

    /// What the shell reported; `None`: nothing, or no absolute path, or the file system does not answer. In the turn
    /// of `owner`.
    pub(crate) async fn read(mut self, owner: &str) -> Option<String> {
        let files = self.files.clone();
        let read = move || {
            let text = files.read();
            files.remove();
            text
        };
        let text = self.disk.run(owner, read).await.ok()?;
        self.is_removed = true;
        text
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if !self.is_removed {
            // by a job of its own: a job that is given up is dropped by the thread that waited for it, which must not
            // block
            let files = self.files.clone();
            drop(self.disk.spawn("", move || files.remove()));
        }
    }
}

/// What is on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReportFiles {
    path: PathBuf,
    /// Removed with it.
    directory: Option<PathBuf>,
}

impl ReportFiles {
    /// Blocks.
    fn read(&self) -> Option<String> {
        // the command may have put anything in its place, such as a pipe that would never answer
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&self.path).ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut text = String::new();
        // as long as the longest path (PATH_MAX) and the newline
        file.take(4097).read_to_string(&mut text).ok()?;
        text.strip_suffix('\n').filter(|path| path.starts_with('/')).map(str::to_owned)
    }

    /// Blocks.
    fn remove(&self) {
        let _ = fs::remove_file(&self.path);
        // no one else can put anything there
        let _ = self.directory.as_ref().map(fs::remove_dir);
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// One word for a POSIX shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
