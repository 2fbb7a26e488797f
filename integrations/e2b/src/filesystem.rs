//! filesystem.Filesystem: directories, and what is known of files.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};
use telexec_executor::{DirectoryQuery, ExecutorError, FileErrorKind, FileInfo, FilePath, FileTarget, FileType, Files};

use crate::app::App;
use crate::entry::entry;
use crate::failure::{Code, Failure};
use crate::sandbox::Sandbox;
use crate::{auth, connect, watchers};

/// Of one answer.
const MAX_ENTRIES: usize = 50_000;

#[derive(Debug, Deserialize)]
struct At {
    path: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Move {
    source: String,
    destination: String,
}

#[derive(Debug, Deserialize)]
struct ListDir {
    path: Option<String>,
    depth: Option<u32>,
}

/// A call, by its method's name.
pub(crate) async fn call(
    State(app): State<Arc<App>>,
    Path(method): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let caller = app.entered(&headers).and_then(|sandbox| {
        let user = sandbox.user(auth::user(&headers)?.as_deref());
        Ok((sandbox, user))
    });
    if method == "WatchDir" {
        return connect::reply_stream(
            async {
                let (sandbox, user) = caller?;
                sandbox.while_running(watchers::watch_dir(&sandbox, user, &headers, body)).await
            }
            .await,
        );
    }
    let done = async {
        let (sandbox, user) = caller?;
        let caller = Caller { sandbox: Arc::clone(&sandbox), user };
        sandbox.while_running(unary(&caller, &method, &headers, body)).await
    };
    connect::reply(done.await)
}

struct Caller {
    sandbox: Arc<Sandbox>,
    user: Option<String>,
}

async fn unary(caller: &Caller, method: &str, headers: &HeaderMap, body: Body) -> Result<Value, Failure> {
    let Caller { sandbox, user } = caller;
    match method {
        "Stat" => {
            let at: At = connect::request(headers, body).await?;
            caller.entry(&at.path.unwrap_or_default()).await
        }
        "MakeDir" => {
            let at: At = connect::request(headers, body).await?;
            caller.make_directory(&at.path.unwrap_or_default()).await
        }
        "Move" => caller.rename(connect::request(headers, body).await?).await,
        "Remove" => {
            let at: At = connect::request(headers, body).await?;
            caller.remove(&at.path.unwrap_or_default()).await
        }
        "ListDir" => caller.list(connect::request(headers, body).await?).await,
        "CreateWatcher" => watchers::create(sandbox, user.clone(), connect::request(headers, body).await?).await,
        "GetWatcherEvents" => watchers::events(sandbox, &connect::request(headers, body).await?),
        "RemoveWatcher" => watchers::remove(sandbox, &connect::request(headers, body).await?),
        method => Err(Failure::new(Code::Unimplemented, format!("filesystem.Filesystem has no method {method:?}"))),
    }
}

impl Caller {
    async fn file(&self, path: &str) -> Result<(FileTarget, String), Failure> {
        self.sandbox.file(path, self.user.as_deref()).await
    }

    async fn info(&self, path: &str) -> Result<(FileInfo, String), Failure> {
        let (file, path) = self.file(path).await?;
        Ok((self.sandbox.link.files.info(file).await?, path))
    }

    async fn entry(&self, path: &str) -> Result<Value, Failure> {
        let (info, path) = self.info(path).await?;
        Ok(json!({"entry": entry(&info, &path)}))
    }

    async fn make_directory(&self, path: &str) -> Result<Value, Failure> {
        match self.info(path).await {
            Ok((info, path)) if info.kind == FileType::Directory => {
                return Err(Failure::new(Code::AlreadyExists, format!("{path} is a directory already")));
            }
            Ok((_, path)) => return Err(Failure::invalid(format!("{path} exists, and is no directory"))),
            Err(failure) if failure.code == Code::NotFound => {}
            Err(failure) => return Err(failure),
        }
        let (file, path) = self.file(path).await?;
        self.sandbox.link.files.make_directory(file, None, true).await?;
        self.entry(&path).await
    }

