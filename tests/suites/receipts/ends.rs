//! What is signed of ends, and when an agent comes and goes.

use std::time::Duration;

use telexec_executor::{Execution, ExecutorError, ExitCause, OnDisconnect, Signal, TerminalSize};
use telexec_receipt::{STDERR, STDOUT};
use telexec_tests::{Gate, exit_of, until, until_output, within};

use super::*;
use crate::keeper::{crash_and_wait, hand_over_and_wait};

#[tokio::test(flavor = "multi_thread")]
async fn each_end_is_signed_as_it_was() {
    let key = Key::new();
    let agent = key.agent().start();
    let executor = agent.executor().await;
    const LONG: Duration = Duration::from_secs(60);
    let timeout = Duration::from_millis(100);
    for (command, cause, signal) in [
        (Command::shell("kill -9 $$"), "signaled", Some("SIGKILL")),
        (Command::shell("sleep 600").timeout(timeout).kill_grace(LONG), "timed_out", Some("SIGTERM")),
        (Command::shell("sleep 600").timeout(timeout).kill_grace(Duration::ZERO), "timed_out", Some("SIGKILL")),
        (Command::shell("exit 255"), "exited", None),
    ] {
        let (outcome, statement) = key.statement(&executor, command).await;
        let end = &statement.predicate.end;
        assert_eq!((&*end.cause, end.exit_code, end.signal.as_deref()), (cause, outcome.exited.exit_code(), signal));
    }
    // what its caller does not see
    let command = Command::shell("echo ready; sleep 600").execution_id("gone".parse().unwrap()).receipt(true);
    let mut execution = within(executor.execute(command.build().unwrap())).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    drop(execution);
    let id = "gone".parse().unwrap();
    until("it has ended", async || executor.get(&id).await.unwrap().exited.is_some()).await;
    let exited = executor.get(&id).await.unwrap().exited.unwrap();
    assert_eq!(key.verify(&exited).predicate.end.cause, "cancelled");
    // what never began has no end
    let error = run(&executor, Command::argv(["/none"]).receipt(true)).await.unwrap_err();
    assert!(matches!(error, ExecutorError::Spawn(_)), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_digests_are_of_all_that_was_written() {
    let key = Key::new();
    let agent = key.agent().start();
    let executor = agent.executor().await;
    let (outcome, statement) = key.statement(&executor, Command::shell("seq 1 100000").max_output_bytes(10)).await;
    let all: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(outcome.stdout.len(), 10);
    assert_eq!(statement.sha256(STDOUT).unwrap(), sha256(&all));
    let end = &statement.predicate.end;
    assert_eq!((end.stdout.bytes, end.stdout.dropped_bytes), (all.len() as u64, all.len() as u64 - 10));
    assert_eq!(statement.sha256(STDERR).unwrap(), sha256(""));
    // on a terminal, and merged, all is standard output
    let both = || Command::shell("echo a; echo b >&2");
    let (outcome, statement) = key.statement(&executor, both().merge_output(true)).await;
    assert_eq!((outcome.text(), statement.sha256(STDOUT).unwrap()), ("a\nb\n", &*sha256("a\nb\n")));
    let (outcome, statement) = key.statement(&executor, both().terminal(TerminalSize::new(80, 24).unwrap())).await;
    assert_eq!((outcome.text(), statement.sha256(STDOUT).unwrap()), ("a\r\nb\r\n", &*sha256("a\r\nb\r\n")));
    assert!(statement.predicate.request.terminal && statement.sha256(STDERR).is_none());
    // what is left behind may write more
    let (outcome, statement) = key.statement(&executor, Command::shell("echo first; sleep 600 & :")).await;
    let end = &statement.predicate.end;
    assert_eq!((end.surviving_processes, end.stdout.incomplete), (1, true));
    assert_eq!(statement.sha256(STDOUT).unwrap(), sha256("first\n"));
    within(executor.signal(&outcome.started.id, Signal::KILL)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_remembered_with_the_execution() {
    let (key, state) = (Key::new(), tempfile::tempdir().unwrap());
    let start = || key.agent().args(["--state-dir", state.path().to_str().unwrap()]).start();
    let mut agent = start();
    let command = Command::shell("echo a").receipt(true).execution_id("kept".parse().unwrap());
    let exited = run(&agent.executor().await, command).await.unwrap().exited;
    assert!(exited.receipt.is_some());
    agent.terminate().await;
    let agent = start();
    let found = within(agent.executor().await.get(&"kept".parse().unwrap())).await.unwrap();
    assert_eq!(found.exited.unwrap(), exited);
}

/// Starts it in the background, and waits until it has written a first line.
async fn started(agent: &Agent, text: &str) -> Execution {
    let command = Command::shell(text).on_disconnect(OnDisconnect::Detach).receipt(true);
    let mut execution = within(agent.executor().await.execute(command.build().unwrap())).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    execution
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_of_the_agent_it_says_what_is_still_known() {
    let key = Key::new();
    let agent = key.agent().kept().start();
    let gate = Gate::new();
    let text = format!("echo ready; {}; exit 4", gate.wait());
    let execution = started(&agent, &text).await;
    let id = execution.id().clone();
    let ended =
        run(&agent.executor().await, Command::shell("true").on_disconnect(OnDisconnect::Detach).receipt(true)).await;
    let ended = ended.unwrap();
    crash_and_wait(&agent).await;
    hand_over_and_wait(&agent).await;
    let _open = gate.open();
    let executor = agent.executor().await;
    let attached = within(executor.attach(&id, telexec_executor::Attach::start())).await.unwrap();
    let exited = exit_of(attached).await;
    assert_eq!(exited.cause, ExitCause::Exited(4));
    let statement = key.verify(&exited);
    let receipt = &statement.predicate;
    assert!(receipt.agent_restarted);
    assert_eq!((receipt.end.exit_code, receipt.end.stdout.bytes, receipt.start.pid), (4, 6, execution.started().pid));
    assert_eq!((receipt.request.command.as_deref(), statement.sha256(STDOUT)), (Some(&*text), None));
    // one that had ended before is as it was
    let found = within(executor.get(&ended.started.id)).await.unwrap();
    assert_eq!(found.exited.unwrap(), ended.exited);
    assert!(!key.verify(&ended.exited).predicate.agent_restarted);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_the_key_gives_none_for_what_another_has_started() {
    let key = Key::new();
    let agent = key.agent().kept().start();
    let gate = Gate::new();
    let execution = started(&agent, &format!("echo ready; {}", gate.wait())).await;
    std::fs::write(agent.directory().join("telexecd.toml"), "").unwrap();
    crash_and_wait(&agent).await;
    let _open = gate.open();
    let executor = agent.executor().await;
    let attached = within(executor.attach(execution.id(), telexec_executor::Attach::start())).await.unwrap();
    assert_eq!(exit_of(attached).await.receipt, None);
    assert!(agent.log().contains("it gets no receipt"), "{}", agent.log());
}
