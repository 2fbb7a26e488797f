//! Files of a machine: read and written by processes of the users that calls name.

mod content;
mod faults;
mod permitted;
mod removal;
mod search;
mod transfers;
mod uploads;
mod watch;

use std::path::Path;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use telexec_client::RemoteFiles;
use telexec_executor::{
    ExecutorError, FileError, FilePath, FilePiece, FilePieces, FileRange, FileTarget, Files, WriteOptions, WrittenFile,
};
use telexec_tests::within;

fn target(path: &Path) -> FileTarget {
    FileTarget::new(path.as_os_str().as_encoded_bytes())
}

fn of_user(path: &Path, user: &str) -> FileTarget {
    FileTarget { user: Some(user.to_owned()), ..target(path) }
}

fn pieces(data: impl Into<Bytes>) -> FilePieces {
    let data: Bytes = data.into();
    let pieces: Vec<_> = data.chunks(100_000).map(|piece| Ok(FilePiece::Data(Bytes::copy_from_slice(piece)))).collect();
    stream::iter(pieces).boxed()
}

/// What a file has, and its SHA-256 as the agent says.
async fn read(files: &RemoteFiles, file: FileTarget, range: FileRange) -> Result<(Vec<u8>, [u8; 32]), ExecutorError> {
    let mut content = within(files.read(file, range)).await?;
    let mut data = Vec::new();
    while let Some(piece) = within(content.pieces.next()).await {
        match piece? {
            FilePiece::Data(piece) => data.extend_from_slice(&piece),
            FilePiece::Hole(length) => data.resize(data.len() + usize::try_from(length).unwrap(), 0),
            FilePiece::End { sha256 } => return Ok((data, sha256)),
        }
    }
    panic!("it has no end")
}

async fn write(files: &RemoteFiles, file: FileTarget, data: &[u8]) -> Result<WrittenFile, ExecutorError> {
    within(files.write(file, WriteOptions::default(), pieces(data.to_vec()))).await
}

#[track_caller]
fn failed<T: std::fmt::Debug>(result: Result<T, ExecutorError>) -> FileError {
    match result {
        Err(ExecutorError::File(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn sha256(data: &[u8]) -> [u8; 32] {
    aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, data).as_ref().try_into().unwrap()
}

/// The names in a directory, hidden ones too.
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn path(path: &Path) -> FilePath {
    target(path).path
}
