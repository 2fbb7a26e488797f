//! `telexec wait`: waits until executions have ended.

use futures_util::{StreamExt, TryStreamExt, stream};
use telexec_client::Agent;
use telexec_executor::{Attach, Event, ExecutionInfo, Executor, ExecutorError, Exited};

use super::find::find;
use crate::args::WaitArgs;
use crate::connect::{Link, call_failure, with_agent};
use crate::follow::{AttachHint, FollowEnd};
use crate::output::{Failure, end, exit, print_message};

/// How many are followed at once.
const CONCURRENT: usize = 64;

pub(crate) async fn run(args: WaitArgs) -> Result<u8, Failure> {
    let ended = with_agent(&args.agent.target, &args.connect, async |agent| wait(&args, agent).await).await?;
    if let [(info, exited)] = &ended[..] {
        let again = AttachHint { target: &args.agent.target, id: &info.id, interactive: false, connect: &args.connect };
        // its output is not asked for
        let ending = FollowEnd::Exited { exited: exited.clone(), incomplete: false };
        return Ok(ending.report(&args.agent.target, &again));
    }
    let code = |exited: &Exited| exit::of_exit(exited);
    for (info, exited) in ended.iter().filter(|(_, exited)| code(exited) != 0) {
        print_message(&format!("{}: {}: {}", args.agent.target, info.id, end(exited)));
    }
    Ok(ended.iter().map(|(_, exited)| code(exited)).max().unwrap_or_default())
}

/// How each of them ended, in their order.
async fn wait(args: &WaitArgs, agent: &Agent) -> Result<Vec<(ExecutionInfo, Exited)>, Failure> {
    let Link { executor, .. } = args.reconnect.link(agent, &args.agent.target);
    let mut executions = Vec::new();
    for id in &args.executions.ids {
        executions.push(find(&*executor, &args.agent.target, id).await?);
    }
    let waiting = executions.into_iter().map(async |info| {
        let exited = exited(&*executor, &info).await;
        let exited = exited.map_err(|error| call_failure(exit::of_lost(&error), &args.agent.target, &error))?;
        Ok((info, exited))
    });
    stream::iter(waiting).buffered(CONCURRENT).try_collect().await
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
