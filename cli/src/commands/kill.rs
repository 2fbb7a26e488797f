//! `telexec kill`: sends a signal to executions.

use telexec_executor::{Executor, ExecutorError};

use crate::args::KillArgs;
use crate::connect::{Session, call_failure};
use crate::output::{Failure, exit};

/// At least one execution is unknown.
const FAILED: u8 = 1;

pub(crate) async fn run(args: KillArgs) -> Result<u8, Failure> {
    let session = Session::open(&args.target, &args.connect).await?;
    let executor = session.agent.executor();
    let mut code = 0;
    for id in &args.ids {
        match executor.signal(id, args.signal).await {
            Ok(_) => {}
            Err(error @ ExecutorError::NotFound(_)) => {
                call_failure(FAILED, &args.target, &error).print();
                code = FAILED;
            }
            Err(error) => return Err(call_failure(exit::LOST, &args.target, &error)),
        }
    }
    session.close().await.map(|()| code)
}
