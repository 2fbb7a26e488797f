//! What is known of a file, as envd says it.

use serde_json::{Value, json};
use telexec_executor::{FileInfo, FileType};

use crate::failure::put;
use crate::times::rfc3339;

/// The entry at this absolute path.
pub(crate) fn entry(info: &FileInfo, path: &str) -> Value {
    let mut entry = json!({
        "name": name(path),
        "type": kind(info.kind),
        "path": path,
        // 64 bits are text in protobuf's JSON
        "size": info.size.to_string(),
        "mode": info.mode & 0o777,
        "permissions": permissions(info),
        "owner": info.owner,
        "group": info.group,
        "modifiedTime": rfc3339(info.modify_time),
    });
    if let Some(target) = &info.link_target {
        put(&mut entry, "isSymlink", true);
        put(&mut entry, "symlinkTarget", target.to_string());
    }
    entry
}

pub(crate) fn name(path: &str) -> &str {
    match path.rsplit('/').next() {
        None | Some("") => "/",
        Some(name) => name,
    }
}

/// Whatever is no directory and no link is a file.
fn kind(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "FILE_TYPE_DIRECTORY",
        FileType::Symlink => "FILE_TYPE_SYMLINK",
        _ => "FILE_TYPE_FILE",
    }
}

/// As Go writes a mode.
fn permissions(info: &FileInfo) -> String {
    let kind = match info.kind {
        FileType::Regular => "-",
        FileType::Directory => "d",
        FileType::Symlink => "L",
        FileType::Fifo => "p",
        FileType::Socket => "S",
        FileType::CharacterDevice => "Dc",
        FileType::BlockDevice => "D",
    };
    let bits =
        (0..9).rev().zip("rwxrwxrwx".chars()).map(|(bit, letter)| if info.mode >> bit & 1 == 1 { letter } else { '-' });
    kind.chars().chain(bits).collect()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use telexec_executor::FilePath;

    use super::*;

    #[test]
    fn an_entry_says_what_stat_does() {
        let info = FileInfo {
            path: FilePath::new("b"),
            kind: FileType::Symlink,
            size: 5,
            mode: 0o4751,
            owner: "o".to_owned(),
            group: "g".to_owned(),
            modify_time: SystemTime::UNIX_EPOCH,
            link_target: Some(FilePath::new("c")),
        };
        let entry = entry(&info, "/a/b");
        for (field, value) in [
            ("name", "b"),
            ("type", "FILE_TYPE_SYMLINK"),
            ("size", "5"),
            ("permissions", "Lrwxr-x--x"),
            ("modifiedTime", "1970-01-01T00:00:00Z"),
            ("symlinkTarget", "c"),
        ] {
            assert_eq!(entry[field], value, "{field}");
        }
        assert_eq!(name("/"), "/");
    }
}
