//! What ends or leaves a command holds across connections: a drop, a deadline, the background.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use telexec_executor::{Command, Event, ExecutionState, Executor, ExecutorError, ExitCause};
use telexec_tests::{MARK, lines, marker, processes_with, run, until, until_output, within};

use super::{RESUME, Scene, cause, rest, start};

#[tokio::test(flavor = "multi_thread")]
async fn dropping_it_gives_the_grace_whether_or_not_there_is_a_connection() {
    let scene = Scene::mtls().await;
    let executor = scene.executor(RESUME).await;
    let direct = scene.direct().await;
    for name in ["connected", "cut", "down"] {
        let mark = marker();
        let file = scene.file(name);
        let text =
            format!("trap 'echo asked > {}; exit 0' TERM; echo ready; while :; do sleep 0.01; done", file.display());
        let command = Command::shell(text).env(MARK, &mark).build().unwrap();
        let mut execution = executor.execute(command).await.unwrap();
        until_output(&mut execution, "ready\n").await;
        let id = execution.id().clone();
        match name {
            "cut" => scene.proxy.cut(),
            "down" => scene.proxy.down(),
            _ => {}
        }
        let before = scene.proxy.accepted();
        drop(execution);
        if name == "down" {
            until("it was tried", async || scene.proxy.accepted() > before + 1).await;
            scene.proxy.up();
        }
        assert_eq!(cause(&direct, &id).await, ExitCause::Cancelled, "{name}");
        assert_eq!(lines(&file), ["asked"], "{name}");
        until("nothing is left", async || processes_with(&mark).is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn once_all_is_settled_no_connection_is_needed_to_end_what_was_dropped() {
    let scene = Scene::mtls().await;
    let executor = scene.executor(RESUME).await;
    let mut dropped = Vec::new();
    for _ in 0..10 {
        let mut execution = start(&executor, "echo ready; sleep 300").await;
        until_output(&mut execution, "ready\n").await;
        dropped.push(execution.id().clone());
    }
    within(executor.settled()).await;
    scene.proxy.down();
    let direct = scene.direct().await;
    for id in dropped {
        assert_eq!(cause(&direct, &id).await, ExitCause::Cancelled);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_holds_across_connections() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(RESUME).await;
    let direct = scene.direct().await;
    for is_back in [true, false] {
        let deadline = Instant::now() + Duration::from_secs(4);
        let command = Command::shell("echo ready; sleep 300").deadline(deadline).build().unwrap();
        let mut execution = executor.execute(command).await.unwrap();
        until_output(&mut execution, "ready\n").await;
        let end = if is_back {
            scene.proxy.cut();
            rest(&mut execution).await.map(|events| events.last().cloned())
        } else {
            scene.proxy.down();
            rest(&mut execution).await.map(|_| None)
        };
        match end {
            Ok(Some(Event::Exited(exited))) if is_back => assert_eq!(exited.cause, ExitCause::DeadlineExceeded),
            Err(ExecutorError::DeadlineExceeded) if !is_back => assert!(Instant::now() >= deadline),
            end => panic!("{end:?}"),
        }
        assert_eq!(cause(&direct, execution.id()).await, ExitCause::DeadlineExceeded);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_goes_to_the_background_across_connections() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(RESUME).await;
    let direct = scene.direct().await;
    let text = format!("echo ready; {}; echo done", scene.wait());
    for is_back in [true, false] {
        let command = Command::shell(&text).yield_after(Duration::from_secs(2)).build().unwrap();
        let mut execution = executor.execute(command).await.unwrap();
        until_output(&mut execution, "ready\n").await;
        scene.proxy.cut();
        if !is_back {
            scene.proxy.down();
            // its time comes meanwhile
            tokio::time::timeout(Duration::from_secs(2), execution.next()).await.unwrap_err();
            scene.proxy.up();
        }
        let events = rest(&mut execution).await.unwrap();
        assert!(matches!(events[..], [Event::Promoted]), "{events:?}");
        let id = execution.id().clone();
        drop(execution);
        run(&executor, Command::shell("true")).await.unwrap();
        assert_eq!(direct.get(&id).await.unwrap().state, ExecutionState::Running);
    }
    scene.go_on();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_ends_while_no_caller_is_connected_is_reported_as_ended() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(RESUME).await;
    let text = format!("echo ready; {}; echo done", scene.wait());
    let command = Command::shell(&text).yield_after(Duration::from_secs(2)).build().unwrap();
    let mut execution = executor.execute(command).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    scene.proxy.down();
    scene.go_on();
    // the time to go to the background would come meanwhile
    tokio::time::timeout(Duration::from_secs(2), execution.next()).await.unwrap_err();
    scene.proxy.up();
    let events = rest(&mut execution).await.unwrap();
    assert!(matches!(events[..], [Event::Output(_), Event::Exited(_)]), "{events:?}");
}
