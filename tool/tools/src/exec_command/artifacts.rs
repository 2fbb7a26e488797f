//! Files with the whole of an output of which an answer has only a part.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tempfile::{TempDir, TempPath};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

/// A file has no more than this of an output.
const MAX_BYTES: u64 = 64 << 20;

/// A file with an output, exact bytes, on the machine of the caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandArtifact {
    /// Where it is.
    pub path: String,
    /// How long it is.
    pub bytes: u64,
    /// It has all of the output; otherwise the beginning, as much as is kept (64 MiB) or came.
    pub complete: bool,
}

/// Where such files are made.
#[derive(Default)]
pub(super) struct ArtifactDirectory {
    configured: Option<PathBuf>,
    /// Made when it is needed, for this process's user alone; removed with all that is in it when this is dropped.
    own: Mutex<Option<TempDir>>,
}

impl ArtifactDirectory {
    pub(super) fn at(path: PathBuf) -> Self {
        Self { configured: Some(path), own: Mutex::new(None) }
    }

    /// A new file, which only this process's user may read, and which is removed unless it is kept.
    pub(super) fn create(&self, stream: &str) -> io::Result<ArtifactFile> {
        let prefix = format!("{stream}-");
        let file = tempfile::Builder::new().prefix(&prefix).suffix(".log").tempfile_in(self.path()?)?;
        let (file, path) = file.into_parts();
        Ok(ArtifactFile { file: File::from_std(file), path, bytes: 0, complete: true })
    }

    fn path(&self) -> io::Result<PathBuf> {
        if let Some(path) = &self.configured {
            return Ok(path.clone());
        }
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        match own.as_ref() {
            Some(directory) => Ok(directory.path().to_owned()),
            None => Ok(own.insert(private_directory()?).path().to_owned()),
        }
    }
}

/// A directory that only this process's user may enter.
fn private_directory() -> io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
    builder.prefix("telexec-").tempdir()
}

/// A file that is being written.
pub(super) struct ArtifactFile {
    file: File,
    path: TempPath,
    bytes: u64,
    complete: bool,
}

impl ArtifactFile {
    /// Adds what came next, as far as there is room.
    pub(super) async fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        let room = usize::try_from(MAX_BYTES.saturating_sub(self.bytes)).unwrap_or(usize::MAX);
        let wanted = chunk.get(..room).unwrap_or(chunk);
        self.complete &= wanted.len() == chunk.len();
        self.bytes += wanted.len() as u64;
        self.file.write_all(wanted).await
    }

    /// Keeps the file.
    pub(super) async fn keep(mut self) -> io::Result<CommandArtifact> {
        self.file.flush().await?;
        let path = self.path.keep().map_err(|error| error.error)?;
        let path = path.to_string_lossy().into_owned();
        Ok(CommandArtifact { path, bytes: self.bytes, complete: self.complete })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[cfg(unix)]
    fn mode(path: &Path) -> u32 {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn a_file_has_the_exact_bytes_and_goes_with_its_directory() {
        let directory = ArtifactDirectory::default();
        let mut file = directory.create("stdout").unwrap();
        file.write(b"a\xff").await.unwrap();
        file.write(b"\0b").await.unwrap();
        let artifact = file.keep().await.unwrap();
        let path = PathBuf::from(&artifact.path);
        assert_eq!(std::fs::read(&path).unwrap(), b"a\xff\0b");
        assert_eq!((artifact.bytes, artifact.complete), (4, true));
        #[cfg(unix)]
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        drop(directory);
        assert!(!path.parent().unwrap().exists());
    }

    #[tokio::test]
    async fn a_file_that_is_not_kept_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let directory = ArtifactDirectory::at(place.path().to_owned());
        let mut file = directory.create("stdout").unwrap();
        file.write(b"a").await.unwrap();
        drop(file);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_file_in_a_directory_of_the_callers_stays() {
        let place = tempfile::tempdir().unwrap();
        let directory = ArtifactDirectory::at(place.path().to_owned());
        let artifact = directory.create("stderr").unwrap().keep().await.unwrap();
        drop(directory);
        assert!(Path::new(&artifact.path).exists());
        assert!(artifact.path.starts_with(place.path().to_str().unwrap()), "{artifact:?}");
    }

    #[tokio::test]
    async fn a_file_has_a_most() {
        let mut file = ArtifactDirectory::default().create("stdout").unwrap();
        file.bytes = MAX_BYTES - 2;
        file.write(b"abc").await.unwrap();
        file.write(b"d").await.unwrap();
        assert_eq!((file.bytes, file.complete), (MAX_BYTES, false));
    }
}
