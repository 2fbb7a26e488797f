//! Certificate and key files: existing ones are replaced only if that was asked for.

use std::io;
use std::path::Path;

pub(super) use telexec_enrollment::files::{PUBLIC, SECRET};

use super::{FAILED, failed};
use crate::output::Failure;

pub(super) fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::message(FAILED, format!("{} does not exist", path.display()))
            .hint(Some("create the CA first with `telexec certs init`, or select its directory with --dir")),
        _ => failed(format_args!("cannot read {}", path.display()), &error),
    })
}

/// Makes a directory that only its owner can enter, unless it exists.
pub(super) fn make_directory(directory: &Path) -> Result<(), Failure> {
    let made = telexec_enrollment::files::make_directory(directory);
    made.map_err(|error| failed(format_args!("cannot create {}", directory.display()), &error))
}

/// Fails if one of the files exists and `force` is not set.
pub(super) fn check_free(paths: &[&Path], force: bool) -> Result<(), Failure> {
    match paths.iter().find(|path| !force && path.symlink_metadata().is_ok()) {
        Some(path) => Err(Failure::message(FAILED, format!("{} already exists", path.display()))
            .hint(Some("use --force to replace it"))),
        None => Ok(()),
    }
}

/// Writes a key and its certificate, in this order. The files may exist only if `force` is set.
pub(super) fn write_pair(cert: &Path, cert_pem: &str, key: &Path, key_pem: &str, force: bool) -> Result<(), Failure> {
    check_free(&[cert, key], force)?;
    for directory in [cert, key].into_iter().filter_map(Path::parent).filter(|path| !path.as_os_str().is_empty()) {
        make_directory(directory)?;
    }
    place(key, SECRET, key_pem, force)?;
    place(cert, PUBLIC, cert_pem, force)
}

/// Writes a file, or replaces it at once: after a crash it is the old one or the new one.
pub(super) fn replace(path: &Path, mode: u32, text: &str) -> Result<(), Failure> {
    place(path, mode, text, true)
}

/// Writes a file, which may exist only if `force` is set.
pub(super) fn place(path: &Path, mode: u32, text: &str, force: bool) -> Result<(), Failure> {
    let write = if force { telexec_enrollment::files::replace } else { telexec_enrollment::files::create };
    write(path, mode, text).map_err(|error| failed(format_args!("cannot write {}", path.display()), &error))
}
