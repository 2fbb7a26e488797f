//! Who finds them again, and who does not.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use telexec_executor::{
    Command, DuplicatePolicy, ExecutionId, ExecutionState, Executor, ExecutorError, ExitCause, ListQuery, OnDisconnect,
};
use telexec_tests::{
    Agent, Certs, Gate, Leaf, MARK, directory, lines, marker, processes_with, rounds, run, until, until_output, within,
};

use super::super::{crash, crash_and_wait};
use super::{detached, end, rest, started};

fn is_not_found<T: std::fmt::Debug>(asked: Result<T, ExecutorError>) {
    assert!(matches!(asked, Err(ExecutorError::NotFound { .. })), "{asked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_their_owners() {
    let certs = Certs::new();
    // a port that stays
    let agent = Agent::builder().kept().passed(&["tcp:127.0.0.1"]).mtls(&certs).start();
    let other = certs.ca.issue(Leaf::client("other"));
    let gate = Gate::new();
    let execution = started(&agent, detached(&format!("echo ready; {}; exit 3", gate.wait()))).await;
    let ended = run(&agent.executor().await, detached("exit 4")).await.unwrap();
    crash_and_wait(&agent).await;
    let stranger = agent.connect_as(&other).await.executor();
    for id in [execution.id(), &ended.started.id] {
        is_not_found(within(stranger.get(id)).await);
        is_not_found(within(stranger.signal(id, telexec_executor::Signal::KILL)).await);
    }
    let all = ListQuery { include_exited: true, ..ListQuery::default() };
    assert_eq!(within(stranger.list(all.clone())).await.unwrap().executions, []);
    assert_eq!(within(agent.executor().await.list(all)).await.unwrap().executions.len(), 2);
    let _open = gate.open();
    assert_eq!(end(&agent, execution.id()).await.cause, ExitCause::Exited(3));
    assert_eq!(end(&agent, &ended.started.id).await, ended.exited);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_finds_it_and_starts_nothing() {
    let (agent, directory, gate) = (Agent::builder().kept().start(), directory(), Gate::new());
    let (runs, id) = (directory.path().join("runs"), marker().parse::<ExecutionId>().unwrap());
    let text = format!("echo ran >> {}; echo ready; {}; echo end; exit 3", runs.display(), gate.wait());
    let command = || detached(&text).execution_id(id.clone());
    let first = started(&agent, command()).await;
    crash_and_wait(&agent).await;
    let executor = agent.executor().await;
    let other = run(&executor, detached("true").execution_id(id.clone())).await;
    assert!(matches!(other, Err(ExecutorError::AlreadyExists { .. })), "{other:?}");
    let reused = run(&executor, detached(&text).duplicate_policy(DuplicatePolicy::ReuseRunning)).await;
    match reused {
        Err(ExecutorError::AlreadyRunning(info)) => assert_eq!((&info.id, info.pid), (&id, first.started().pid)),
        other => panic!("{other:?}"),
    }
    let mut again = within(executor.execute(command().build().unwrap())).await.unwrap();
    assert_eq!(again.started(), first.started());
    until_output(&mut again, "ready\n").await;
    let _open = gate.open();
    let outcome = run(&executor, command()).await.unwrap();
    assert_eq!((outcome.text(), outcome.exited.cause), ("ready\nend\n", ExitCause::Exited(3)));
    // also once it has ended
    crash_and_wait(&agent).await;
    let repeated = run(&agent.executor().await, command()).await.unwrap();
    assert_eq!(
        (repeated.text(), &repeated.exited, &repeated.started),
        ("ready\nend\n", &outcome.exited, &outcome.started)
    );
    assert_eq!(lines(&runs).len(), 1);
}

/// The end of an agent that was asked to end is the end of all.
#[tokio::test(flavor = "multi_thread")]
async fn after_an_orderly_end_nothing_goes_on() {
    let (state, mark) = (tempfile::tempdir().unwrap(), marker());
    let agent = || {
        let agent = Agent::builder().kept().args(["--state-dir", state.path().to_str().unwrap()]);
        agent.config("shutdown_grace = \"0s\"\nkill_grace = \"200ms\"").start()
    };
    let mut first = agent();
    let execution = started(&first, detached("echo ready; sleep 300").env(MARK, &mark)).await;
    crash_and_wait(&first).await;
    assert!(first.terminate().await.success(), "{}", first.log());
    assert_eq!(processes_with(&mark), []);
    // as without a crash before
    let second = agent();
    let (stdout, _, exited) = rest(&second.executor().await, execution.id(), 0).await;
    assert_eq!((&*stdout, exited.cause), ("ready\n", ExitCause::Shutdown));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_keeper_nobody() {
    let (state, mark) = (tempfile::tempdir().unwrap(), marker());
    let agent = || Agent::builder().args(["--state-dir", state.path().to_str().unwrap()]).start();
    let mut first = agent();
    let execution = started(&first, detached("echo ready; sleep 300").env(MARK, &mark)).await;
    first.kill();
    let second = agent();
    is_not_found(within(second.executor().await.get(execution.id())).await);
    // it may outlive its call, and so what has started it
    let [left] = &processes_with(&mark)[..] else { panic!("{}", second.log()) };
    crash(left.pid);
    until("it is gone", async || processes_with(&mark).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_of_many() {
    let (agent, gate) = (Agent::builder().kept().start(), Gate::new());
    let mut running = Vec::new();
    for number in 0..40 {
        let command = detached(&format!("echo ready; {}; exit {number}", gate.wait()));
        running.push(started(&agent, command.labels([("number".to_owned(), number.to_string())])).await);
    }
    let bound = started(&agent, Command::shell("echo ready; sleep 300").on_disconnect(OnDisconnect::Kill)).await;
    crash_and_wait(&agent).await;
    let executor = agent.executor().await;
    is_not_found(within(executor.get(bound.id())).await);
    let _open = gate.open();
    for (number, execution) in running.iter().enumerate() {
        let info = within(executor.get(execution.id())).await.unwrap();
        assert_eq!((info.labels["number"].parse(), info.pid), (Ok(number), execution.started().pid));
        let exited = end(&agent, execution.id()).await;
        assert_eq!(exited.cause, ExitCause::Exited(u8::try_from(number).unwrap()));
        let info = within(executor.get(execution.id())).await.unwrap();
        assert_eq!((info.state, info.exited), (ExecutionState::Exited, Some(exited)));
    }
}

/// What a caller was told of is found; and what is found is whole.
#[tokio::test(flavor = "multi_thread")]
async fn of_starts_on_their_way_each_is_found_or_nothing_is_left() {
    let agent = Agent::builder().kept().start();
    for round in 0..rounds(10) {
        let (mark, gate) = (marker(), Gate::new());
        let texts = [format!("echo out; {}; exit 3", gate.wait()), "echo out; exit 3".to_owned()];
        let executor = agent.executor().await;
        let starts = texts.iter().cycle().take(24).map(|text| {
            let (id, executor) = (marker().parse::<ExecutionId>().unwrap(), executor.clone());
            let command = detached(text).execution_id(id.clone()).env(MARK, &mark).build().unwrap();
            tokio::spawn(async move { (id, executor.execute(command).await.is_ok()) })
        });
        let starts: Vec<_> = starts.collect();
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..50))).await;
        crash_and_wait(&agent).await;
        let starts = within(join_all(starts)).await;
        let executor = agent.executor().await;
        let (mut found, mut running) = (Vec::new(), BTreeSet::new());
        for start in starts {
            let (id, was_told) = start.unwrap();
            match within(executor.get(&id)).await {
                Ok(info) => {
                    running.extend(info.exited.is_none().then_some(info.pid));
                    found.push(id);
                }
                other => {
                    is_not_found(other);
                    assert!(!was_told, "round {round}: {id}, {}", agent.log());
                }
            }
        }
        let is_running = |pid: i32| running.contains(&u32::try_from(pid).unwrap());
        let is_found = async || processes_with(&mark).iter().all(|process| is_running(process.pid));
        until(&format!("round {round}: nothing else is left"), is_found).await;
        let _open = gate.open();
        for id in found {
            let (stdout, stderr, exited) = rest(&executor, &id, 0).await;
            assert_eq!((&*stdout, &*stderr, exited.cause), ("out\n", "", ExitCause::Exited(3)), "round {round}");
        }
    }
}
