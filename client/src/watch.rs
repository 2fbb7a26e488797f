//! Following the changes of files of a remote machine.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use telexec_executor::{ExecutorError, FileChange, FileEvent, FilePath, FileTarget, Watched, WatchedFiles};
use telexec_proto::v1::{self, FileEventType, WatchFilesRequest, WatchFilesResponse, watch_files_response::Step};
use tonic::Streaming;

use crate::error;
use crate::files::{target, unexpected};

pub(crate) fn watch_request(file: FileTarget, recursive: bool) -> WatchFilesRequest {
    let (path, path_bytes, user) = target(file);
    WatchFilesRequest { path, user, recursive, path_bytes }
}

/// What the answers of an agent have, as soon as nothing is missed any more.
pub(crate) async fn watched(
    mut answers: Streaming<WatchFilesResponse>,
    endpoint: Arc<str>,
) -> Result<WatchedFiles, ExecutorError> {
    let Step::Established(_) = next(&mut answers, &endpoint).await? else { return Err(unexpected()) };
    let begun = (answers, VecDeque::new());
    let watched = stream::try_unfold(begun, move |(mut answers, mut queue)| {
        let endpoint = Arc::clone(&endpoint);
        async move {
            loop {
                if let Some(next) = queue.pop_front() {
                    return Ok(Some((next, (answers, queue))));
                }
                match next(&mut answers, &endpoint).await? {
                    Step::Events(events) => {
                        let events = events.events.into_iter().map(event);
                        queue = events.collect::<Result<VecDeque<_>, _>>()?;
                    }
                    Step::Lost(_) => queue.push_back(Watched::Lost),
                    Step::Established(_) => return Err(unexpected()),
                }
            }
        }
    });
    Ok(watched.boxed())
}

async fn next(answers: &mut Streaming<WatchFilesResponse>, endpoint: &Arc<str>) -> Result<Step, ExecutorError> {
    let answer = answers.message().await.map_err(|status| error::following(status, endpoint))?;
    // it has no end but an error
    let answer = answer.ok_or_else(|| error::lost(endpoint, "the answer ended early"))?;
    answer.step.ok_or_else(unexpected)
}

fn event(event: v1::FileEvent) -> Result<Watched, ExecutorError> {
    let change = match event.r#type() {
        FileEventType::Created => FileChange::Created,
        FileEventType::Written => FileChange::Written,
        FileEventType::Removed => FileChange::Removed,
        FileEventType::Renamed => FileChange::Renamed,
        FileEventType::AttributesChanged => FileChange::AttributesChanged,
        FileEventType::Unspecified => return Err(unexpected()),
    };
    let path = match event.path_bytes.is_empty() {
        true => FilePath::new(event.path),
        false => FilePath::new(event.path_bytes),
    };
    Ok(Watched::Event(FileEvent { change, path }))
}
