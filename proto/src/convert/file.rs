//! Files: their paths and what is known of them.

use telexec_executor::{ExecutorError, FileInfo, FilePath, FileType, InvalidCommand};

use super::time::reported_time;
use super::unexpected;
use crate::v1;

/// The longest path, as of the kernel: PATH_MAX.
const MAX_PATH_BYTES: usize = 4096;

/// The path of a request, of which either field may be set.
///
/// # Errors
/// Both are, or none; or it is too long, or contains NUL. The error names `field`.
pub fn path_from_wire(field: &'static str, text: String, bytes: &[u8]) -> Result<FilePath, InvalidCommand> {
    let path = match (text.is_empty(), bytes.is_empty()) {
        (false, true) => text.into_bytes(),
        (true, false) => bytes.to_vec(),
        (true, true) => return Err(InvalidCommand::new(field, "is missing")),
        (false, false) => return Err(InvalidCommand::new(field, "is set as text and as bytes")),
    };
    if path.contains(&0) {
        return Err(InvalidCommand::new(field, "contains NUL"));
    }
    if path.len() >= MAX_PATH_BYTES {
        return Err(InvalidCommand::new(field, format!("is longer than {} bytes", MAX_PATH_BYTES - 1)));
    }
    Ok(FilePath::new(path))
}

/// A path as it travels: as text if it is UTF-8, or else as bytes.
pub fn path_to_wire(path: FilePath) -> (String, bytes::Bytes) {
    match path.into_text() {
        Ok(text) => (text, bytes::Bytes::new()),
        Err(bytes) => (String::new(), bytes.into()),
    }
}

/// What is known of a file, as it travels.
pub fn file_info_to_wire(info: FileInfo) -> v1::FileInfo {
    let (path, path_bytes) = path_to_wire(info.path);
    let (link_target, link_target_bytes) = info.link_target.map(path_to_wire).unwrap_or_default();
    let r#type = match info.kind {
        FileType::Regular => v1::FileType::Regular,
        FileType::Directory => v1::FileType::Directory,
        FileType::Symlink => v1::FileType::Symlink,
        FileType::Fifo => v1::FileType::Fifo,
        FileType::Socket => v1::FileType::Socket,
        FileType::CharacterDevice => v1::FileType::CharacterDevice,
        FileType::BlockDevice => v1::FileType::BlockDevice,
    };
    v1::FileInfo {
        path,
        r#type: r#type.into(),
        size: info.size,
        mode: info.mode,
        owner: info.owner,
        group: info.group,
        modify_time: Some(info.modify_time.into()),
        link_target,
        path_bytes,
        link_target_bytes,
    }
}

/// What is known of a file, as it arrived.
///
/// # Errors
/// The agent sent none, or what this side does not understand.
pub fn file_info_from_wire(wire: Option<v1::FileInfo>) -> Result<FileInfo, ExecutorError> {
    let wire = wire.ok_or_else(|| unexpected("no file information"))?;
    let kind = match v1::FileType::try_from(wire.r#type) {
        Ok(v1::FileType::Regular) => FileType::Regular,
        Ok(v1::FileType::Directory) => FileType::Directory,
        Ok(v1::FileType::Symlink) => FileType::Symlink,
        Ok(v1::FileType::Fifo) => FileType::Fifo,
        Ok(v1::FileType::Socket) => FileType::Socket,
        Ok(v1::FileType::CharacterDevice) => FileType::CharacterDevice,
        Ok(v1::FileType::BlockDevice) => FileType::BlockDevice,
        Ok(v1::FileType::Unspecified) | Err(_) => return Err(unexpected("an unknown file type")),
    };
    let path = |text: String, bytes: bytes::Bytes| match bytes.is_empty() {
        true => FilePath::new(text),
        false => FilePath::new(bytes),
    };
    let link_target = path(wire.link_target, wire.link_target_bytes);
    Ok(FileInfo {
        path: path(wire.path, wire.path_bytes),
        kind,
        size: wire.size,
        mode: wire.mode,
        owner: wire.owner,
        group: wire.group,
        modify_time: reported_time(wire.modify_time),
        link_target: (kind == FileType::Symlink).then_some(link_target),
    })
}

/// A SHA-256 that arrived.
///
/// # Errors
/// It has not 32 bytes.
pub fn sha256_from_wire(wire: &[u8]) -> Result<[u8; 32], ExecutorError> {
    wire.try_into().map_err(|_| unexpected("a SHA-256 of another length than 32 bytes"))
}
