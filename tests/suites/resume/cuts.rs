//! Output and ends through connections that are cut, muted or silent.

use std::sync::Arc;

use futures_util::StreamExt;
use serde_json::json;
use telexec_executor::{Command, Event, Execution, Executor, ExecutorError, ExitCause, OnDisconnect};
use telexec_tests::{Agent, MARK, Outcome, collect, marker, processes_with, rounds, run, until, until_output, within};
use telexec_tool::{BashTool, Tool, ToolContext};

use super::{RESUME, Scene, cause, causes, rest, start};

/// A few hundred KB on each stream, in pieces.
const LONG: &str = "for i in $(seq 60); do seq ${i}000 ${i}799; seq ${i}000 ${i}899 >&2; done; exit 7";

fn is_long(outcome: &Outcome) {
    let numbers = |last| (1..=60).flat_map(move |i| (0..=last).map(move |n| format!("{i}{n:03}\n")));
    assert!(outcome.stdout == numbers(799).collect::<String>().into_bytes(), "standard output");
    assert!(outcome.stderr == numbers(899).collect::<String>().into_bytes(), "standard error");
    assert_eq!(outcome.exited.cause, ExitCause::Exited(7));
}

/// The connection is cut after any number of bytes, again and again.
async fn survives_cuts(scene: Scene, bytes: std::ops::Range<usize>) {
    let executor = scene.executor(RESUME).await;
    run(&executor, Command::shell("true")).await.unwrap();
    for round in 1..=rounds(5) {
        let before = scene.proxy.accepted();
        scene.proxy.cut_each_after(bytes.clone(), round.into());
        scene.proxy.cut();
        let outcome = run(&executor, Command::shell(scene.noted(LONG))).await;
        is_long(&outcome.unwrap_or_else(|error| panic!("round {round}: {}", causes(&error))));
        assert_eq!(scene.runs(), round as usize);
        assert!(scene.proxy.accepted() > before + 3, "there were cuts");
    }
}

/// That the agent has not restarted is known without a permission. It is only asked whether a command has ended: the answer is
/// not needed.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_may_not_ask_about_executions_survives_cuts() {
    let policy = r#"
