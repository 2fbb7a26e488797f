//! Files of an agent's machine.

use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use telexec_client::RemoteFiles;
use telexec_executor::{
    DirectoryQuery, ExecutorError, FileInfo, FilePath, FilePiece, FilePieces, FileRange, FileTarget, Files as _,
    SearchQuery, Watched, WatchedFiles, WriteOptions,
};
use tokio::sync::{Mutex, watch};

use crate::call::Call;
use crate::failure::Failure;
use crate::owned::Owned;
use crate::search::{self, search};
use crate::values;

/// A request has at most this much.
const PIECE_BYTES: usize = 256 * 1024;

/// The files of a machine.
#[pyclass(frozen, module = "telexec._telexec")]
pub(crate) struct Files {
    files: Owned<RemoteFiles>,
    /// Opens what names no user.
    user: Option<String>,
}

#[pymethods]
impl Files {
    #[pyo3(signature = (path, *, user=None, offset=0, length=0))]
    fn read(&self, py: Python<'_>, path: PathBuf, user: Option<String>, offset: u64, length: u64) -> PyResult<Call> {
        let (files, file) = self.file(path, user)?;
        let range = FileRange { offset, length, ..FileRange::default() };
        Call::with(py, async move { read_all(files, file, range).await }, |py, data| {
            Ok(PyBytes::new(py, &data).into_any().unbind())
        })
    }

    #[pyo3(signature = (path, data, *, user=None, mode=None, make_parents=false, exclusive=false))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn write(
        &self,
        py: Python<'_>,
        path: PathBuf,
        data: Vec<u8>,
        user: Option<String>,
        mode: Option<u32>,
        make_parents: bool,
        exclusive: bool,
    ) -> PyResult<Call> {
        let (files, file) = self.file(path, user)?;
        let options = WriteOptions { mode, make_parents, exclusive, ..WriteOptions::default() };
        let work = async move { Ok(files.write(file, options, pieces(data.into())).await?.info) };
        Call::with(py, work, values::file_info)
    }

    #[pyo3(signature = (path, *, user=None))]
    fn list(&self, py: Python<'_>, path: PathBuf, user: Option<String>) -> PyResult<Call> {
        let (files, file) = self.file(path, user)?;
        Call::with(py, async move { list_all(files, file).await }, |py, entries| {
            let entries: PyResult<Vec<_>> = entries.into_iter().map(|entry| values::file_info(py, entry)).collect();
            Ok(entries?.into_pyobject(py)?.unbind())
        })
    }

    #[pyo3(signature = (path, *, user=None))]
    fn info(&self, py: Python<'_>, path: PathBuf, user: Option<String>) -> PyResult<Call> {
        let (files, file) = self.file(path, user)?;
        Call::with(py, async move { Ok(files.info(file).await?) }, values::file_info)
    }

    #[pyo3(signature = (path, mode=None, parents=false, *, user=None))]
    fn make_directory(
        &self,
        py: Python<'_>,
        path: PathBuf,
        mode: Option<u32>,
        parents: bool,
        user: Option<String>,
    ) -> PyResult<Call> {
        let (files, directory) = self.file(path, user)?;
        Call::new(py, async move { Ok(files.make_directory(directory, mode, parents).await?) })
    }

    #[pyo3(signature = (path, to, *, user=None, replace=false))]
    fn rename(
        &self,
        py: Python<'_>,
        path: PathBuf,
        to: PathBuf,
        user: Option<String>,
        replace: bool,
    ) -> PyResult<Call> {
        let ((files, file), to) = (self.file(path, user)?, file_path(to));
        Call::new(py, async move { Ok(files.rename(file, to, replace).await?) })
    }

    #[pyo3(signature = (path, *, glob="", regex=None, user=None, case_insensitive=false, multiline=false, before_context=0,
        after_context=0, include_hidden=false, include_ignored=false, follow_links=false, max_matches=0))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn search(
        &self,
        py: Python<'_>,
        path: PathBuf,
        glob: &str,
        regex: Option<String>,
        user: Option<String>,
        case_insensitive: bool,
        multiline: bool,
        before_context: u32,
        after_context: u32,
        include_hidden: bool,
        include_ignored: bool,
        follow_links: bool,
        max_matches: u64,
    ) -> PyResult<Call> {
        let (files, directory) = self.file(path, user)?;
        let query = SearchQuery {
            glob: glob.to_owned(),
            regex,
            case_insensitive,
            multiline,
            before_context,
            after_context,
            include_hidden,
            include_ignored,
            follow_links,
            max_matches,
            ..SearchQuery::default()
        };
        Call::with(py, search(files, directory, query), search::to_python)
    }

    #[pyo3(signature = (path, *, user=None, recursive=false))]
    fn remove(&self, py: Python<'_>, path: PathBuf, user: Option<String>, recursive: bool) -> PyResult<Call> {
        let (files, file) = self.file(path, user)?;
        Call::new(py, async move { Ok(files.remove(file, recursive).await?) })
    }

    #[pyo3(signature = (path, *, user=None, recursive=false))]
    fn watch(&self, py: Python<'_>, path: PathBuf, user: Option<String>, recursive: bool) -> PyResult<Call> {
        let (files, file) = self.file(path, user)?;
        Call::new(py, async move {
            let changes = Changes { files: files.watch(file, recursive).await?, given: None, seen: 0 };
            let changes = Mutex::new(Some(changes));
            Ok(Watch(Owned::new(Arc::new(Watching { changes, closed: watch::Sender::new(false) }))))
        })
    }
}

