//! Executions that outlive their connection.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::json;
use telexec_client::{Resume, Resuming};
use telexec_executor::{
    Attach, Command, Event, Execution, ExecutionId, ExecutionState, Executor, ExecutorError, ExitCause, OnDisconnect,
};
use telexec_tests::{
    Agent, Certs, MARK, Outcome, Proxy, collect, directory, lines, marker, processes_with, rounds, run, until,
    until_told, within,
};
use telexec_tool::{BashTool, Tool, ToolContext};
use tempfile::TempDir;

const RESUME: Resume = Resume {
    patience: Duration::from_secs(30),
    first_pause: Duration::from_millis(1),
    max_pause: Duration::from_millis(20),
};
/// For agents that do not come back.
const IMPATIENT: Resume = Resume { patience: Duration::from_millis(300), ..RESUME };

/// An agent, a network before it, and what commands leave behind.
struct Scene {
    agent: Agent,
    proxy: Proxy,
    directory: TempDir,
    _certs: Option<Certs>,
}

impl Scene {
    async fn of(agent: Agent, certs: Option<Certs>) -> Self {
        let proxy = Proxy::before(&agent).await;
        Self { agent, proxy, directory: directory(), _certs: certs }
    }

    async fn tcp() -> Self {
        Self::of(Agent::builder().tcp().start(), None).await
    }

    async fn mtls() -> Self {
        let certs = Certs::new();
        Self::of(Agent::builder().mtls(&certs).start(), Some(certs)).await
    }

    async fn unix() -> Self {
        Self::of(Agent::start(), None).await
    }

    async fn executor(&self, resume: Resume) -> Resuming {
        self.agent.connect_through(&self.proxy).await.executor().resuming(resume)
    }

