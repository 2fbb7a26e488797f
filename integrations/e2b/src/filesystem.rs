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
use crate::room::Held;
use crate::sandbox::Sandbox;
use crate::{auth, connect, watchers};

/// Of one answer.
const MAX_ENTRIES: usize = 50_000;
/// Paths may be long.
const MAX_LIST_BYTES: usize = 24 * 1024 * 1024;

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
        let mut held = sandbox.shared.room.hold();
        let answer = sandbox.while_running(unary(&caller, &method, &headers, body, &mut held)).await?;
        Ok((answer, held))
    };
    connect::reply_held(done.await)
}

struct Caller {
    sandbox: Arc<Sandbox>,
    user: Option<String>,
}

/// The answer, and what it holds.
async fn unary(
    caller: &Caller,
    method: &str,
    headers: &HeaderMap,
    body: Body,
    held: &mut Held,
) -> Result<Value, Failure> {
    let Caller { sandbox, user } = caller;
    let message = connect::request(headers, body, &sandbox.shared.room).await?;
    match method {
        "Stat" => {
            let at: At = message.parse()?;
            caller.entry(&at.path.unwrap_or_default()).await
        }
        "MakeDir" => {
            let at: At = message.parse()?;
            caller.make_directory(&at.path.unwrap_or_default()).await
        }
        "Move" => caller.rename(message.parse()?).await,
        "Remove" => {
            let at: At = message.parse()?;
            caller.remove(&at.path.unwrap_or_default()).await
        }
        "ListDir" => caller.list(message.parse()?, held).await,
        "CreateWatcher" => watchers::create(sandbox, user.clone(), message.parse()?).await,
        "GetWatcherEvents" => watchers::events(sandbox, &message.parse()?, held),
        "RemoveWatcher" => watchers::remove(sandbox, &message.parse()?),
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

    async fn list(&self, request: ListDir, held: &mut Held) -> Result<Value, Failure> {
        let (_, top) = self.file(&request.path.unwrap_or_default()).await?;
        let depth = request.depth.unwrap_or(0).max(1);
        let mut listed = Listed { entries: Vec::new(), bytes: 0, held };
        let mut directories = vec![(top, depth)];
        while let Some((directory, depth)) = directories.pop() {
            let is_top = listed.entries.is_empty() && directories.is_empty();
            let below = self.children(&directory, is_top, &mut listed).await?;
            if depth > 1 {
                directories.extend(below.into_iter().map(|path| (path, depth - 1)));
            }
        }
        let mut entries = listed.entries;
        entries.sort_by(|(_, path), (_, other)| path.cmp(other));
        let entries: Vec<Value> = entries.into_iter().map(|(entry, _)| entry).collect();
        Ok(json!({"entries": entries}))
    }

    /// Lists what is in a directory; the directories in it. One below the first may have gone, or be closed to the user.
    async fn children(&self, directory: &str, is_top: bool, listed: &mut Listed<'_>) -> Result<Vec<String>, Failure> {
        let (mut below, mut query) = (Vec::new(), DirectoryQuery::default());
        let prefix = directory.trim_end_matches('/');
        loop {
            let target = FileTarget { path: FilePath::new(directory), user: self.user.clone() };
            let page = match self.sandbox.link.files.list(target, query.clone()).await {
                Ok(page) => page,
                Err(ExecutorError::File(_)) if !is_top => return Ok(below),
                Err(error) => return Err(error.into()),
            };
            for info in page.entries {
                let path = format!("{prefix}/{}", String::from_utf8_lossy(info.path.as_bytes()));
                if info.kind == FileType::Directory {
                    below.push(path.clone());
                }
                listed.push(&info, path)?;
            }
            if page.next_page_token.is_empty() {
                return Ok(below);
            }
            query.page_token = page.next_page_token;
        }
    }
}

/// Entries with their paths, and what they take.
struct Listed<'a> {
    entries: Vec<(Value, String)>,
    bytes: usize,
    held: &'a mut Held,
}

impl Listed<'_> {
    fn push(&mut self, info: &FileInfo, path: String) -> Result<(), Failure> {
        let entry = entry(info, &path);
        self.bytes += entry.to_string().len();
        if self.entries.len() == MAX_ENTRIES || self.bytes > MAX_LIST_BYTES {
            let message = format!(
                "there are more than {MAX_ENTRIES} entries, or {MAX_LIST_BYTES} bytes of them: list with a smaller depth"
            );
            return Err(Failure::new(Code::ResourceExhausted, message));
        }
        self.held.resize(self.bytes)?;
        self.entries.push((entry, path));
        Ok(())
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
