//! What an action has made: found on the target, and uploaded.

mod upload;

use std::collections::{HashMap, HashSet};

use bazel_remote_apis::build::bazel::remote::execution::v2 as reapi;
use bytes::Bytes;
use prost::Message;
use reapi::command::OutputDirectoryFormat;
use tokio::sync::mpsc;

use self::upload::{Found, Uploads};
use crate::cas::{Cas, CasError, given, insistently, is_small};
use crate::digest::Digest;
use crate::layout::{below, output_paths};
use crate::sftp::{Attributes, Kind, PIECE_BYTES, Sftp, SftpError};
use crate::tree::MAX_DEPTH;

/// Files and directories in all outputs of an action.
const MAX_ENTRIES: usize = 100_000;
/// Directories that are listed together.
const GROUP_DIRECTORIES: usize = 64;

/// Why outputs cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutputError {
    /// They could not be stored.
    #[error(transparent)]
    Cas(#[from] CasError),
    /// They could not be read.
    #[error(transparent)]
    File(#[from] SftpError),
    /// They are nothing that the API can express.
    #[error("the output {path} {reason}")]
    Unfit {
        /// Which one.
        path: String,
        /// Why not.
        reason: &'static str,
    },
    /// There is too much.
    #[error("the outputs have {0}")]
    TooLarge(String),
}

/// What outputs may have still.
struct Budget {
    entries: usize,
    bytes: u64,
    limit: u64,
}

impl Budget {
    /// Takes a file or something else of it, before that is read.
    fn take(&mut self, attributes: &Attributes) -> Result<(), OutputError> {
        let entries = self.entries.checked_sub(1);
        let too_many = || OutputError::TooLarge(format!("more than {MAX_ENTRIES} files"));
        self.entries = entries.ok_or_else(too_many)?;
        if matches!(attributes.kind(), Kind::File | Kind::Symlink) {
            let bytes = self.bytes.checked_sub(attributes.size);
            let too_large = || OutputError::TooLarge(format!("more than {} bytes (--max-output-size)", self.limit));
            self.bytes = bytes.ok_or_else(too_large)?;
        }
        Ok(())
    }
}

fn unfit(path: &str, reason: &'static str) -> OutputError {
    OutputError::Unfit { path: path.to_owned(), reason }
}

/// Whether a command says that it makes something.
pub(crate) fn is_any(command: &reapi::Command) -> bool {
    output_paths(command).next().is_some()
}

/// Finds and uploads the outputs of a command that ran in `directory`, up to so many bytes. What is not there is left out.
pub(crate) async fn capture(
    directory: &str,
    command: &reapi::Command,
    limit: u64,
    result: &mut reapi::ActionResult,
    cas: &Cas,
    sftp: &Sftp,
) -> Result<(), OutputError> {
    let mut budget = Budget { entries: MAX_ENTRIES, bytes: limit, limit };
    let mut asked = Vec::new();
    for path in output_paths(command) {
        asked.push((path, sftp.attributes(&below(directory, path)).await));
    }
    let mut uploads = Uploads { cas, waiting: Vec::new(), bytes: 0 };
    let (mut files, mut trees) = (Vec::new(), Vec::new());
    for (path, attributes) in asked {
        let attributes = match attributes.attributes().await {
            Err(error) if error.is_not_found() => continue,
            attributes => attributes?,
        };
        budget.take(&attributes)?;
        match attributes.kind() {
            Kind::File => files.push((path, attributes)),
            Kind::Directory => trees.push(path),
            Kind::Symlink => add_link(command, path, link_target(directory, path, sftp).await?, result),
            Kind::Other => return Err(unfit(path, "is no file, directory or symbolic link")),
        }
    }
    let mut listed = Vec::new();
    for path in &trees {
        listed.push(list(&below(directory, path), &mut budget, sftp).await?);
    }
    let found: Vec<Found> = files.iter().map(|(path, attributes)| Found::new(directory, path, attributes)).collect();
    let digests = uploads.files(&found, sftp).await?;
    result.output_files =
        files.iter().zip(&digests).map(|((path, attributes), digest)| output_file(path, attributes, digest)).collect();
    for (path, listed) in trees.into_iter().zip(listed) {
        result.output_directories.push(tree(directory, path, listed, command, &mut uploads, sftp).await?);
    }
    uploads.flush().await?;
    Ok(())
}

fn output_file(path: &str, attributes: &Attributes, digest: &Digest) -> reapi::OutputFile {
    reapi::OutputFile {
        path: path.to_owned(),
        digest: Some(digest.to_wire()),
        is_executable: attributes.is_executable(),
        ..Default::default()
    }
}

/// The output of one stream: in the result itself if it is short.
pub(crate) async fn stream(output: Vec<u8>, cas: &Cas) -> Result<(Vec<u8>, Option<reapi::Digest>), CasError> {
    const INLINE_BYTES: usize = 64 * 1024;
    if output.len() <= INLINE_BYTES {
        return Ok((output, None));
    }
    let output = Bytes::from(output);
    let digest = cas.function.digest(&output);
    if cas.missing(&[digest]).await?.contains(&digest) {
        store(cas, digest, output).await?;
    }
    Ok((Vec::new(), Some(digest.to_wire())))
}

async fn store(cas: &Cas, digest: Digest, blob: Bytes) -> Result<(), CasError> {
    if is_small(&digest) {
        return cas.store_batch(vec![(digest, blob)]).await;
    }
    let upload = || async {
        let (pieces, taken) = mpsc::channel(1);
        let send = async {
            let pieces = pieces;
            for piece in blob.chunks(PIECE_BYTES) {
                // they are not needed
                if !given(&pieces, blob.slice_ref(piece)).await? {
                    break;
                }
            }
            Ok(())
        };
        tokio::try_join!(cas.write(digest, taken), send)
    };
    insistently(upload, CasError::is_passing).await.map(drop)
}

async fn link_target(directory: &str, path: &str, sftp: &Sftp) -> Result<String, OutputError> {
    utf8(sftp.read_link(&below(directory, path)).await.link_target().await?, path)
}

fn utf8(target: Bytes, path: &str) -> Result<String, OutputError> {
    String::from_utf8(target.to_vec()).map_err(|_| unfit(path, "points to a name that is not UTF-8"))
}

#[allow(deprecated, reason = "where clients of version 2.0 look for it")]
fn add_link(command: &reapi::Command, path: &str, target: String, result: &mut reapi::ActionResult) {
    let link = reapi::OutputSymlink { path: path.to_owned(), target, node_properties: None };
    if !command.output_paths.is_empty() {
        result.output_symlinks.push(link);
    } else if command.output_files.iter().any(|file| file == path) {
        result.output_file_symlinks.push(link);
    } else {
        result.output_directory_symlinks.push(link);
    }
}

/// A directory among the outputs, with all below it.
async fn tree(
    directory: &str,
    path: &str,
    mut listed: Vec<(String, Entries)>,
    command: &reapi::Command,
    uploads: &mut Uploads<'_>,
    sftp: &Sftp,
) -> Result<reapi::OutputDirectory, OutputError> {
    let mut files = Vec::new();
    for (inner, entries) in &listed {
        let regular = entries.iter().filter(|(_, attributes)| attributes.kind() == Kind::File);
        files.extend(regular.map(|(name, attributes)| Found::new(inner, name, attributes)));
    }
    let digests = uploads.files(&files, sftp).await?;
    let digests: HashMap<&str, Digest> = files.iter().map(|file| file.path.as_str()).zip(digests).collect();
    let wants_directories = command.output_directory_format != i32::from(OutputDirectoryFormat::TreeOnly);
    let (mut tree, mut made, mut children) = (reapi::Tree::default(), HashMap::new(), HashSet::new());
    let function = uploads.cas.function;
    // the innermost come last
    while let Some((inner, entries)) = listed.pop() {
        let node = directory_node(&inner, &entries, &digests, &made, sftp).await?;
        let encoded = Bytes::from(node.encode_to_vec());
        let digest = function.digest(&encoded);
        if wants_directories {
            uploads.add(digest, encoded).await?;
        }
        match listed.is_empty() {
            true => tree.root = Some(node),
            false if children.insert(digest) => tree.children.push(node),
            false => {}
        }
        made.insert(inner, digest);
    }
    let encoded = Bytes::from(tree.encode_to_vec());
    let digest = function.digest(&encoded);
    uploads.add(digest, encoded).await?;
    let root = made.get(&below(directory, path)).filter(|_| wants_directories).map(|digest| digest.to_wire());
    Ok(reapi::OutputDirectory {
        path: path.to_owned(),
        tree_digest: Some(digest.to_wire()),
        root_directory_digest: root,
        ..Default::default()
    })
}

type Entries = Vec<(String, Attributes)>;

/// A directory and all below it, each with its entries in order; the outer ones come first.
async fn list(root: &str, budget: &mut Budget, sftp: &Sftp) -> Result<Vec<(String, Entries)>, OutputError> {
    let mut listed: Vec<(String, Entries)> = Vec::new();
    let (mut level, mut depth) = (vec![root.to_owned()], 0);
    while !level.is_empty() {
        if depth > MAX_DEPTH {
            return Err(unfit(root, "has too many directories in each other"));
        }
        let mut next = Vec::new();
        for group in level.chunks(GROUP_DIRECTORIES) {
            for (directory, entries) in group.iter().zip(list_group(group, budget, sftp).await?) {
                let inner = entries.iter().filter(|(_, attributes)| attributes.kind() == Kind::Directory);
                next.extend(inner.map(|(name, _)| below(directory, name)));
                listed.push((directory.clone(), entries));
            }
        }
        (level, depth) = (next, depth + 1);
    }
    Ok(listed)
}

/// The entries of several directories, asked for together.
async fn list_group(paths: &[String], budget: &mut Budget, sftp: &Sftp) -> Result<Vec<Entries>, OutputError> {
    let mut opening = Vec::with_capacity(paths.len());
    for path in paths {
        opening.push(sftp.open_directory(path).await);
    }
    let mut handles = Vec::with_capacity(paths.len());
    for reply in opening {
        handles.push(reply.handle().await?);
    }
    let mut all = Vec::with_capacity(paths.len());
    for (handle, path) in handles.iter().zip(paths) {
        let mut entries = Vec::new();
        while let Some(names) = sftp.read_directory(handle).await.names().await? {
            for (name, attributes) in names {
                match String::from_utf8(name.to_vec()) {
                    Ok(name) if matches!(name.as_str(), "." | "..") => {}
                    Ok(name) if attributes.kind() == Kind::Other => {
                        return Err(unfit(&below(path, &name), "is no file, directory or symbolic link"));
                    }
                    Ok(name) => {
                        budget.take(&attributes)?;
                        entries.push((name, attributes));
                    }
                    Err(_) => return Err(unfit(path, "has a file whose name is not UTF-8")),
                }
            }
        }
        sftp.close(handle).await.done().await?;
        entries.sort_by(|(one, _), (other, _)| one.cmp(other));
        all.push(entries);
    }
    Ok(all)
}

async fn directory_node(
    path: &str,
    entries: &Entries,
    files: &HashMap<&str, Digest>,
    directories: &HashMap<String, Digest>,
    sftp: &Sftp,
) -> Result<reapi::Directory, OutputError> {
    let mut node = reapi::Directory::default();
    let mut targets = Vec::new();
    for (name, _) in entries.iter().filter(|(_, attributes)| attributes.kind() == Kind::Symlink) {
        targets.push(sftp.read_link(&below(path, name)).await);
    }
    let mut targets = targets.into_iter();
    for (name, attributes) in entries {
        let inner = below(path, name);
        let name = name.clone();
        match attributes.kind() {
            Kind::File => {
                let digest = files.get(inner.as_str()).map(|digest| digest.to_wire());
                let is_executable = attributes.is_executable();
                node.files.push(reapi::FileNode { name, digest, is_executable, node_properties: None });
            }
            Kind::Directory => {
                let digest = directories.get(&inner).map(|digest| digest.to_wire());
                node.directories.push(reapi::DirectoryNode { name, digest });
            }
            Kind::Symlink => {
                let Some(target) = targets.next() else { continue };
                let target = utf8(target.link_target().await?, &inner)?;
                node.symlinks.push(reapi::SymlinkNode { name, target, node_properties: None });
            }
            Kind::Other => {}
        }
    }
    Ok(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_has_an_end() {
        let (mut few, mut small) =
            (Budget { entries: 1, bytes: 0, limit: 0 }, Budget { entries: 9, bytes: 0, limit: 0 });
        let nothing = Attributes::default();
        assert!(few.take(&nothing).is_ok() && few.take(&nothing).is_err());
        let file = Attributes::file(1);
        assert!(matches!(small.take(&file), Err(OutputError::TooLarge(text)) if text.contains("--max-output-size")));
    }
}