    /// Past the proxy.
    async fn direct(&self) -> impl Executor {
        self.agent.executor().await
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Shell text that notes that it runs.
    fn noted(&self, text: &str) -> String {
        format!("echo ran >> {}; {text}", self.file("runs").display())
    }

    fn runs(&self) -> usize {
        lines(&self.file("runs")).len()
    }

    /// Shell text that waits until [`go_on`](Self::go_on).
    fn wait(&self) -> String {
        format!("until [ -e {} ]; do sleep 0.01; done", self.file("go").display())
    }

    fn go_on(&self) {
        std::fs::write(self.file("go"), "").unwrap();
    }
}

async fn start(executor: &impl Executor, text: &str) -> Execution {
    within(executor.execute(Command::shell(text).build().unwrap())).await.unwrap()
}

/// The rest, after what was read already.
async fn rest(execution: &mut Execution) -> Result<Vec<Event>, ExecutorError> {
    within(execution.collect::<Vec<_>>()).await.into_iter().collect()
}

async fn cause(executor: &impl Executor, id: &ExecutionId) -> ExitCause {
    let mut cause = None;
    until("it has ended", async || {
        cause = executor.get(id).await.unwrap().exited.map(|exited| exited.cause);
        cause.is_some()
    })
    .await;
    cause.unwrap()
}

/// The error and why.
fn causes(error: &ExecutorError) -> String {
    let first: &dyn std::error::Error = error;
    let chain = std::iter::successors(Some(first), |error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

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
    until_told(&mut execution, "0\n").await;
    for number in 1..=20 {
        scene.proxy.cut();
        if number % 2 == 0 {
            // it is found again before there is anything to tell
            let before = scene.proxy.accepted();
            let again = until("it is back", async || scene.proxy.accepted() > before);
            tokio::select! {
                event = execution.next() => panic!("{event:?}"),
                () = again => {}
            }
        }
        std::fs::write(&input, format!("{number}\n")).unwrap();
        until_told(&mut execution, &format!("{number}\n")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_is_told_after_a_cut_before_it() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(RESUME).await;
    let mut execution = start(&executor, &format!("echo last; {}; exit 3", scene.wait())).await;
    until_told(&mut execution, "last\n").await;
    scene.proxy.down();
    scene.go_on();
    assert_eq!(cause(&scene.direct().await, execution.id()).await, ExitCause::Exited(3));
    scene.proxy.up();
    let events = rest(&mut execution).await.unwrap();
    assert!(matches!(&events[..], [Event::Exited(exited)] if exited.exit_code() == 3), "{events:?}");
}

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
    until_told(&mut execution, "ready\n").await;
    scene.proxy.lead_to(&another);
    scene.proxy.cut();
    let error = rest(&mut execution).await.unwrap_err();
    assert!(matches!(error, ExecutorError::Lost { .. }), "{error:?}");
    let told = causes(&error);
    let not_found = ExecutorError::NotFound(execution.id().clone()).to_string();
    assert!(told.contains("no longer knows") && told.contains(&not_found), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_command_of_the_same_id_is_not_taken_for_it() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(RESUME).await;
    let another = Agent::builder().tcp().start();
    let command = Command::shell("echo ready; sleep 300").execution_id(marker().parse().unwrap());
    let mut execution = executor.execute(command.clone().build().unwrap()).await.unwrap();
    until_told(&mut execution, "ready\n").await;
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
    let executor = scene.executor(IMPATIENT).await;
    let command = Command::shell("echo ready; sleep 300").on_disconnect(OnDisconnect::Detach).build().unwrap();
    let mut execution = executor.execute(command).await.unwrap();
    until_told(&mut execution, "ready\n").await;
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
    let mut again = executor.attach(&id, Attach { position: 0, on_disconnect: OnDisconnect::Kill }).await.unwrap();
    until_told(&mut again, "ready\n").await;
    scene.proxy.cut();
    drop(again);
    assert_eq!(cause(&direct, &id).await, ExitCause::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_was_given_up_is_ended_once_its_agent_is_back() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(Resume { patience: Duration::from_secs(3), ..RESUME }).await;
    let mut execution = start(&executor, "echo ready; sleep 300").await;
    until_told(&mut execution, "ready\n").await;
    scene.proxy.down();
    let error = rest(&mut execution).await.unwrap_err();
    assert!(matches!(error, ExecutorError::Lost { .. }), "{error:?}");
    scene.proxy.up();
    assert_eq!(cause(&scene.direct().await, execution.id()).await, ExitCause::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_out_of_reach_runs_nothing() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(IMPATIENT).await;
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
        until_told(&mut execution, "ready\n").await;
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
        until_told(&mut execution, "ready\n").await;
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

#[tokio::test(flavor = "multi_thread")]
async fn without_it_a_cut_ends_the_command() {
    let scene = Scene::tcp().await;
    let executor = scene.agent.connect_through(&scene.proxy).await.executor();
    let mut execution = start(&executor, "echo ready; sleep 300").await;
    until_told(&mut execution, "ready\n").await;
    scene.proxy.cut();
    let error = rest(&mut execution).await.unwrap_err();
    assert!(matches!(error, ExecutorError::Lost { .. }), "{error:?}");
    assert_eq!(cause(&scene.direct().await, execution.id()).await, ExitCause::Cancelled);
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
        until_told(&mut execution, "ready\n").await;
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
        until_told(&mut execution, "ready\n").await;
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
async fn one_that_ends_while_nobody_can_be_told_is_told_as_ended() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(RESUME).await;
    let text = format!("echo ready; {}; echo done", scene.wait());
    let command = Command::shell(&text).yield_after(Duration::from_secs(2)).build().unwrap();
    let mut execution = executor.execute(command).await.unwrap();
    until_told(&mut execution, "ready\n").await;
    scene.proxy.down();
    scene.go_on();
    // the time to go to the background would come meanwhile
    tokio::time::timeout(Duration::from_secs(2), execution.next()).await.unwrap_err();
    scene.proxy.up();
    let events = rest(&mut execution).await.unwrap();
    assert!(matches!(events[..], [Event::Output(_), Event::Exited(_)]), "{events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_that_the_agent_no_longer_has_is_a_gap() {
    let agent = Agent::builder().tcp().config("spool_max_bytes = 100000").start();
    let scene = Scene::of(agent, None).await;
    let executor = scene.executor(RESUME).await;
    let text = format!("echo ready; {}; head -c 3000000 /dev/zero; echo last", scene.wait());
    let mut execution = start(&executor, &text).await;
    until_told(&mut execution, "ready\n").await;
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
    let tool = BashTool::new(Arc::clone(&executor)).max_output_bytes(2 << 20);
    run(&executor, Command::shell("true")).await.unwrap();
    scene.proxy.cut_each_after(1..150_000, 1);
    scene.proxy.cut();
    let text = scene.noted("cd /usr; seq 200000; seq 10 >&2; exit 3");
    let result = within(tool.execute(json!({ "command": text }), ToolContext::default())).await.unwrap();
    let local =
        BashTool::new(telexec_engine::LocalExecutor::new(Default::default()).unwrap()).max_output_bytes(2 << 20);
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
    until_told(&mut lost, "ready\n").await;
    until_told(&mut kept, "ready\n").await;
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
