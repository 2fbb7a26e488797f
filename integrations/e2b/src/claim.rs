//! Who has a target, in numbered files on the target itself.
//!
//! The file with the highest number holds. A step is made by creating the next one, which only one gateway can do (O_EXCL), so
//! two that read the same state never both go on from it. Earlier files are removed afterwards. A gateway that was asleep
//! meanwhile may create a number that was used and removed: there is a higher one then, so it looks again after creating.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use telexec_client::RemoteFiles;
use telexec_executor::{
    DirectoryQuery, ExecutorError, FileErrorKind, FilePath, FilePiece, FileRange, FileTarget, Files, WriteOptions,
};

const PREFIX: &str = "claim-";
const DIGITS: usize = 20;
/// The file that names the directory which may be emptied.
const HOME_MARK: &str = "home";
/// A claim has the environment and the metadata of its sandbox.
const MAX_CLAIM_BYTES: usize = 1024 * 1024;
/// Of what a client asks for: the rest is for what gateways add, as another one must be able to go on from it.
const MAX_ASKED_BYTES: usize = MAX_CLAIM_BYTES - 64 * 1024;
const PRIVATE_DIRECTORY: u32 = 0o700;
const PRIVATE_FILE: u32 = 0o600;
/// By which the clocks of two gateways may differ.
const CLOCK_SKEW: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClaimState {
    Free,
    /// Its home is being made.
    Starting,
    Running,
    Paused,
    /// It is being cleaned.
    Ending,
}

/// What a claim's file says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) state: ClaimState,
    /// The gateway that has it.
    pub(crate) owner: String,
    /// The sandbox; of a free target, the last one.
    pub(crate) id: String,
    /// Where it lives on the target.
    pub(crate) home: String,
    /// The sandbox's envd token; secret.
    pub(crate) token: String,
    pub(crate) template: String,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) envs: BTreeMap<String, String>,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) started: SystemTime,
    pub(crate) deadline: SystemTime,
}

impl Claim {
    pub(crate) fn is_over(&self) -> bool {
        SystemTime::now() >= self.deadline
    }

    /// That what a client asks for is not too long.
    pub(crate) fn check(&self) -> Result<(), ClaimError> {
        if self.encode()?.len() > MAX_ASKED_BYTES { Err(ClaimError::TooMuch) } else { Ok(()) }
    }

    fn encode(&self) -> Result<Vec<u8>, ClaimError> {
        serde_json::to_vec(self).map_err(|_| ClaimError::TooMuch)
    }

    /// Without what it was used with: no secrets, and nothing that is long.
    pub(crate) fn ending(&self, deadline: SystemTime) -> Self {
        Self {
            state: ClaimState::Ending,
            token: String::new(),
            template: String::new(),
            metadata: BTreeMap::new(),
            envs: BTreeMap::new(),
            idempotency_key: None,
            deadline,
            ..self.clone()
        }
    }

    /// Also by another gateway's clock.
    pub(crate) fn is_abandoned(&self) -> bool {
        SystemTime::now().duration_since(self.deadline).is_ok_and(|past| past >= CLOCK_SKEW)
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error("{path} on the target cannot be used")]
    Files { path: String, source: ExecutorError },
    #[error("{path} on the target is no claim: remove it when nobody uses the target")]
    Malformed { path: String, source: serde_json::Error },
    #[error("{path} on the target is longer than {MAX_CLAIM_BYTES} bytes: remove it when nobody uses the target")]
    TooLong { path: String },
    #[error("{home} on the target is not empty, and --home is emptied for each sandbox: move away what is in it")]
    NotEmpty { home: String },
    #[error("template, envs and metadata are longer than {MAX_ASKED_BYTES} bytes together")]
    TooMuch,
}

impl ClaimError {
    fn is_missing(&self) -> bool {
        matches!(self, Self::Files { source: ExecutorError::File(error), .. } if error.kind() == FileErrorKind::NotFound)
    }
}

/// The files of one target.
pub(crate) struct Claims {
    files: RemoteFiles,
    directory: String,
}

impl Claims {
    pub(crate) fn new(files: RemoteFiles, directory: String) -> Self {
        Self { files, directory }
    }

    /// The last step, and its number; `None`: nobody has ever taken it.
    pub(crate) async fn latest(&self) -> Result<(u64, Option<Claim>), ClaimError> {
        match self.numbers().await?.last() {
            Some(&number) => Ok((number, Some(self.read(number).await?))),
            None => Ok((0, None)),
        }
    }

    /// Makes the step after this one; its number. `None`: another gateway has made one.
    pub(crate) async fn advance(&self, number: u64, claim: &Claim) -> Result<Option<u64>, ClaimError> {
        let mut next = number + 1;
        while !self.create(next, claim).await? {
            let made = self.read(next).await?;
            // of this gateway's own steps the answer may have been lost
            if (&made.owner, &made.id) != (&claim.owner, &claim.id) {
                return Ok(None);
            }
            next += 1;
        }
        let numbers = self.numbers().await?;
        if numbers.last() != Some(&next) {
            self.remove(next).await;
            return Ok(None);
        }
        for earlier in numbers.into_iter().filter(|earlier| *earlier < next) {
            self.remove(earlier).await;
        }
        Ok(Some(next))
    }

