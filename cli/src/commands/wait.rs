//! `telexec wait`: waits until executions have ended.

use futures_util::{StreamExt, stream};
use telexec_client::Agent;
use telexec_executor::{Attach, Event, ExecutionInfo, Executor, ExecutorError, Exited};

use super::find::find_started;
use crate::args::WaitArgs;
use crate::connect::{Link, call_failure, with_agent};
use crate::output::{Failure, end, exit, print_message};

/// How many are followed at once.
const CONCURRENT: usize = 64;

pub(crate) async fn run(mut args: WaitArgs) -> Result<u8, Failure> {
    args.connect.queue = args.queue.queue;
    let target = &args.agent.target;
    let (ended, mut most) = with_agent(target, &args.connect, async |agent| wait(&args, agent).await).await?;
    if let ([_], [(_, Ok(exited))]) = (&args.executions.ids[..], &ended[..]) {
        if let Some(explanation) = exit::explanation(exited) {
            print_message(&format!("{target}: {explanation}"));
        }
        return Ok(exit::of_exit(exited));
    }
    for (info, exited) in ended {
        let code = match exited {
            Ok(exited) if exit::of_exit(&exited) == 0 => 0,
            Ok(exited) => {
                print_message(&format!("{target}: {}: {}", info.id, end(&exited)));
                exit::of_exit(&exited)
            }
            Err(error) => {
                let failure = call_failure(exit::of_lost(&error), target, &error);
                failure.print();
                failure.code
            }
        };
        most = most.max(code);
    }
    Ok(most)
}

/// An execution, and how it ended; an error is of it alone.
type Ended = (ExecutionInfo, Result<Exited, ExecutorError>);

/// How each of them ended, in their order, and the exit code for those that are not known.
async fn wait(args: &WaitArgs, agent: &Agent) -> Result<(Vec<Ended>, u8), Failure> {
    let Link { executor, .. } = args.reconnect.link(agent, &args.agent.target);
    let (mut executions, mut code) = (Vec::new(), 0);
    for id in &args.executions.ids {
        match find_started(&*executor, &args.agent.target, id, args.connect.queue).await {
            // those that are known are waited for all the same
            Err(failure) if failure.code == exit::REFUSED => {
                failure.print();
                code = exit::REFUSED;
            }
            found => executions.push(found?),
        }
    }
    let waiting = executions.into_iter().map(async |info| {
        let exited = exited(&*executor, &info).await;
        (info, exited)
    });
    Ok((stream::iter(waiting).buffered(CONCURRENT).collect().await, code))
}

async fn exited(executor: &dyn Executor, info: &ExecutionInfo) -> Result<Exited, ExecutorError> {
    if let Some(exited) = &info.exited {
        return Ok(exited.clone());
    }
    // its output is not wanted
    let mut execution = executor.attach(&info.id, Attach::position(info.position)).await?;
    while let Some(event) = execution.next().await {
        if let Event::Exited(exited) = event? {
            return Ok(exited);
        }
    }
    Err(ExecutorError::Internal("the agent did not report how the command ended".to_owned()))
}
