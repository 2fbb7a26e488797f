//! Finds executions by their IDs, or the beginnings of them.

use std::time::Duration;

use telexec_executor::{Attach, ExecutionId, ExecutionInfo, Executor, ExecutorError, ListQuery};

use crate::connect::call_failure;
use crate::output::{Failure, command_text, exit, printable, state};
use crate::syntax::Destination;

/// How many are named where the beginning of an ID is that of several.
const MAX_CANDIDATES: usize = 10;

/// The execution with this ID, or else the only one whose ID begins so.
///
/// # Errors
/// There is none, or there are several.
pub(super) async fn find(
    executor: &dyn Executor,
    target: &Destination,
    id: &ExecutionId,
) -> Result<ExecutionInfo, Failure> {
    match executor.get(id).await {
        Ok(info) => Ok(info),
        Err(error @ ExecutorError::NotFound(_)) => find_by_prefix(executor, target, id, &error, |_| true).await,
        Err(error) => Err(call_failure(exit::of_error(&error), target, &error)),
    }
}

/// As [`find`]; with a queue, an execution with this whole ID that may still be in it is waited for.
///
/// # Errors
/// As [`find`], or it has not started in time.
pub(super) async fn find_started(
    executor: &dyn Executor,
    target: &Destination,
    id: &ExecutionId,
    queue: Option<Duration>,
) -> Result<ExecutionInfo, Failure> {
    match find(executor, target, id).await {
        Err(failure) if queue.is_some() && [exit::REFUSED, exit::LOST].contains(&failure.code) => {}
        found => return found,
    }
    let attached = executor.attach(id, Attach::start()).await;
    attached.map_err(|error| call_failure(exit::of_error(&error), target, &error))?;
    find(executor, target, id).await
}

/// The only execution whose ID begins so, and `may_be` the one, where `error` says that none has it.
///
/// # Errors
/// As [`find`].
pub(super) async fn find_by_prefix(
    executor: &dyn Executor,
    target: &Destination,
    prefix: &ExecutionId,
    error: &ExecutorError,
    may_be: impl Fn(&ExecutionId) -> bool,
) -> Result<ExecutionInfo, Failure> {
    let mut all = match list(executor, ListQuery { include_exited: true, ..ListQuery::default() }).await {
        Ok(all) => all,
        // who may not list them is told that there is none
        Err(ExecutorError::Denied { .. }) => Vec::new(),
        Err(error) => return Err(call_failure(exit::of_error(&error), target, &error)),
    };
    all.retain(|info| info.id.as_str().starts_with(prefix.as_str()) && may_be(&info.id));
    match <[ExecutionInfo; 1]>::try_from(all) {
        Ok([info]) => Ok(info),
        Err(none) if none.is_empty() => Err(call_failure(exit::of_error(error), target, error)),
        Err(several) => Err(ambiguous(target, prefix, &several)),
    }
}

fn ambiguous(target: &Destination, prefix: &ExecutionId, found: &[ExecutionInfo]) -> Failure {
    let count = found.len();
    let failure =
        Failure::message(exit::REFUSED, format!("{target}: {count} executions have IDs that begin with {prefix}:"));
    let lines = found.iter().take(MAX_CANDIDATES);
    let lines = lines.map(|info| format!("  {}  {}  {}", info.id, state(info), printable(&command_text(info))));
    let failure = lines.fold(failure, |failure, line| failure.hint(Some(line)));
    failure.hint((count > MAX_CANDIDATES).then(|| format!("  and {} more", count - MAX_CANDIDATES)))
}

/// All pages.
pub(crate) async fn list(executor: &dyn Executor, mut query: ListQuery) -> Result<Vec<ExecutionInfo>, ExecutorError> {
    let mut executions = Vec::new();
    loop {
        let page = executor.list(query.clone()).await?;
        executions.extend(page.executions);
        if page.next_page_token.is_empty() {
            return Ok(executions);
        }
        query.page_token = page.next_page_token;
    }
}
