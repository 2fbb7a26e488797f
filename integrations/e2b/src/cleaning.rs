//! What is done on a target before and after a sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use telexec_executor::{
    DirectoryQuery, ExecutionInfo, Executor, ExecutorError, FileErrorKind, FilePath, FileTarget, Files, ListQuery,
    Signal,
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

pub(crate) async fn signal_all(link: &Link, id: &str, signal: Signal) -> Result<(), Failure> {
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
    match homes {
        Homes::Fixed(home) => Ok(empty(link, home, user).await?),
        // by the agent's own user, since any user may have written there; its name is one that only a sandbox has
        Homes::Below(_) => Ok(remove(link, FileTarget::new(claim.home.as_str())).await?),
    }
}

/// Makes the home of a new sandbox.
pub(crate) async fn prepare(link: &Link, claim: &Claim, homes: &Homes, user: Option<&str>) -> Result<(), Failure> {
    link.files.make_directory(of_user(claim.home.as_bytes(), user), None, true).await?;
    match homes {
        Homes::Fixed(home) => empty(link, home, user).await,
        Homes::Below(_) => Ok(()),
    }
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
