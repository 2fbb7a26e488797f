//! Executions of one id on one machine: ids are the callers', and two agents know nothing of each other.

use telexec_executor::{Command, ExecutionId, Executor};
use telexec_tests::{Agent, MARK, marker, processes_with, until, until_output};

/// Two agents, each with an execution of the same id; the one that is older is cancelled.
async fn cancelling_one_leaves_the_other(containment: &str) {
    let agent = || Agent::builder().config(format!("containment = {containment:?}")).try_start();
    let (Ok(first), Ok(second)) = (agent(), agent()) else {
        eprintln!("skipped: no {containment} here");
        return;
    };
    let (first, second) = (first.executor().await, second.executor().await);
    let (id, mark): (ExecutionId, _) = ("the-same".parse().unwrap(), marker());
    let text = "trap 'echo alive' USR1; echo ready; while :; do sleep 0.02; done";
    let command = |mark: &str| Command::shell(text).execution_id(id.clone()).env(MARK, mark).build().unwrap();
    let mut cancelled = first.execute(command(&mark)).await.unwrap();
    until_output(&mut cancelled, "ready\n").await;
    let mut other = second.execute(command("")).await.unwrap();
    until_output(&mut other, "ready\n").await;
    drop(cancelled);
    until("nothing is left of it", async || processes_with(&mark).is_empty()).await;
    // its end is reported after the last look for its processes
    until("it has ended", async || first.get(&id).await.unwrap().exited.is_some()).await;
    second.signal(&id, "USR1".parse().unwrap()).await.unwrap();
    until_output(&mut other, "alive\n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_one_leaves_the_other_with_cgroup_v2() {
    cancelling_one_leaves_the_other("cgroup-v2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_one_leaves_the_other_with_cgroup_v1() {
    cancelling_one_leaves_the_other("cgroup-v1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_one_leaves_the_other_with_process_group() {
    cancelling_one_leaves_the_other("process-group").await;
}