    /// Makes the directory that is emptied for each sandbox, or finds that it was this one before. Otherwise it must be empty:
    /// nobody is to lose what was there before telexec-e2b was.
    pub(crate) async fn own_home(&self, home: &str, user: Option<String>) -> Result<(), ClaimError> {
        let mark = format!("{}/{HOME_MARK}", self.directory);
        let failed = |source| self.failed(mark.clone(), source);
        let is_marked = match self.content(FileTarget::new(mark.as_str()), &mark).await {
            Ok(marked) => marked == home.as_bytes(),
            Err(error) if error.is_missing() => false,
            Err(error) => return Err(error),
        };
        if is_marked {
            return Ok(());
        }
        let directory = FileTarget { path: FilePath::new(home), user };
        let in_home = |source| self.failed(home.to_owned(), source);
        self.files.make_directory(directory.clone(), None, true).await.map_err(in_home)?;
        let page = self.files.list(directory, DirectoryQuery::default()).await.map_err(in_home)?;
        if !page.entries.is_empty() {
            return Err(ClaimError::NotEmpty { home: home.to_owned() });
        }
        self.make_directory().await?;
        let options = WriteOptions { mode: Some(PRIVATE_FILE), ..WriteOptions::default() };
        let content = stream::iter([Ok(FilePiece::Data(Bytes::from(home.to_owned())))]).boxed();
        self.files.write(FileTarget::new(mark.as_str()), options, content).await.map(drop).map_err(failed)
    }

    async fn make_directory(&self) -> Result<(), ClaimError> {
        let made = self.files.make_directory(FileTarget::new(self.directory.as_str()), Some(PRIVATE_DIRECTORY), true);
        made.await.map(drop).map_err(|source| self.failed(self.directory.clone(), source))
    }

    /// `false`: there is one.
    async fn create(&self, number: u64, claim: &Claim) -> Result<bool, ClaimError> {
        match self.try_create(number, claim).await {
            // the first of all, or the directory was removed
            Err(error) if error.is_missing() => {
                self.make_directory().await?;
                self.try_create(number, claim).await
            }
            created => created,
        }
    }

    async fn try_create(&self, number: u64, claim: &Claim) -> Result<bool, ClaimError> {
        let text = claim.encode()?;
        let options = WriteOptions { mode: Some(PRIVATE_FILE), exclusive: true, ..WriteOptions::default() };
        let content = stream::iter([Ok(FilePiece::Data(Bytes::from(text)))]).boxed();
        match self.files.write(self.file(number), options, content).await {
            Ok(_) => Ok(true),
            Err(ExecutorError::File(error)) if error.kind() == FileErrorKind::AlreadyExists => Ok(false),
            Err(source) => Err(self.failed(self.path(number), source)),
        }
    }

    async fn read(&self, number: u64) -> Result<Claim, ClaimError> {
        let path = self.path(number);
        let text = self.content(self.file(number), &path).await?;
        serde_json::from_slice(&text).map_err(|source| ClaimError::Malformed { path, source })
    }

    async fn content(&self, file: FileTarget, path: &str) -> Result<Vec<u8>, ClaimError> {
        let failed = |source| self.failed(path.to_owned(), source);
        let mut content = self.files.read(file, FileRange::default()).await.map_err(failed)?;
        let mut text = Vec::new();
        while let Some(piece) = content.pieces.next().await {
            if let FilePiece::Data(data) = piece.map_err(failed)? {
                text.extend_from_slice(&data);
            }
            if text.len() > MAX_CLAIM_BYTES {
                return Err(ClaimError::TooLong { path: path.to_owned() });
            }
        }
        Ok(text)
    }

    /// In order.
    async fn numbers(&self) -> Result<Vec<u64>, ClaimError> {
        let (mut numbers, mut query) = (Vec::new(), DirectoryQuery::default());
        loop {
            let page = match self.files.list(FileTarget::new(self.directory.as_str()), query.clone()).await {
                Ok(page) => page,
                Err(ExecutorError::File(error)) if error.kind() == FileErrorKind::NotFound => return Ok(numbers),
                Err(source) => return Err(self.failed(self.directory.clone(), source)),
            };
            numbers.extend(page.entries.iter().filter_map(|entry| number_of(entry.path.as_bytes())));
            if page.next_page_token.is_empty() {
                numbers.sort_unstable();
                return Ok(numbers);
            }
            query.page_token = page.next_page_token;
        }
    }

    /// One that stays is only one more to look at.
    async fn remove(&self, number: u64) {
        let _ = self.files.remove(self.file(number), false).await;
    }

    fn path(&self, number: u64) -> String {
        format!("{}/{PREFIX}{number:0DIGITS$}", self.directory)
    }

    fn file(&self, number: u64) -> FileTarget {
        FileTarget::new(self.path(number))
    }

    fn failed(&self, path: String, source: ExecutorError) -> ClaimError {
        ClaimError::Files { path, source }
    }
}

fn number_of(name: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?;
    // one less than the largest, which has no next one
    (digits.len() == DIGITS).then(|| digits.parse().ok()).flatten().filter(|number| *number < u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_claims_have_numbers() {
        assert_eq!(number_of(b"claim-00000000000000000012"), Some(12));
        for name in
            ["claim-12", "claim-18446744073709551615", "claim-0000000000000000001x", ".claim-00000000000000000001", ""]
        {
            assert_eq!(number_of(name.as_bytes()), None, "{name}");
        }
    }
}
