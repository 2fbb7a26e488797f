//! A target that is connected to on first use, so that an unreachable one fails the call and not the server.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use telexec_client::{Agent, NamedCommand, RemoteFiles, Resuming};
use telexec_executor::{
    DirectoryPage, DirectoryQuery, ExecutionId, Executor, ExecutorError, FileContent, FileInfo, FilePath, FilePieces,
    FileRange, FileTarget, Files, FoundFiles, SearchQuery, WatchedFiles, WriteOptions, WrittenFile, forward_executor,
};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::config::ResolvedTarget;
use crate::connect::{ReconnectArgs, Session};
use crate::output::{Failure, exit};

/// How long to wait until agents have received cancellations; clients kill servers soon after.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs commands on a target, and opens its files. Commands survive lost connections; a target that was never reached
/// fails at once.
pub(super) struct LazyTarget {
    name: String,
    resolved: ResolvedTarget,
    reconnect: ReconnectArgs,
    reached: OnceCell<Reached>,
    /// Keeps the connection open.
    session: Mutex<Option<Session>>,
}

/// A target that was connected to.
struct Reached {
    agent: Agent,
    executor: Resuming,
    files: RemoteFiles,
}

impl LazyTarget {
    pub(super) fn new(name: &str, resolved: ResolvedTarget, reconnect: ReconnectArgs) -> Self {
        let (reached, session) = (OnceCell::new(), Mutex::default());
        Self { name: name.to_owned(), resolved, reconnect, reached, session }
    }

    /// Its name in messages and for clients.
    pub(super) fn name(&self) -> String {
        self.name.clone()
    }

    /// The configured user.
    pub(super) fn user(&self) -> Option<String> {
        self.resolved.user.clone()
    }

    /// The named commands that it has now.
    ///
    /// # Errors
    /// It did not answer, or refuses to.
    pub(super) async fn named_commands(&self) -> Result<Vec<NamedCommand>, Failure> {
        let reached = self.reached().await.map_err(|error| Failure::new(exit::LOST, &error))?;
        let info = reached.agent.info().await;
        Ok(info.map_err(|error| Failure::new(exit::of_error(&error), &error).context(&self.name))?.named_commands)
    }

    async fn executor(&self) -> Result<&Resuming, ExecutorError> {
        self.reached().await.map(|reached| &reached.executor)
    }

    async fn files(&self) -> Result<&RemoteFiles, ExecutorError> {
        self.reached().await.map(|reached| &reached.files)
    }

    async fn reached(&self) -> Result<&Reached, ExecutorError> {
        self.reached.get_or_try_init(|| self.open()).await
    }

    async fn open(&self) -> Result<Reached, ExecutorError> {
        let session = Session::connect(&self.resolved).await;
        let session = session.map_err(|failure| ExecutorError::Internal(failure.to_string()))?;
        let executor = session.agent.executor().resuming(self.reconnect.resume());
        let (agent, files) = (session.agent.clone(), session.agent.files());
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
        Ok(Reached { agent, executor, files })
    }

    /// Ends dropped executions, and an agent in this process.
    ///
    /// # Errors
    /// The agent in this process failed.
    pub(super) async fn close(&self) -> Result<(), Failure> {
        if let Some(Reached { executor, .. }) = self.reached.get() {
            // retries of an unreachable target take longer than clients wait
            let _ = timeout(CANCEL_TIMEOUT, executor.settled()).await;
        }
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
        match session {
            Some(session) => session.close().await,
            None => Ok(()),
        }
    }
}

#[async_trait]
impl Executor for LazyTarget {
    forward_executor!(self => self.executor().await?; execute, attach, write_input, resize, signal, get, list);
}

#[async_trait]
impl Files for LazyTarget {
    async fn read(&self, file: FileTarget, range: FileRange) -> Result<FileContent, ExecutorError> {
        self.files().await?.read(file, range).await
    }

    async fn write(
        &self,
        file: FileTarget,
        options: WriteOptions,
        content: FilePieces,
    ) -> Result<WrittenFile, ExecutorError> {
        self.files().await?.write(file, options, content).await
    }

    async fn upload(&self, id: &ExecutionId) -> Result<u64, ExecutorError> {
        self.files().await?.upload(id).await
    }

    async fn info(&self, file: FileTarget) -> Result<FileInfo, ExecutorError> {
        self.files().await?.info(file).await
    }

    async fn list(&self, directory: FileTarget, query: DirectoryQuery) -> Result<DirectoryPage, ExecutorError> {
        self.files().await?.list(directory, query).await
    }

    async fn search(&self, directory: FileTarget, query: SearchQuery) -> Result<FoundFiles, ExecutorError> {
        self.files().await?.search(directory, query).await
    }

    async fn watch(&self, file: FileTarget, recursive: bool) -> Result<WatchedFiles, ExecutorError> {
        self.files().await?.watch(file, recursive).await
    }

    async fn make_directory(
        &self,
        directory: FileTarget,
        mode: Option<u32>,
        make_parents: bool,
    ) -> Result<(), ExecutorError> {
        self.files().await?.make_directory(directory, mode, make_parents).await
    }

    async fn rename(&self, file: FileTarget, destination: FilePath, replace: bool) -> Result<(), ExecutorError> {
        self.files().await?.rename(file, destination, replace).await
    }

    async fn remove(&self, file: FileTarget, recursive: bool) -> Result<(), ExecutorError> {
        self.files().await?.remove(file, recursive).await
    }
}
