//! Agents that are killed, whose keeper starts the next one.

use std::time::Duration;

use futures_util::future::join_all;
use telexec_executor::{Command, Executor, OnDisconnect};
use telexec_tests::{Gate, collect, rounds, run, until, until_output, within};

use super::{Audit, assert_whole};
use crate::keeper::crash_and_wait;

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_what_goes_on_is_there_once() {
    let (audit, gate) = (Audit::new(), Gate::new());
    let agent = audit.agent("").kept().start();
    let text = format!("echo ready; {}; exit 3", gate.wait());
    let detached = |text: &str| Command::shell(text).on_disconnect(OnDisconnect::Detach);
    let mut execution = within(agent.executor().await.execute(detached(&text).build().unwrap())).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    let ended = run(&agent.executor().await, detached("exit 4")).await.unwrap();
    audit.wait("end", 1).await;
    crash_and_wait(&agent).await;
    crash_and_wait(&agent).await;
    assert_eq!(audit.events("end").len(), 1);
    let _open = gate.open();
    let position = telexec_executor::Attach::start();
    let attached = within(agent.executor().await.attach(execution.id(), position)).await.unwrap();
    assert_eq!(collect(attached).await.unwrap().exited.exit_code(), 3);
    audit.wait("end", 2).await;
    crash_and_wait(&agent).await;
    run(&agent.executor().await, Command::argv(["true"])).await.unwrap();
    let (starts, ends) = (audit.events("start"), audit.wait("end", 3).await);
    for (id, code) in [(&ended.started.id, 4), (execution.id(), 3)] {
        let of = |events: &[serde_json::Value]| -> Vec<_> {
            events.iter().filter(|event| event["execution_id"] == id.as_str()).cloned().collect()
        };
        let ([start], [end]) = (&of(&starts)[..], &of(&ends)[..]) else { panic!("{starts:?} {ends:?}") };
        assert_eq!((&start["seq"], &end["exit_code"]), (&end["start"], &serde_json::json!(code)), "{end}");
        for field in ["identity", "transport", "peer", "peer_uid", "rpc"] {
            assert_eq!(start[field], end[field], "{field}");
        }
    }
    assert_eq!((starts.len(), ends.len()), (3, 3));
    assert_whole(&audit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whenever_agents_are_killed_the_log_is_valid_and_has_each_start() {
    let audit = Audit::new();
    let agent = audit.agent("").kept().start();
    let mut told = Vec::new();
    for _ in 0..rounds(10) {
        let executor = agent.executor().await;
        let calls = (0..24).map(|number| {
            let text = format!("sleep 0.0{}; exit 3", number % 5);
            let command = Command::shell(text).on_disconnect(OnDisconnect::Detach).build().unwrap();
            let executor = executor.clone();
            tokio::spawn(async move { executor.execute(command).await.map(|execution| execution.id().clone()) })
        });
        let calls: Vec<_> = calls.collect();
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..150))).await;
        crash_and_wait(&agent).await;
        let executor = agent.executor().await;
        for started in within(join_all(calls)).await {
            let Ok(id) = started.unwrap() else { continue };
            until("it has ended", async || executor.get(&id).await.unwrap().exited.is_some()).await;
            told.push(id);
        }
    }
    let starts = audit.events("start");
    for id in &told {
        assert_eq!(starts.iter().filter(|start| start["execution_id"] == id.as_str()).count(), 1);
    }
    let (_, said) = audit.verify().await;
    assert!(said.starts_with("valid: "), "{said}");
}
