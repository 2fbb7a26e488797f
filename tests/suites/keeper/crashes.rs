//! Agents that are killed, at any moment.

use std::time::Duration;

use futures_util::future::join_all;
use telexec_executor::{Command, CommandBuilder, Executor, OnDisconnect};
use telexec_tests::{Agent, Holdings, MARK, marker, processes_with, rounds, run, settled, until, until_output, within};

use super::{another_serves, children_but_starters, crash, serving};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_bound_to_an_agent_ends_with_it_and_the_next_one_serves() {
    for containment in ["cgroup-v2", "cgroup-v1", "process-group"] {
        let config = format!("containment = \"{containment}\"\nkill_grace = \"200ms\"");
        let Ok(agent) = Agent::builder().kept().config(config).try_start() else { continue };
        let (bound, detached) = (marker(), marker());
        let executor = agent.executor().await;
        let texts = ["sleep 300", "setsid sleep 300 & sleep 300", "trap '' TERM; while :; do sleep 300; done"];
        let mut running = Vec::new();
        for text in texts {
            let command = Command::shell(format!("echo runs; {text}")).env(MARK, &bound).build().unwrap();
            let mut execution = within(executor.execute(command)).await.unwrap();
            until_output(&mut execution, "runs").await;
            running.push(execution);
        }
        let command = Command::argv(["sleep", "300"]).env(MARK, &detached).on_disconnect(OnDisconnect::Detach);
        drop(within(executor.execute(command.build().unwrap())).await.unwrap());
        crash(serving(&agent).unwrap());
        another_serves(&agent, 1).await;
        until("what was bound is gone", async || processes_with(&bound).is_empty()).await;
        // what may outlive its call is not ended by a fault of the agent
        let [left] = &processes_with(&detached)[..] else { panic!("{:?}", agent.log()) };
        assert_eq!(run(&agent.executor().await, Command::argv(["echo", "again"])).await.unwrap().text(), "again\n");
        crash(left.pid);
        until("it is reaped", async || children_but_starters(&agent).len() == 1).await;
    }
}

/// Starts that are on their way, commands that just end, and those that run on.
fn any_command(n: u64, mark: &str) -> CommandBuilder {
    let command = match n % 4 {
        0 => Command::argv(["true"]),
        1 => Command::shell("sleep 0.05; exit 3"),
        2 => Command::shell("yes | head -c 300000; setsid sleep 300 & sleep 300"),
        _ => Command::argv(["/no/such/program"]),
    };
    command.env(MARK, mark)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_agents_that_are_killed_at_any_moment_nothing_is_left() {
    let agent = Agent::builder().kept().start();
    let look = || {
        let held = Holdings::of(agent.pid());
        (held.descriptors, held.children)
    };
    let before = settled(look);
    for round in 0..rounds(20) {
        let (mark, random) = (marker(), fastrand::u64(0..30));
        let executor = agent.executor().await;
        let calls = (0..24).map(|n| {
            let command = any_command(n, &mark).build().unwrap();
            let executor = executor.clone();
            tokio::spawn(async move { executor.execute(command).await.map(drop) })
        });
        let calls: Vec<_> = calls.collect();
        tokio::time::sleep(Duration::from_millis(random)).await;
        let serves = agent.log().matches("listening on").count();
        crash(serving(&agent).unwrap());
        another_serves(&agent, serves).await;
        drop(join_all(calls).await);
        until("nothing is left", async || processes_with(&mark).is_empty()).await;
        let is_as_before = async || look() == before;
        until(&format!("round {round}: as at the beginning, {before:?}"), is_as_before).await;
    }
    assert_eq!(run(&agent.executor().await, Command::argv(["echo", "hi"])).await.unwrap().text(), "hi\n");
}
