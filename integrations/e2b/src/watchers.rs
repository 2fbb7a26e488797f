//! Changes of a directory: as a stream, or gathered until a client asks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};
use telexec_executor::{ExecutorError, FileChange, FileEvent, FileType, Files, Watched, WatchedFiles};
use tokio::task::AbortHandle;
use tokio::time::{Instant, interval_at};

use crate::connect;
use crate::entry::entry;
use crate::failure::{Code, Failure, put};
use crate::follow;
use crate::room::Held;
use crate::sandbox::Sandbox;

const MAX_WATCHERS: usize = 64;
/// What is kept for a client that does not ask: of one watcher, as JSON.
const MAX_EVENT_BYTES: usize = 1024 * 1024;
/// What the shortest event takes.
const EVENT_BYTES: usize = 64;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Watch {
    path: Option<String>,
    recursive: Option<bool>,
    include_entry: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Watcher {
    watcher_id: String,
}

/// Those of a sandbox.
#[derive(Default)]
pub(crate) struct Watchers(Mutex<HashMap<String, Gathering>>);

struct Gathering {
    events: Arc<Mutex<Gathered>>,
    task: AbortHandle,
}

impl Drop for Gathering {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Default)]
struct Gathered {
    events: Vec<String>,
    bytes: usize,
    /// Told with the next answer; the watch goes on after a loss, and not after another error.
    failure: Option<Failure>,
    is_over: bool,
}

impl Gathered {
    fn push(&mut self, event: &Value) {
        let event = event.to_string();
        let bytes = EVENT_BYTES + event.len();
        if self.bytes + bytes > MAX_EVENT_BYTES {
            self.failure = Some(lost());
        } else {
            self.bytes += bytes;
            self.events.push(event);
        }
    }
}

impl Watchers {
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

fn lost() -> Failure {
    Failure::new(Code::DataLoss, "changes were lost, since they were not read in time: list the directory again")
}

/// What to watch, and where that is.
struct Subject {
    sandbox: Arc<Sandbox>,
    user: Option<String>,
    path: String,
    include_entry: bool,
}

impl Subject {
    async fn open(sandbox: &Arc<Sandbox>, user: Option<String>, watch: Watch) -> Result<(Self, WatchedFiles), Failure> {
        let (file, path) = sandbox.file(&watch.path.unwrap_or_default(), user.as_deref()).await?;
        let files = &sandbox.link.files;
        if files.info(file.clone()).await?.kind == FileType::Regular {
            return Err(Failure::invalid(format!("{path} is no directory")));
        }
        let changes = files.watch(file, watch.recursive.unwrap_or(false)).await?;
        let include_entry = watch.include_entry.unwrap_or(false);
        Ok((Self { sandbox: Arc::clone(sandbox), user, path, include_entry }, changes))
    }

    async fn event(&self, event: FileEvent) -> Value {
        let path = String::from_utf8_lossy(event.path.as_bytes()).into_owned();
        let name = path.strip_prefix(&self.path).map_or(path.as_str(), |name| name.trim_start_matches('/'));
        let mut value = json!({"name": name, "type": kind(event.change)});
        let is_there = !matches!(event.change, FileChange::Removed | FileChange::Renamed);
        if self.include_entry
            && is_there
            && let Ok((file, path)) = self.sandbox.file(&path, self.user.as_deref()).await
            && let Ok(info) = self.sandbox.link.files.info(file).await
        {
            put(&mut value, "entry", entry(&info, &path));
        }
        value
    }
}

fn kind(change: FileChange) -> &'static str {
    match change {
        FileChange::Created => "EVENT_TYPE_CREATE",
        FileChange::Written => "EVENT_TYPE_WRITE",
        FileChange::Removed => "EVENT_TYPE_REMOVE",
        FileChange::Renamed => "EVENT_TYPE_RENAME",
        FileChange::AttributesChanged => "EVENT_TYPE_CHMOD",
    }
}

