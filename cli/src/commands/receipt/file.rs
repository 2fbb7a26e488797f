//! `--receipt-file` of `telexec exec`.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use telexec_executor::ExecutionId;

use crate::follow::FollowEnd;
use crate::output::{self, Failure, exit};
use crate::syntax::Destination;

/// A file for the receipt of a command. Made before that starts, so that it is neither an earlier one nor missing for want of a
/// directory.
pub(in crate::commands) struct ReceiptFile {
    path: PathBuf,
    file: File,
}

impl ReceiptFile {
    /// # Errors
    /// It cannot be made; nothing was run.
    pub(in crate::commands) fn create(path: &Path) -> Result<Self, Failure> {
        let unusable = |error: &dyn std::error::Error| {
            Failure::message(exit::USAGE, format!("--receipt-file {}: {error}; nothing was run", path.display()))
        };
        if path == Path::new("-") {
            return Err(Failure::message(
                exit::USAGE,
                "--receipt-file: standard output is for the command's: name a file",
            ));
        }
        // it may have secrets of the command line
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
        Ok(Self { path: path.to_owned(), file: file.map_err(|error| unusable(&error))? })
    }

    /// Writes the receipt of a command that has ended. Returns whether that is done; if not, says why, unless nothing ran.
    pub(in crate::commands) fn save(
        mut self,
        target: &Destination,
        id: Option<&ExecutionId>,
        end: Option<&FollowEnd>,
    ) -> bool {
        let receipt = match end {
            Some(FollowEnd::Exited { exited, .. }) => exited.receipt.as_deref().ok_or("the agent has sent none"),
            _ => Err("the command has not ended"),
        };
        let (failure, is_later) = match receipt {
            Err(why) => (why.to_owned(), end.is_none_or(|end| !matches!(end, FollowEnd::Exited { .. }))),
            Ok(receipt) => match self.file.write_all(format!("{receipt}\n").as_bytes()) {
                Ok(()) => return true,
                Err(error) => (error.to_string(), true),
            },
        };
        if self.file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            let _ = std::fs::remove_file(&self.path);
        }
        if let Some(id) = id {
            output::print_message(&format!("{target}: no receipt in {}: {failure}", self.path.display()));
            if is_later {
                output::print_message(&format!("once the command has ended: telexec receipt get {target} {id}"));
            }
        }
        false
    }
}
