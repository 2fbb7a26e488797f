//! `WatchFiles`: what is asked for, and what changes.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use telexec_executor::{ExecutorError, FilePath, InvalidCommand};
use telexec_files::message::{Events, Outcome, Task, WatchTask};
use telexec_files::watch::message::{Change, Event};
use telexec_proto::convert::{error_to_status, path_from_wire, path_to_wire};
use telexec_proto::v1::{
    FileEvent, FileEventType, FileEvents, FileEventsLost, WatchEstablished, WatchFilesRequest, WatchFilesResponse,
    watch_files_response,
};
use tonic::Status;

use super::session::{Session, Step, unexpected};
use super::wire::{Ask, Asked};
use crate::admission::Stack;
use crate::call::Call;
use crate::call::events::Responses;
use crate::policy::FileAction;

/// Of the paths of directories in which something has changed, and about which it was decided.
const MAX_DECISION_BYTES: usize = 1024 * 1024;
/// What one takes beside its path, about.
const DECISION_BYTES: usize = 64;

impl Ask for WatchFilesRequest {
    fn ask(self) -> Result<Asked, InvalidCommand> {
        let path = path_from_wire("path", self.path, &self.path_bytes)?;
        // the session knows whether it asks
        let task = WatchTask { path: path.as_bytes().to_vec(), recursive: self.recursive, asks_each: false };
        Ok(Asked::new(self.user, Task::Watch(task), FileAction::Watch, vec![path]))
    }
}

/// Watches. What cannot be watched is the error of the call, not of its stream.
///
/// # Errors
/// That is denied, or cannot be.
pub(super) async fn watch(
    stack: &Stack,
    call: &Call,
    asked: Asked,
) -> Result<Responses<WatchFilesResponse>, ExecutorError> {
    let Asked { user, job } = asked;
    let mut session = Session::start(stack, call, user.as_deref(), job).await?;
    let Step::Outcome(Outcome::Watching(_)) = session.next().await? else { return Err(unexpected()) };
    let established = response(watch_files_response::Step::Established(WatchEstablished {}));
    let changes = stream::try_unfold(session, |mut session| async move {
        match session.next().await.map_err(failed)? {
            Step::Outcome(Outcome::Events(events)) => Ok(Some((stream::iter(responses(events).map(Ok)), session))),
            _ => Err(failed(unexpected())),
        }
    });
    Ok(stream::iter([Ok(established)]).chain(futures_util::TryStreamExt::try_flatten(changes)).boxed())
}

fn failed(error: ExecutorError) -> Status {
    error_to_status(&error)
}

fn response(step: watch_files_response::Step) -> WatchFilesResponse {
    WatchFilesResponse { step: Some(step) }
}

fn responses(events: Events) -> impl Iterator<Item = WatchFilesResponse> {
    let Events { events, lost } = events;
    let events: Vec<_> = events.into_iter().map(event).collect();
    let events = (!events.is_empty()).then_some(watch_files_response::Step::Events(FileEvents { events }));
    let lost = lost.then_some(watch_files_response::Step::Lost(FileEventsLost {}));
    events.into_iter().chain(lost).map(response)
}

fn event(event: Event) -> FileEvent {
    let kind = match event.change() {
        Change::Created => FileEventType::Created,
        Change::Written => FileEventType::Written,
        Change::Removed => FileEventType::Removed,
        Change::Renamed => FileEventType::Renamed,
        Change::Attributes => FileEventType::AttributesChanged,
    };
    let (path, path_bytes) = path_to_wire(FilePath::new(event.path));
    FileEvent { r#type: kind.into(), path, path_bytes }
}

/// What was decided of directories, by the policy that there was then.
#[derive(Default)]
pub(super) struct Decisions {
    policy: Option<Arc<str>>,
    permitted: HashMap<Vec<u8>, bool>,
    bytes: usize,
}

impl Decisions {
    /// What is known of this directory under this policy.
    pub(super) fn of(&mut self, policy: Option<Arc<str>>, directory: &[u8]) -> Option<bool> {
        if self.policy != policy {
            *self = Self { policy, ..Self::default() };
        }
        self.permitted.get(directory).copied()
    }

    pub(super) fn add(&mut self, directory: Vec<u8>, is_permitted: bool) {
        self.bytes += directory.len() + DECISION_BYTES;
        if self.bytes > MAX_DECISION_BYTES {
            self.permitted.clear();
            self.bytes = directory.len() + DECISION_BYTES;
        }
        self.permitted.insert(directory, is_permitted);
    }
}