/// As a stream.
pub(crate) async fn watch_dir(
    sandbox: &Arc<Sandbox>,
    user: Option<String>,
    headers: &HeaderMap,
    body: Body,
) -> Result<BoxStream<'static, Result<Value, Failure>>, Failure> {
    let (limit, keepalive) = (connect::call_timeout(headers)?, connect::keepalive(headers)?);
    let watch = connect::stream_request(headers, body, &sandbox.shared.room).await?.parse()?;
    let (subject, changes) = Subject::open(sandbox, user, watch).await?;
    let keepalives = interval_at(Instant::now() + keepalive, keepalive);
    let ended = sandbox.shared.ended.clone();
    let steps = stream::unfold(Some((subject, changes, keepalives)), move |state| {
        let ended = ended.clone();
        async move {
            let (subject, mut changes, mut keepalives) = state?;
            let change = tokio::select! {
                biased;
                () = ended.cancelled() => return Some((Err(Failure::gone()), None)),
                change = changes.next() => change,
                _ = keepalives.tick() => {
                    return Some((Ok(json!({"keepalive": {}})), Some((subject, changes, keepalives))));
                }
            };
            Some(match change {
                Some(Ok(Watched::Event(event))) => {
                    let event = json!({"filesystem": subject.event(event).await});
                    (Ok(event), Some((subject, changes, keepalives)))
                }
                Some(Ok(Watched::Lost)) => (Err(lost()), None),
                Some(Err(error)) => (Err(error.into()), None),
                None => (Err(over()), None),
            })
        }
    });
    let all = stream::iter([Ok(json!({"start": {}}))]).chain(steps);
    Ok(match limit {
        Some(limit) => {
            let end = stream::once(async move {
                tokio::time::sleep(limit).await;
                Err(follow::too_late())
            });
            stream::select(all, end).boxed()
        }
        None => all.boxed(),
    })
}

fn over() -> Failure {
    Failure::new(Code::Unavailable, "the agent no longer watches the directory")
}

/// Gathered from now on.
pub(crate) async fn create(sandbox: &Arc<Sandbox>, user: Option<String>, watch: Watch) -> Result<Value, Failure> {
    let (subject, changes) = Subject::open(sandbox, user, watch).await?;
    let events = Arc::new(Mutex::new(Gathered::default()));
    let id = uuid::Uuid::new_v4().to_string();
    let mut watchers = sandbox.shared.watchers.0.lock().unwrap_or_else(PoisonError::into_inner);
    if watchers.len() >= MAX_WATCHERS {
        let message = format!("the sandbox has {MAX_WATCHERS} watchers: remove one");
        return Err(Failure::new(Code::ResourceExhausted, message));
    }
    if sandbox.shared.ended.is_cancelled() {
        return Err(Failure::gone());
    }
    let task = tokio::spawn(gather(subject, changes, Arc::clone(&events))).abort_handle();
    watchers.insert(id.clone(), Gathering { events, task });
    Ok(json!({"watcherId": id}))
}

async fn gather(subject: Subject, mut changes: WatchedFiles, gathered: Arc<Mutex<Gathered>>) {
    loop {
        let change = changes.next().await;
        let event = match change {
            Some(Ok(Watched::Event(event))) => Ok(subject.event(event).await),
            Some(Ok(Watched::Lost)) => Err(lost()),
            Some(Err(error)) => Err(ended(error)),
            None => Err(over()),
        };
        let mut gathered = gathered.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Ok(event) => gathered.push(&event),
            Err(failure) => {
                gathered.is_over = failure.code != Code::DataLoss;
                gathered.failure = Some(failure);
            }
        }
        if gathered.is_over {
            return;
        }
    }
}

fn ended(error: ExecutorError) -> Failure {
    error.into()
}

fn no_watcher(id: &str) -> Failure {
    Failure::new(Code::NotFound, format!("there is no watcher {id:?}"))
}

pub(crate) fn events(sandbox: &Sandbox, watcher: &Watcher, held: &mut Held) -> Result<Value, Failure> {
    let watchers = sandbox.shared.watchers.0.lock().unwrap_or_else(PoisonError::into_inner);
    let id = &watcher.watcher_id;
    let gathered = &watchers.get(id).ok_or_else(|| no_watcher(id))?.events;
    let mut gathered = gathered.lock().unwrap_or_else(PoisonError::into_inner);
    if gathered.events.is_empty()
        && let Some(failure) = &gathered.failure
    {
        let failure = failure.clone();
        if !gathered.is_over {
            gathered.failure = None;
        }
        return Err(failure);
    }
    held.resize(gathered.bytes)?;
    gathered.bytes = 0;
    let events: Result<Vec<Value>, _> = gathered.events.drain(..).map(|event| event.parse()).collect();
    let events = events.map_err(|_| Failure::new(Code::Internal, "an event is no JSON"))?;
    Ok(json!({"events": events}))
}

pub(crate) fn remove(sandbox: &Sandbox, watcher: &Watcher) -> Result<Value, Failure> {
    let mut watchers = sandbox.shared.watchers.0.lock().unwrap_or_else(PoisonError::into_inner);
    watchers.remove(&watcher.watcher_id).map(|_| json!({})).ok_or_else(|| no_watcher(&watcher.watcher_id))
}