@environment("*")
permit(principal, action in [Action::"Execute", Action::"Attach"], resource);
"#;
    let scene = Scene::of(Agent::builder().policy(policy).start(), None).await;
    {
        let direct = scene.direct().await;
        let id = start(&direct, "true").await.id().clone();
        assert!(matches!(direct.get(&id).await, Err(ExecutorError::Denied { .. })));
    }
    survives_cuts(scene, 1..100_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_exact_through_cuts_of_a_tcp_connection() {
    survives_cuts(Scene::tcp().await, 1..80_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_exact_through_cuts_of_a_tls_connection() {
    survives_cuts(Scene::mtls().await, 1..80_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_exact_through_cuts_of_a_unix_connection() {
    survives_cuts(Scene::unix().await, 1..80_000).await;
}

/// Whatever the command and the connection are just doing.
#[tokio::test(flavor = "multi_thread")]
async fn output_is_exact_through_cuts_at_any_moment() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(RESUME).await;
    for round in 1..=rounds(5) {
        let mut random = fastrand::Rng::with_seed(round.into());
        let mut cut = |event: &Event| {
            if matches!(event, Event::Output(_)) && random.u8(..8) == 0 {
                scene.proxy.cut();
            }
        };
        let execution = start(&executor, &scene.noted(LONG)).await;
        let started = execution.started().clone();
        let cutting = execution.inspect(move |event| event.iter().for_each(&mut cut)).skip(1);
        let events = within(cutting.collect::<Vec<_>>()).await;
        is_long(&collect(Execution::new(started, futures_util::stream::iter(events))).await.unwrap());
        assert_eq!(scene.runs(), round as usize);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_command_survives_any_number_of_cuts() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(RESUME).await;
    let input = scene.file("input");
    let text = format!("mkfifo {0}; exec 3<>{0}; echo 0; while read line <&3; do echo $line; done", input.display());
    let mut execution = start(&executor, &text).await;
    until_output(&mut execution, "0\n").await;
    for number in 1..=20 {
        scene.proxy.cut();
        if number % 2 == 0 {
            // it is found again before there is anything to report
            let before = scene.proxy.accepted();
            let again = until("it is back", async || scene.proxy.accepted() > before);
            tokio::select! {
                event = execution.next() => panic!("{event:?}"),
                () = again => {}
            }
        }
        std::fs::write(&input, format!("{number}\n")).unwrap();
        until_output(&mut execution, &format!("{number}\n")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_is_reported_after_a_cut_before_it() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(RESUME).await;
    let mut execution = start(&executor, &format!("echo last; {}; exit 3", scene.wait())).await;
    until_output(&mut execution, "last\n").await;
    scene.proxy.down();
    scene.go_on();
    assert_eq!(cause(&scene.direct().await, execution.id()).await, ExitCause::Exited(3));
    scene.proxy.up();
    let events = rest(&mut execution).await.unwrap();
    assert!(matches!(&events[..], [Event::Exited(exited)] if exited.exit_code() == 3), "{events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_that_the_agent_no_longer_has_is_a_gap() {
    let agent = Agent::builder().tcp().config("spool_max_bytes = 100000").start();
    let scene = Scene::of(agent, None).await;
    let executor = scene.executor(RESUME).await;
    let text = format!("echo ready; {}; head -c 3000000 /dev/zero; echo last", scene.wait());
    // one that is bound to its caller would wait to be read
    let command = Command::shell(text).on_disconnect(OnDisconnect::Detach).build().unwrap();
    let mut execution = executor.execute(command).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    scene.proxy.down();
    scene.go_on();
    cause(&scene.direct().await, execution.id()).await;
    scene.proxy.up();
    let (mut position, mut gaps) = (6, 0);
    for event in rest(&mut execution).await.unwrap() {
        match event {
            Event::Output(output) => {
                assert_eq!(output.position, position);
                position += output.data.len() as u64;
            }
            Event::Gap(end) => {
                assert!(end > position);
                (position, gaps) = (end, gaps + 1);
            }
            Event::Exited(exited) => assert_eq!(exited.stdout.bytes, position),
            event => panic!("{event:?}"),
        }
    }
    assert_eq!((gaps, position), (1, 3_000_011));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_tool_survives_cuts() {
    let scene = Scene::mtls().await;
    let executor = Arc::new(scene.executor(RESUME).await);
    let tool = BashTool::new(Arc::clone(&executor)).max_output_characters(2 << 20);
    run(&executor, Command::shell("true")).await.unwrap();
    scene.proxy.cut_each_after(1..150_000, 1);
    scene.proxy.cut();
    let text = scene.noted("cd /usr; seq 200000; seq 10 >&2; exit 3");
    let result = within(tool.execute(json!({ "command": text }), ToolContext::default())).await.unwrap();
    let local =
        BashTool::new(telexec_engine::LocalExecutor::new(Default::default()).unwrap()).max_output_characters(2 << 20);
    let plain = within(local.execute(json!({ "command": text }), ToolContext::default())).await.unwrap();
    assert_eq!(result, plain);
    assert_eq!(tool.working_directory().as_deref(), Some("/usr"));
    assert_eq!(scene.runs(), 2, "one of them here");
    assert!(scene.proxy.accepted() > 4, "there were cuts");
}

/// Nothing arrives, and nothing is closed: only a side that asks finds out.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_falls_silent_is_noticed_by_both_sides() {
    let scene = Scene::mtls().await;
    let mark = marker();
    let plain = scene.agent.connect_through(&scene.proxy).await.executor();
    let resuming = scene.executor(RESUME).await;
    let command = |text: &str| Command::shell(text).env(MARK, &mark).build().unwrap();
    let mut lost = plain.execute(command("echo ready; sleep 300")).await.unwrap();
    let mut kept = resuming.execute(command(&format!("echo ready; {}; echo done", scene.wait()))).await.unwrap();
    until_output(&mut lost, "ready\n").await;
    until_output(&mut kept, "ready\n").await;
    scene.proxy.freeze();
    scene.go_on();
    let noticed = async {
        let error = rest(&mut lost).await.unwrap_err();
        assert!(matches!(error, ExecutorError::Lost { .. }), "{error:?}");
        until("nothing is left", async || processes_with(&mark).is_empty()).await;
    };
    let ((), events) = tokio::join!(noticed, rest(&mut kept));
    assert_eq!(cause(&scene.direct().await, lost.id()).await, ExitCause::Cancelled);
    let events = events.unwrap();
    assert!(matches!(&events[..], [Event::Output(_), Event::Exited(exited)] if exited.exit_code() == 0), "{events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_it_a_cut_ends_the_command() {
    let scene = Scene::tcp().await;
    let executor = scene.agent.connect_through(&scene.proxy).await.executor();
    let mut execution = start(&executor, "echo ready; sleep 300").await;
    until_output(&mut execution, "ready\n").await;
    scene.proxy.cut();
    let error = rest(&mut execution).await.unwrap_err();
    assert!(matches!(error, ExecutorError::Lost { .. }), "{error:?}");
    assert_eq!(cause(&scene.direct().await, execution.id()).await, ExitCause::Cancelled);
}
