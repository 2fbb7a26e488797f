//! One file to the target.

use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use futures_util::StreamExt;
use telexec_executor::{
    ExecutionId, ExecutorError, FileOperation, FilePath, FilePieces, Files, WriteOptions, WrittenFile,
};

use super::draft::RESUMED_BYTES;
use super::local_file::{here, length, read};
use super::patience::Patience;
use super::{Copy, Failed};

impl Copy<'_> {
    /// Copies a file to this path, or continues to.
    pub(super) async fn upload(&self, source: &Path, to: FilePath) -> Result<(), Failed> {
        let open = || {
            let file = File::open(source)?;
            let metadata = file.metadata()?;
            Ok((file, metadata))
        };
        let failed = |operation| move |error| Failed::File(here(operation, source, &error).to_string());
        let (_, metadata) = open().map_err(failed(FileOperation::Open))?;
        let source_mode = metadata.is_file().then(|| metadata.permissions().mode() & 0o777);
        let mut options = WriteOptions { source_mode, ..WriteOptions::default() };
        if self.args.checksum {
            options.sha256 = Some(self.checksum(source).await?);
        }
        self.progress.begin(&source.to_string_lossy(), Some(metadata.len()).filter(|_| metadata.is_file()));
        let mut id = upload_id(source, &metadata, &self.target.to_string(), &to, self.args.user.as_deref());
        let resumes = metadata.is_file() && metadata.len() >= RESUMED_BYTES;
        let mut patience = Patience::new(self.args.reconnect.resume());
        // what an interrupted copy has left
        let mut known = if resumes { self.committed(&mut patience, &id).await? } else { 0 };
        if known == metadata.len() {
            // an earlier copy may be complete, and the file there removed or changed since: this is another upload
            (id, known) = (ExecutionId::generate(), 0);
        }
        loop {
            let (file, _) = open().map_err(failed(FileOperation::Open))?;
            options.upload = resumes.then(|| (id.clone(), known));
            self.progress.skip(known, None);
            let error = match self.send(source, file, &to, options.clone(), known).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if !resumes && !matches!(error, ExecutorError::Unreachable { .. }) {
                return Err(self.not_written(error));
            }
            patience.pause(error).await.map_err(|error| self.not_written(error))?;
            if resumes {
                let committed = self.committed(&mut patience, &id).await?;
                if committed > known {
                    patience.progressed();
                }
                known = committed;
            }
        }
    }

    /// Copies standard input to this path.
    pub(super) async fn upload_stdin(&self, to: FilePath) -> Result<(), Failed> {
        let source = Path::new("/dev/stdin");
        let stdin = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned();
        let stdin = stdin.map_err(|error| Failed::File(here(FileOperation::Open, source, &error).to_string()))?;
        self.progress.begin("-", None);
        let sent = self.send(source, File::from(stdin), &to, WriteOptions::default(), 0).await;
        sent.map_err(|error| self.not_written(error))
    }

    /// How much of an upload the target has.
    async fn committed(&self, patience: &mut Patience, id: &ExecutionId) -> Result<u64, Failed> {
        match patience.repeat(|| self.files.upload(id)).await {
            Ok(committed) => Ok(committed),
            Err(ExecutorError::NoUpload(_)) => Ok(0),
            Err(error) => Err(self.failed(error)),
        }
    }

    async fn send(
        &self,
        source: &Path,
        file: File,
        to: &FilePath,
        options: WriteOptions,
        offset: u64,
    ) -> Result<(), ExecutorError> {
        let (pieces, digested) = read(source, file, offset);
        let WrittenFile { sha256, .. } = self.files.write(self.file(to.clone()), options, self.counted(pieces)).await?;
        match digested.await {
            Ok(sent) if sent != sha256 => Err(ExecutorError::Corrupted { path: to.clone() }),
            _ => Ok(()),
        }
    }

    /// The same pieces, which are shown as they are taken.
    fn counted(&self, pieces: FilePieces) -> FilePieces {
        let progress = std::sync::Arc::clone(&self.progress);
        pieces.inspect(move |piece| progress.add(piece.as_ref().map_or(0, length))).boxed()
    }

    async fn checksum(&self, source: &Path) -> Result<[u8; 32], Failed> {
        let failed = |error| Failed::File(here(FileOperation::Read, source, &error).to_string());
        let (mut pieces, digested) = read(source, File::open(source).map_err(failed)?, 0);
        while let Some(piece) = pieces.next().await {
            piece.map_err(|error| Failed::File(error.to_string()))?;
        }
        digested.await.map_err(|_| Failed::File(format!("cannot read {}", source.display())))
    }
}

/// The same for the same file and the same place, so that an interrupted copy is found again.
fn upload_id(source: &Path, metadata: &Metadata, target: &str, to: &FilePath, user: Option<&str>) -> ExecutionId {
    let source = std::fs::canonicalize(source).unwrap_or_else(|_| source.to_owned());
    let state = format!(
        "{} {} {}.{} {} {}",
        metadata.dev(),
        metadata.ino(),
        metadata.mtime(),
        metadata.mtime_nsec(),
        metadata.len(),
        metadata.mode()
    );
    let parts = [
        source.as_os_str().as_bytes(),
        state.as_bytes(),
        target.as_bytes(),
        to.as_bytes(),
        user.unwrap_or("").as_bytes(),
    ];
    let digest = digest(&SHA256, &parts.join(&0));
    let name: String = digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("cp-{name}").parse().unwrap_or_else(|_| ExecutionId::generate())
}
