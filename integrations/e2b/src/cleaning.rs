//! What is done on a target before and after a sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use telexec_executor::{
    Command, DirectoryQuery, ExecutionInfo, Executor, ExecutorError, FileErrorKind, FilePath, FileTarget, Files,
    ListQuery, Signal,
};
use tokio::time::{Instant, sleep};

use crate::claim::Claim;
use crate::failure::{Code, Failure};
use crate::home::Homes;
use crate::sandbox::{Link, SANDBOX_LABEL};
use crate::target::TargetError;

/// For processes to be gone after SIGKILL.
const END_TIMEOUT: Duration = Duration::from_secs(30);
const END_PAUSE: Duration = Duration::from_millis(50);
const STOP: &str = "SIGSTOP";
/// For the permissions of all that is in a home.
const OPEN_TIMEOUT: Duration = Duration::from_secs(120);
/// Of the directory that a home is in, too: programs of its user may have closed that.
const OPEN: &str = "chmod u+rwX -- \"$1\"; chmod -R u+rwX -- \"$2\"";

/// All executions of a sandbox that still have processes.
pub(crate) async fn executions(link: &Link, id: &str) -> Result<Vec<ExecutionInfo>, ExecutorError> {
    let labels = BTreeMap::from([(SANDBOX_LABEL.to_owned(), id.to_owned())]);
    let mut query = ListQuery { labels, page_size: 1000, ..ListQuery::default() };
    let mut found = Vec::new();
    loop {
        let page = link.executor.list(query.clone()).await?;
        found.extend(page.executions);
        if page.next_page_token.is_empty() {
            return Ok(found);
        }
        query.page_token = page.next_page_token;
    }
}

pub(crate) async fn stop_all(link: &Link, id: &str) -> Result<(), Failure> {
    let stop = STOP.parse().map_err(ExecutorError::from)?;
    signal_all(link, id, stop).await
}

pub(crate) async fn continue_all(link: &Link, id: &str) -> Result<(), Failure> {
    signal_all(link, id, Signal::CONT).await
}

async fn signal_all(link: &Link, id: &str, signal: Signal) -> Result<(), Failure> {
    for execution in executions(link, id).await? {
        match link.executor.signal(&execution.id, signal).await {
            Ok(_) | Err(ExecutorError::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Ends what runs, and removes what was written to the home.
pub(crate) async fn clean(link: &Link, claim: &Claim, homes: &Homes, user: Option<&str>) -> Result<(), TargetError> {
    homes.check(claim)?;
    let end = Instant::now() + END_TIMEOUT;
    while !executions(link, &claim.id).await.map_err(Failure::from)?.is_empty() {
        if Instant::now() > end {
            let message = format!("processes of {} have not ended within {} s", claim.id, END_TIMEOUT.as_secs());
            return Err(Failure::new(Code::DeadlineExceeded, message).into());
        }
        signal_all(link, &claim.id, Signal::KILL).await?;
        sleep(END_PAUSE).await;
    }
    let clear = || async {
        match homes {
            Homes::Fixed(home) => empty(link, home, user).await,
            // by the agent's own user, since any user may have written there; its name is one that only a sandbox has
            Homes::Below(_) => remove(link, FileTarget::new(claim.home.as_str())).await,
        }
    };
    Ok(opened(link, claim, user, clear).await?)
}

/// Makes the home of a new sandbox.
pub(crate) async fn prepare(link: &Link, claim: &Claim, homes: &Homes, user: Option<&str>) -> Result<(), Failure> {
    let make = || async {
        link.files.make_directory(of_user(claim.home.as_bytes(), user), None, true).await?;
        match homes {
            Homes::Fixed(home) => empty(link, home, user).await,
            Homes::Below(_) => Ok(()),
        }
    };
    opened(link, claim, user, make).await
}

/// Does it, and if permissions are in the way once more without them: directories that are not to be changed, such as those of
/// Go's module cache, are no reason to lose a target.
async fn opened<F: Future<Output = Result<(), Failure>>>(
    link: &Link,
    claim: &Claim,
    user: Option<&str>,
    change: impl Fn() -> F,
) -> Result<(), Failure> {
    match change().await {
        Err(failure) if failure.code == Code::PermissionDenied => {}
        done => return done,
    }
    open(link, claim, user).await?;
    change().await
}

/// By the sandbox's user, who could have done it too. Ended with all else of the sandbox, if this gateway ends meanwhile.
async fn open(link: &Link, claim: &Claim, user: Option<&str>) -> Result<(), Failure> {
    let parent = claim.home.rsplit_once('/').map_or("/", |(parent, _)| parent);
    let mut command = Command::argv(["/bin/sh", "-c", OPEN, "sh", parent, claim.home.as_str()])
        .timeout(OPEN_TIMEOUT)
        .working_directory("/")
        .labels([(SANDBOX_LABEL.to_owned(), claim.id.clone())]);
    if let Some(user) = user {
        command = command.user(user);
    }
    let mut execution = link.executor.execute(command.build().map_err(ExecutorError::from)?).await?;
    // what it could not change shows when it is tried again
    while let Some(event) = execution.next().await {
        event?;
    }
    Ok(())
}

fn of_user(path: &[u8], user: Option<&str>) -> FileTarget {
    FileTarget { path: FilePath::new(path), user: user.map(str::to_owned) }
}

async fn remove(link: &Link, file: FileTarget) -> Result<(), Failure> {
    match link.files.remove(file, true).await {
        Ok(()) => Ok(()),
        Err(ExecutorError::File(error)) if error.kind() == FileErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// By the sandbox's user: where it has put a link in the way, nothing goes that it could not have removed itself.
async fn empty(link: &Link, directory: &str, user: Option<&str>) -> Result<(), Failure> {
    loop {
        let page = match link.files.list(of_user(directory.as_bytes(), user), DirectoryQuery::default()).await {
            Ok(page) => page,
            Err(ExecutorError::File(error)) if error.kind() == FileErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if page.entries.is_empty() {
            return Ok(());
        }
        for entry in page.entries {
            let path = [directory.as_bytes(), b"/", entry.path.as_bytes()].concat();
            remove(link, of_user(&path, user)).await?;
        }
    }
}
