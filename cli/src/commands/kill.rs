//! `telexec kill`: sends a signal to executions.

use telexec_client::RemoteExecutor;
use telexec_executor::{ExecutionId, Executor, ExecutorError};

use super::find::find_by_prefix;
use crate::args::KillArgs;
use crate::connect::{Session, call_failure};
use crate::output::{Failure, exit, print_message};

pub(crate) async fn run(args: KillArgs) -> Result<u8, Failure> {
    let session = Session::open(&args.agent.target, &args.connect).await?;
    let executor = session.agent.executor();
    let mut code = 0;
    for id in &args.executions.ids {
        match kill(&args, &executor, id).await {
            // those that are known get the signal all the same
            Err(failure) if failure.code == exit::REFUSED => {
                failure.print();
                code = exit::REFUSED;
            }
            done => done?,
        }
    }
    session.close().await.map(|()| code)
}

async fn kill(args: &KillArgs, executor: &RemoteExecutor, id: &ExecutionId) -> Result<(), Failure> {
    let failed = |error: ExecutorError| call_failure(exit::of_error(&error), &args.agent.target, &error);
    match executor.signal(id, args.signal).await {
        Err(error @ ExecutorError::NotFound(_)) => {
            let found = find_by_prefix(executor, &args.agent.target, id, &error, |_| true).await?;
            executor.signal(&found.id, args.signal).await.map_err(failed)?;
            // what is ended is not exactly what was named
            print_message(&format!("{}: {} sent to {}", args.agent.target, args.signal, found.id));
            Ok(())
        }
        sent => sent.map(|_| ()).map_err(failed),
    }
}