    /// With the directories that the new name is in, as envd does.
    async fn rename(&self, request: Move) -> Result<Value, Failure> {
        let (source, _) = self.info(&request.source).await.map(|(_, path)| path).map(|path| (path.clone(), path))?;
        let (source, _) = self.file(&source).await?;
        let (destination, path) = self.file(&request.destination).await?;
        if let Some((parent, _)) = path.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
            let (parent, _) = self.file(parent).await?;
            self.sandbox.link.files.make_directory(parent, None, true).await?;
        }
        self.sandbox.link.files.rename(source, destination.path, true).await?;
        self.entry(&path).await
    }

    /// With all that is below; what is not there is removed already.
    async fn remove(&self, path: &str) -> Result<Value, Failure> {
        let (file, path) = self.file(path).await?;
        if is_root(&path) {
            return Err(Failure::invalid("path: is the root of the target's file system, which is not removed"));
        }
        match self.sandbox.link.files.remove(file, true).await {
            Ok(()) => Ok(json!({})),
            Err(ExecutorError::File(error)) if error.kind() == FileErrorKind::NotFound => Ok(json!({})),
            Err(error) => Err(error.into()),
        }
    }

    async fn list(&self, request: ListDir) -> Result<Value, Failure> {
        let (_, top) = self.file(&request.path.unwrap_or_default()).await?;
        let depth = request.depth.unwrap_or(0).max(1);
        let (mut entries, mut directories) = (Vec::new(), vec![(top, depth)]);
        while let Some((directory, depth)) = directories.pop() {
            let is_top = entries.is_empty() && directories.is_empty();
            for (info, path) in self.children(&directory, is_top).await? {
                if depth > 1 && info.kind == FileType::Directory {
                    directories.push((path.clone(), depth - 1));
                }
                entries.push((entry(&info, &path), path));
            }
            if entries.len() > MAX_ENTRIES {
                let message = format!("there are more than {MAX_ENTRIES} entries: list with a smaller depth");
                return Err(Failure::new(Code::ResourceExhausted, message));
            }
        }
        entries.sort_by(|(_, path), (_, other)| path.cmp(other));
        let entries: Vec<Value> = entries.into_iter().map(|(entry, _)| entry).collect();
        Ok(json!({"entries": entries}))
    }

    /// What is in a directory. One below the first may have gone, or be closed to the user.
    async fn children(&self, directory: &str, is_top: bool) -> Result<Vec<(FileInfo, String)>, Failure> {
        let (mut found, mut query) = (Vec::new(), DirectoryQuery::default());
        let prefix = directory.trim_end_matches('/');
        loop {
            let target = FileTarget { path: FilePath::new(directory), user: self.user.clone() };
            let page = match self.sandbox.link.files.list(target, query.clone()).await {
                Ok(page) => page,
                Err(ExecutorError::File(_)) if !is_top => return Ok(found),
                Err(error) => return Err(error.into()),
            };
            for info in page.entries {
                let path = format!("{prefix}/{}", String::from_utf8_lossy(info.path.as_bytes()));
                found.push((info, path));
            }
            if page.next_page_token.is_empty() || found.len() > MAX_ENTRIES {
                return Ok(found);
            }
            query.page_token = page.next_page_token;
        }
    }
}

/// However it is written; by way of ".." too. The target is no machine that is thrown away afterwards.
fn is_root(path: &str) -> bool {
    let mut depth = 0_usize;
    for part in path.split('/') {
        depth = match part {
            "" | "." => depth,
            ".." => depth.saturating_sub(1),
            _ => depth + 1,
        };
    }
    depth == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_known_by_any_name() {
        for path in ["/", "//", "/.", "/..", "/a/..", "/a/../..", "/a/b/../.."] {
            assert!(is_root(path), "{path}");
        }
        assert!(!is_root("/a") && !is_root("/a/../b") && !is_root("/../a"));
    }
}
