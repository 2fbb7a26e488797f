//! Starts whose request or answer is lost, and agents that are replaced or out of reach.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use telexec_client::Resume;
use telexec_executor::{Attach, Command, ExecutionState, Executor, ExecutorError, ExitCause, OnDisconnect};
use telexec_tests::{Agent, MARK, marker, processes_with, run, until, until_output, within};

use super::{NEVER_GIVEN_UP, RESUME, SOON_GIVEN_UP, Scene, cause, causes, rest, start};

#[tokio::test(flavor = "multi_thread")]
async fn a_start_whose_answer_is_lost_is_found_again() {
    let scene = Scene::mtls().await;
    let executor = scene.executor(RESUME).await;
    run(&executor, Command::shell("true")).await.unwrap();
    scene.proxy.mute();
    let text = scene.noted("echo out");
    let lose = async {
        until("it runs", async || scene.runs() == 1).await;
        scene.proxy.cut();
    };
    let (outcome, ()) = tokio::join!(run(&executor, Command::shell(text)), lose);
    assert_eq!((outcome.unwrap().text(), scene.runs()), ("out\n", 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_lost_is_sent_again() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(RESUME).await;
    run(&executor, Command::shell("true")).await.unwrap();
    scene.proxy.freeze();
    let text = scene.noted("echo out");
    let lose = async {
        scene.proxy.down();
        let before = scene.proxy.accepted();
        until("it was tried", async || scene.proxy.accepted() > before + 2).await;
        scene.proxy.up();
    };
    let (outcome, ()) = tokio::join!(run(&executor, Command::shell(text)), lose);
    assert_eq!((outcome.unwrap().text(), scene.runs()), ("out\n", 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_whose_answer_is_lost_with_its_agent_is_not_repeated() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(RESUME).await;
    run(&executor, Command::shell("true")).await.unwrap();
    let another = Agent::builder().tcp().start();
    scene.proxy.mute();
    let text = scene.noted("echo out");
    let lose = async {
        until("it runs", async || scene.runs() == 1).await;
        scene.proxy.lead_to(&another);
        scene.proxy.cut();
    };
    let (outcome, ()) = tokio::join!(run(&executor, Command::shell(text)), lose);
    let error = outcome.unwrap_err();
    assert!(matches!(error, ExecutorError::Lost { .. }) && causes(&error).contains("restarted"), "{error:?}");
    // what comes next is for the agent that there is now
    run(&executor, Command::shell("true")).await.unwrap();
    assert_eq!(scene.runs(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_was_restarted_does_not_know_the_command() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(RESUME).await;
    let another = Agent::builder().tcp().start();
    let mut execution = start(&executor, "echo ready; sleep 300").await;
    until_output(&mut execution, "ready\n").await;
    scene.proxy.lead_to(&another);
    scene.proxy.cut();
    let error = rest(&mut execution).await.unwrap_err();
    assert!(matches!(error, ExecutorError::Lost { .. }), "{error:?}");
    let reported = causes(&error);
    let not_found = ExecutorError::NotFound(execution.id().clone()).to_string();
    assert!(reported.contains("no longer knows") && reported.contains(&not_found), "{reported}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_command_of_the_same_id_is_not_taken_for_it() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(RESUME).await;
    let another = Agent::builder().tcp().start();
    let command = Command::shell("echo ready; sleep 300").execution_id(marker().parse().unwrap());
    let mut execution = executor.execute(command.clone().build().unwrap()).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    let other = another.executor().await.execute(command.build().unwrap()).await.unwrap();
    scene.proxy.lead_to(&another);
    scene.proxy.cut();
    let error = rest(&mut execution).await.unwrap_err();
    assert!(causes(&error).contains("no longer knows"), "{error:?}");
    drop(other);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_out_of_reach_is_given_up_and_a_detached_command_goes_on() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(SOON_GIVEN_UP).await;
    let command = Command::shell("echo ready; sleep 300").on_disconnect(OnDisconnect::Detach).build().unwrap();
    let mut execution = executor.execute(command).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    scene.proxy.down();
    let error = rest(&mut execution).await.unwrap_err();
    assert!(matches!(error, ExecutorError::Lost { .. }) && causes(&error).contains("unreachable"), "{error:?}");
    let id = execution.id().clone();
    drop(execution);
    scene.proxy.up();
    run(&executor, Command::shell("true")).await.unwrap();
    let direct = scene.direct().await;
    assert_eq!(direct.get(&id).await.unwrap().state, ExecutionState::Running);
    // and can be followed again
    let mut again =
        executor.attach(&id, Attach { on_disconnect: OnDisconnect::Kill, ..Attach::start() }).await.unwrap();
    until_output(&mut again, "ready\n").await;
    scene.proxy.cut();
    drop(again);
    assert_eq!(cause(&direct, &id).await, ExitCause::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_was_given_up_is_ended_once_its_agent_is_back() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(Resume { give_up_after: Duration::from_secs(3), ..RESUME }).await;
    let mut execution = start(&executor, "echo ready; sleep 300").await;
    until_output(&mut execution, "ready\n").await;
    scene.proxy.down();
    let error = rest(&mut execution).await.unwrap_err();
    assert!(matches!(error, ExecutorError::Lost { .. }), "{error:?}");
    scene.proxy.up();
    assert_eq!(cause(&scene.direct().await, execution.id()).await, ExitCause::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_out_of_reach_runs_nothing() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(SOON_GIVEN_UP).await;
    scene.proxy.down();
    let error = run(&executor, Command::shell(scene.noted("true"))).await.unwrap_err();
    assert!(matches!(error, ExecutorError::Unreachable { .. } | ExecutorError::Lost { .. }), "{error:?}");
    scene.proxy.up();
    run(&executor, Command::shell("true")).await.unwrap();
    let error = run(&executor, Command::argv(["/no/such/program"])).await.unwrap_err();
    assert!(matches!(error, ExecutorError::Spawn(_)), "{error:?}");
    assert_eq!(scene.runs(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_it_while_it_starts_ends_it() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(RESUME).await;
    run(&executor, Command::shell("true")).await.unwrap();
    let mark = marker();
    let command = Command::shell(scene.noted("sleep 300")).env(MARK, &mark).build().unwrap();
    scene.proxy.mute();
    {
        let starts = executor.execute(command);
        tokio::select! {
            started = starts => panic!("{started:?}"),
            () = until("it runs", async || scene.runs() == 1) => {}
        }
    }
    scene.proxy.cut();
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

/// Polls a start so often, and drops it.
async fn begin(executor: &impl Executor, command: Command, polls: usize) {
    let mut starts = pin!(executor.execute(command));
    for _ in 0..polls {
        poll_fn(|context| {
            let _ = starts.as_mut().poll(context);
            Poll::Ready(())
        })
        .await;
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_it_before_it_is_sent_leaves_nothing_to_do() {
    let scene = Scene::unix().await;
    let executor = scene.executor(NEVER_GIVEN_UP).await;
    scene.proxy.freeze();
    // the agent is asked first when it was started
    begin(&executor, Command::shell(scene.noted("true")).build().unwrap(), 5).await;
    within(executor.settled()).await;
    assert_eq!(scene.runs(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_it_when_it_may_have_been_sent_is_settled_soon() {
    let scene = Scene::unix().await;
    let executor = scene.executor(Resume { max_delay: Duration::from_millis(100), ..NEVER_GIVEN_UP }).await;
    run(&executor, Command::shell("true")).await.unwrap();
    let mark = marker();
    for polls in 0..50 {
        begin(&executor, Command::shell("sleep 300").env(MARK, &mark).build().unwrap(), polls).await;
    }
    within(executor.settled()).await;
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

/// On its way it may be held up for longer than its connection lasts.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_was_dropped_and_arrives_late_is_ended() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(RESUME).await;
    run(&executor, Command::shell("true")).await.unwrap();
    let command = Command::shell("sleep 300").disconnect_grace(RESUME.give_up_after);
    let command = command.execution_id(marker().parse().unwrap()).build().unwrap();
    scene.proxy.freeze();
    begin(&executor, command.clone(), 5).await;
    let before = scene.proxy.accepted();
    scene.proxy.cut();
    until("it connects again", async || scene.proxy.accepted() > before).await;
    // longer than what was sent on a connection that lasts may take
    tokio::time::sleep(Duration::from_secs(3)).await;
    let direct = scene.direct().await;
    let late = direct.execute(command).await.unwrap();
    assert_eq!(cause(&direct, late.id()).await, ExitCause::Cancelled);
}
