//! Directories of the worker's on a target. What is in them is trusted, and removed: nobody else may put anything there.

use crate::sftp::{Kind, Open, Sftp, SftpError};

const OTHERS_WRITE: u32 = 0o022;

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OwnedError {
    /// It cannot be looked at.
    #[error(transparent)]
    File(#[from] SftpError),
    /// It cannot be made, or takes no files.
    #[error("cannot use {path}: choose another directory with --work-dir")]
    Make {
        /// The directory.
        path: String,
        /// Why not.
        source: SftpError,
    },
    /// Others may have put there what is in it.
    #[error("{path} {reason}: remove it, or choose another directory with --work-dir")]
    Unsafe {
        /// What should be a directory.
        path: String,
        /// What it is instead.
        reason: &'static str,
    },
}

/// The id of the user that a session's files belong to: of a new file's owner, since only the kernel says that.
///
/// # Errors
/// The directory is not there, cannot be made, or takes no files.
pub(crate) async fn user(sftp: &Sftp, directory: &str) -> Result<u32, OwnedError> {
    let made = sftp.make_directory(directory, 0o755).await.done().await;
    let path = format!("{directory}/.owner-{}", uuid::Uuid::new_v4().simple());
    let handle = match sftp.open(&path, Open::Create(0o600)).await.handle().await {
        // if it is not there, why it could not be made says more
        Err(error) if error.is_refusal() => {
            let source = made.err().filter(|_| error.is_not_found()).unwrap_or(error);
            return Err(OwnedError::Make { path: directory.to_owned(), source });
        }
        handle => handle?,
    };
    let attributes = sftp.attributes_of(&handle).await.attributes().await;
    sftp.close(&handle).await.done().await?;
    sftp.remove(&path).await.done().await?;
    Ok(attributes?.owner)
}

/// Makes a directory, or takes one that is there if it is this user's alone.
///
/// # Errors
/// It cannot be made, or somebody else could have filled it.
pub(crate) async fn make(sftp: &Sftp, user: u32, path: &str, mode: u32) -> Result<(), OwnedError> {
    let made = sftp.make_directory(path, mode).await.done().await;
    let attributes = match (sftp.attributes(path).await.attributes().await, made) {
        (Err(error), _) if !error.is_refusal() => return Err(error.into()),
        (Err(_), Err(source)) if source.is_refusal() => return Err(OwnedError::Make { path: path.to_owned(), source }),
        (attributes, _) => attributes?,
    };
    let reason = match attributes.kind() {
        Kind::Directory if attributes.owner != user => "belongs to another user",
        Kind::Directory if attributes.permissions() & OTHERS_WRITE != 0 => "can be written to by others",
        Kind::Directory => return Ok(()),
        _ => "is not a directory",
    };
    Err(OwnedError::Unsafe { path: path.to_owned(), reason })
}
