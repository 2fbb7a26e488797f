//! Certificate and key files: keys are only readable by their owner, and existing files are not overwritten.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use super::{FAILED, failed};
use crate::output::Failure;

pub(super) fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::message(FAILED, format!("{} does not exist", path.display()))
            .hint(Some("create the CA first with `telexec certs init`, or select its directory with --dir")),
        _ => failed(format_args!("cannot read {}", path.display()), &error),
    })
}

/// Writes both files, or neither if one exists and `force` is not set.
pub(super) fn write_pair(cert: &Path, cert_pem: &str, key: &Path, key_pem: &str, force: bool) -> Result<(), Failure> {
    for path in [cert, key] {
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
            made.map_err(|error| failed(format_args!("cannot create {}", directory.display()), &error))?;
        }
        if path.symlink_metadata().is_ok() {
            if !force {
                return Err(Failure::message(FAILED, format!("{} already exists", path.display()))
                    .hint(Some("use --force to replace it")));
            }
            std::fs::remove_file(path)
                .map_err(|error| failed(format_args!("cannot remove {}", path.display()), &error))?;
        }
    }
    write_new(key, 0o600, key_pem)?;
    write_new(cert, 0o644, cert_pem)
}

/// Creates a file, which must not exist, not even as a link.
fn write_new(path: &Path, mode: u32, text: &str) -> Result<(), Failure> {
    let write = || -> io::Result<()> {
        let mut file: File = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|error| failed(format_args!("cannot write {}", path.display()), &error))
}
