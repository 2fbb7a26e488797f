//! `--receipt-file` of `telexec exec`.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use telexec_executor::ExecutionId;
use tempfile::NamedTempFile;

use crate::follow::FollowEnd;
use crate::output::{self, Failure, exit};
use crate::syntax::Destination;

/// A file for the receipt of a command, made before that starts: so that one in FILE is never an earlier one, and never missing
/// for want of a directory.
pub(in crate::commands) struct ReceiptFile {
    path: PathBuf,
    file: Place,
}

enum Place {
    /// Until it has the receipt it is elsewhere in the directory, and removed when dropped.
    New(NamedTempFile),
    /// A device or a FIFO.
    Other(File),
}

impl ReceiptFile {
    /// # Errors
    /// It is there, or cannot be made; nothing was run.
    pub(in crate::commands) fn create(path: &Path) -> Result<Self, Failure> {
        let unusable = |why: &str| {
            Failure::message(exit::USAGE, format!("--receipt-file {}: {why}; nothing was run", path.display()))
        };
        let of_system = |error: io::Error| unusable(&super::without_path(error).to_string());
        let file = match std::fs::metadata(path) {
            Ok(found) if !found.is_file() => Place::Other(File::options().write(true).open(path).map_err(of_system)?),
            _ if path == Path::new("-") => return Err(unusable("standard output is for the command's: name a file")),
            _ if path.symlink_metadata().is_ok() => return Err(unusable("it exists: name another file, or remove it")),
            _ => Place::New(NamedTempFile::new_in(super::directory(path)).map_err(of_system)?),
        };
        Ok(Self { path: path.to_owned(), file })
    }

    /// Writes the receipt and returns true; otherwise prints why, if the command was started.
    pub(in crate::commands) fn save(
        self,
        target: &Destination,
        id: Option<&ExecutionId>,
        end: Option<&FollowEnd>,
    ) -> bool {
        let path = self.path.display().to_string();
        let (why, later) = match end {
            Some(FollowEnd::Exited { exited, .. }) => match &exited.receipt {
                Some(receipt) => match self.write(receipt) {
                    Ok(()) => return true,
                    Err(error) => (super::without_path(error).to_string(), Some("to get it")),
                },
                None => ("the agent has sent none".to_owned(), None),
            },
            _ => ("the command has not ended".to_owned(), Some("once it has ended")),
        };
        if let Some(id) = id {
            output::print_message(&format!("{target}: no receipt in {path}: {why}"));
            let hint = later.map(|when| format!("{when}: telexec receipt get {target} {id}"));
            hint.iter().for_each(|hint| output::print_message(hint));
        }
        false
    }

    fn write(self, receipt: &str) -> io::Result<()> {
        let text = format!("{receipt}\n");
        match self.file {
            Place::Other(mut file) => file.write_all(text.as_bytes()),
            Place::New(mut file) => {
                file.write_all(text.as_bytes())?;
                file.persist_noclobber(self.path).map(drop).map_err(|error| error.error)
            }
        }
    }
}