impl Files {
    pub(crate) fn new(files: RemoteFiles, user: Option<String>) -> Self {
        Self { files: Owned::new(files), user }
    }

    fn file(&self, path: PathBuf, user: Option<String>) -> PyResult<(RemoteFiles, FileTarget)> {
        let file = FileTarget { path: file_path(path), user: user.or_else(|| self.user.clone()) };
        Ok((self.files.get()?.clone(), file))
    }
}

fn file_path(path: PathBuf) -> FilePath {
    FilePath::new(path.into_os_string().into_vec())
}

async fn read_all(files: RemoteFiles, file: FileTarget, range: FileRange) -> Result<Vec<u8>, Failure> {
    let mut content = files.read(file, range).await?;
    let mut data = Vec::new();
    while let Some(piece) = content.pieces.next().await {
        match piece? {
            FilePiece::Data(piece) => data.extend_from_slice(&piece),
            FilePiece::Hole(length) => data.resize(data.len() + usize::try_from(length).unwrap_or_default(), 0),
            FilePiece::End { .. } => return Ok(data),
        }
    }
    Err(Failure::new("Lost", "the file did not arrive to its end"))
}

fn pieces(data: Bytes) -> FilePieces {
    let rest = |mut data: Bytes| {
        let piece = data.split_to(data.len().min(PIECE_BYTES));
        (!piece.is_empty()).then(|| (Ok(FilePiece::Data(piece)), data))
    };
    stream::unfold(data, move |data| std::future::ready(rest(data))).boxed()
}

async fn list_all(files: RemoteFiles, directory: FileTarget) -> Result<Vec<FileInfo>, Failure> {
    let (mut entries, mut query) = (Vec::new(), DirectoryQuery::default());
    loop {
        let page = files.list(directory.clone(), query.clone()).await?;
        entries.extend(page.entries);
        if page.next_page_token.is_empty() {
            return Ok(entries);
        }
        query.page_token = page.next_page_token;
    }
}

/// Files that are watched. Dropping it ends the watch.
#[pyclass(frozen, module = "telexec._telexec")]
pub(crate) struct Watch(Owned<Arc<Watching>>);

struct Watching {
    /// `None`: closed.
    changes: Mutex<Option<Changes>>,
    closed: watch::Sender<bool>,
}

struct Changes {
    files: WatchedFiles,
    /// Python has not said yet that it has got it: a wait that is interrupted loses nothing.
    given: Option<Watched>,
    /// How many it has got.
    seen: u64,
}

impl Watching {
    async fn next(&self, seen: u64) -> Result<Option<Watched>, ExecutorError> {
        let mut closed = self.closed.subscribe();
        let mut changes = self.changes.lock().await;
        let Some(changes) = changes.as_mut() else { return Ok(None) };
        if seen > changes.seen {
            (changes.seen, changes.given) = (seen, None);
        }
        if changes.given.is_none() {
            changes.given = tokio::select! {
                change = changes.files.next() => change.transpose()?,
                _ = closed.wait_for(|closed| *closed) => None,
            };
        }
        Ok(changes.given.clone())
    }
}

#[pymethods]
impl Watch {
    /// The next change after as many; `None`: the watch was closed.
    fn next(&self, py: Python<'_>, seen: u64) -> PyResult<Call> {
        let watching = Arc::clone(self.0.get()?);
        Call::with(py, async move { Ok(watching.next(seen).await?) }, |py, change| {
            let change = change.map(|change| values::file_change(py, &change)).transpose()?;
            Ok(change.into_pyobject(py)?.unbind())
        })
    }

    fn close(&self, py: Python<'_>) -> PyResult<Call> {
        let watching = Arc::clone(self.0.get()?);
        Call::new(py, async move {
            watching.closed.send_replace(true);
            watching.changes.lock().await.take();
            Ok(())
        })
    }
}
