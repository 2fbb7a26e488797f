//! How long an agent waits for a caller that has lost its connection, and what that caller gets when it is back.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use prost::Message;
use telexec_executor::{Attach, Command, Event, Execution, Executor, ExecutorError, ExitCause, OnDisconnect};
use telexec_proto::v1::{AttachRequest, DisconnectPolicy, ExecuteRequest};
use telexec_tests::raw::{END_HEADERS, END_STREAM, Raw, call, frame, header, kind, message};
use telexec_tests::{Agent, MARK, Wire, marker, processes_with, rounds, run, until, until_output, within};

use super::{RESUME, Scene, cause, causes, rest, start};

const LONG: Duration = Duration::from_secs(300);
const SHORT: Duration = Duration::from_secs(2);

fn again(position: u64, disconnect_grace: Duration) -> Attach {
    Attach { position, on_disconnect: OnDisconnect::Kill, disconnect_grace }
}

impl Scene {
    /// Over a connection of its own.
    async fn plain(&self) -> telexec_client::RemoteExecutor {
        self.agent.connect_through(&self.proxy).await.executor()
    }
}

async fn started(executor: &impl Executor, text: &str, grace: Duration) -> (Execution, String) {
    let mark = marker();
    let command = Command::shell(text).env(MARK, &mark).disconnect_grace(grace).build().unwrap();
    let mut execution = within(executor.execute(command)).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    (execution, mark)
}

/// From a position on: how much there was of it, with no hole, and how it ended.
async fn read_on(mut execution: Execution, mut position: u64) -> (u64, i32) {
    let begin = position;
    while let Some(event) = within(execution.next()).await {
        match event.unwrap_or_else(|error| panic!("{}", causes(&error))) {
            Event::Started(_) => {}
            Event::Output(output) => {
                assert_eq!(output.position, position);
                position += output.data.len() as u64;
            }
            Event::Exited(exited) => {
                assert_eq!((exited.stdout.bytes, exited.stdout.dropped_bytes), (position, 0));
                return (position - begin, exited.exit_code());
            }
            event => panic!("{event:?}"),
        }
    }
    panic!("no exit");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_back_in_time_finds_it_running() {
    let scene = Scene::mtls().await;
    let (mut first, mark) = started(&scene.plain().await, "echo ready; read -t 300 < <(sleep 300)", LONG).await;
    for _ in 0..3 {
        scene.proxy.cut();
        assert!(matches!(rest(&mut first).await.unwrap_err(), ExecutorError::Lost { .. }));
        let attached = scene.plain().await.attach(first.id(), again(0, LONG)).await;
        first = attached.unwrap();
        until_output(&mut first, "ready\n").await;
        assert!(!processes_with(&mark).is_empty());
    }
    drop(first);
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_come_back_leaves_nothing() {
    for scene in [Scene::tcp().await, Scene::mtls().await, Scene::unix().await] {
        let (lost, mark) = started(&scene.plain().await, "echo ready; sleep 300", SHORT).await;
        let begin = Instant::now();
        scene.proxy.cut();
        until("nothing is left", async || processes_with(&mark).is_empty()).await;
        assert!(begin.elapsed() >= SHORT, "it was waited for");
        assert_eq!(cause(&scene.direct().await, lost.id()).await, ExitCause::Cancelled);
    }
}

/// However long it would wait for a connection that is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_it_at_once() {
    for scene in [Scene::tcp().await, Scene::mtls().await, Scene::unix().await] {
        let executor = scene.plain().await;
        for _ in 0..rounds(5) {
            let (first, mark) = started(&executor, "echo ready; sleep 300", LONG).await;
            let second = executor.attach(first.id(), again(0, LONG)).await.unwrap();
            drop(second);
            until("nothing is left", async || processes_with(&mark).is_empty()).await;
            drop(first);
            let (first, mark) = started(&executor, "echo ready; sleep 300", LONG).await;
            drop(first);
            until("nothing is left", async || processes_with(&mark).is_empty()).await;
        }
    }
}

/// The agent does not know yet that the first connection is lost, and waits for nobody there.
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_back_takes_the_place_of_a_connection_that_has_fallen_silent() {
    let scene = Scene::mtls().await;
    let text = format!("echo ready; {}; head -c 30000000 /dev/zero; exit 4", scene.wait());
    let (first, _) = started(&scene.plain().await, &text, LONG).await;
    scene.proxy.freeze();
    scene.go_on();
    let attached = scene.plain().await.attach(first.id(), again(6, LONG)).await.unwrap();
    assert_eq!(read_on(attached, 6).await, (30_000_000, 4));
}

/// Whoever follows it with the same requests: no output is lost to a caller that only reads slowly.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_takes_the_place_of_a_connection_that_is_live() {
    let scene = Scene::mtls().await;
    let text = format!("echo ready; {}; head -c 60000000 /dev/zero; exit 4", scene.wait());
    let (first, _) = started(&scene.plain().await, &text, LONG).await;
    let direct = scene.direct().await;
    let mut second = direct.attach(first.id(), again(6, LONG)).await.unwrap();
    scene.go_on();
    let mut position = 0;
    while position < 4_000_000 {
        match within(second.next()).await.unwrap().unwrap() {
            Event::Output(output) => position = output.position,
            event => assert!(matches!(event, Event::Started(_)), "{event:?}"),
        }
    }
    let second = tokio::spawn(async move { rest(&mut second).await });
    // enough for all of the output, if the command did not wait for the first
    for _ in 0..50 {
        run(&direct, Command::shell("true")).await.unwrap();
    }
    assert_eq!(read_on(first, 6).await, (60_000_000, 4));
    assert!(matches!(within(second).await.unwrap().unwrap().last(), Some(Event::Exited(_))));
}

/// Who reads beside it has its place when it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn who_came_before_a_connection_was_lost_takes_its_place_then() {
    let scene = Scene::mtls().await;
    let text = format!("echo ready; {}; head -c 30000000 /dev/zero; exit 4", scene.wait());
    let (mut first, _) = started(&scene.plain().await, &text, LONG).await;
    let second = scene.direct().await.attach(first.id(), again(6, LONG)).await.unwrap();
    scene.proxy.cut();
    rest(&mut first).await.unwrap_err();
    scene.go_on();
    assert_eq!(read_on(second, 6).await, (30_000_000, 4));
}

/// Nobody reads, as if the reader was slow.
#[tokio::test(flavor = "multi_thread")]
async fn until_then_the_command_waits_to_be_read() {
    let scene = Scene::tcp().await;
    let text = format!("echo ready; {}; head -c 30000000 /dev/zero; exit 4", scene.wait());
    let (mut first, mark) = started(&scene.plain().await, &text, LONG).await;
    scene.proxy.cut();
    rest(&mut first).await.unwrap_err();
    scene.go_on();
    let direct = scene.direct().await;
    let mut position = 0;
    // what it writes beyond that would be dropped, and is not
    until("nearly as much waits as may", async || {
        position = direct.get(first.id()).await.unwrap().position;
        position > 400_000
    })
    .await;
    assert!(position < 6_000_000 && !processes_with(&mark).is_empty(), "{position}");
    let attached = scene.plain().await.attach(first.id(), again(6, LONG)).await.unwrap();
    assert_eq!(read_on(attached, 6).await, (30_000_000, 4));
}

/// What waited for a reader is let go with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_waits_to_be_read_ends_with_the_grace() {
    let scene = Scene::tcp().await;
    let text = "echo ready; head -c 30000000 /dev/zero; sleep 300";
    let (mut lost, mark) = started(&scene.plain().await, text, SHORT).await;
    scene.proxy.cut();
    rest(&mut lost).await.unwrap_err();
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
    assert_eq!(cause(&scene.direct().await, lost.id()).await, ExitCause::Cancelled);
}

/// More than is kept of any output, and nothing of it on disk.
#[tokio::test(flavor = "multi_thread")]
async fn output_of_any_length_is_exact_through_cuts() {
    let agent = Agent::builder().tcp().config("spool_max_bytes = 0").start();
    let scene = Scene::of(agent, None).await;
    let executor = scene.executor(RESUME).await;
    for round in 1..=rounds(3) {
        let before = scene.proxy.accepted();
        scene.proxy.cut_each_after(1..20_000_000, round.into());
        scene.proxy.cut();
        let mut execution = start(&executor, "seq 10000000; exit 5").await;
        let (mut position, mut digest) = (0, 0u64);
        while let Some(event) = within(execution.next()).await {
            match event.unwrap_or_else(|error| panic!("round {round}: {}", causes(&error))) {
                Event::Started(_) => {}
                Event::Output(output) => {
                    assert_eq!(output.position, position);
                    position += output.data.len() as u64;
                    digest = output.data.iter().fold(digest, |sum, byte| sum.rotate_left(5) ^ u64::from(*byte));
                }
                Event::Exited(exited) => assert_eq!((exited.exit_code(), exited.stdout.dropped_bytes), (5, 0)),
                event => panic!("{event:?}"),
            }
        }
        assert_eq!((position, digest), *EXPECTED);
        assert!(scene.proxy.accepted() > before + 3, "there were cuts");
    }
}

static EXPECTED: std::sync::LazyLock<(u64, u64)> = std::sync::LazyLock::new(|| {
    let (mut length, mut digest) = (0, 0u64);
    for number in 1..=10_000_000 {
        let line = format!("{number}\n");
        length += line.len() as u64;
        digest = line.bytes().fold(digest, |sum, byte| sum.rotate_left(5) ^ u64::from(byte));
    }
    (length, digest)
});

/// The last of the output, and the exit, may be lost with the connection too.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_before_the_end_is_there_after_it() {
    let scene = Scene::tcp().await;
    let (mut first, _) = started(&scene.plain().await, "echo ready; head -c 2000000 /dev/zero; exit 6", LONG).await;
    // it is sent, and not read
    let direct = scene.direct().await;
    assert_eq!(cause(&direct, first.id()).await, ExitCause::Exited(6));
    scene.proxy.cut();
    let _ = rest(&mut first).await;
    let attached = direct.attach(first.id(), again(6, LONG)).await.unwrap();
    assert_eq!(read_on(attached, 6).await, (2_000_000, 6));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agents_setting_is_the_longest() {
    let agent = Agent::builder().tcp().config("max_disconnect_grace = \"2s\"").start();
    let scene = Scene::of(agent, None).await;
    let (lost, mark) = started(&scene.plain().await, "echo ready; sleep 300", LONG).await;
    let begin = Instant::now();
    scene.proxy.cut();
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
    assert!(begin.elapsed() >= SHORT, "it was waited for");
    assert_eq!(cause(&scene.direct().await, lost.id()).await, ExitCause::Cancelled);
}

/// Instead of an end that nobody has asked for.
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_back_too_late_hears_why_it_has_ended() {
    let agent = Agent::builder().tcp().config("max_disconnect_grace = \"200ms\"").start();
    let scene = Scene::of(agent, None).await;
    let executor = scene.executor(RESUME).await;
    let mut execution = start(&executor, "echo ready; sleep 300").await;
    until_output(&mut execution, "ready\n").await;
    scene.proxy.down();
    assert_eq!(cause(&scene.direct().await, execution.id()).await, ExitCause::Cancelled);
    scene.proxy.up();
    let error = rest(&mut execution).await.unwrap_err();
    assert!(matches!(error, ExecutorError::Lost { .. }) && causes(&error).contains("lost for too long"), "{error:?}");
}

/// Who has asked for its end gets that, although a command in the background waits for no caller that has started it.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_in_the_background_ends_with_who_asked_for_that() {
    let scene = Scene::tcp().await;
    let direct = scene.direct().await;
    for on_disconnect in [OnDisconnect::Kill, OnDisconnect::Detach] {
        let mark = marker();
        let command = Command::shell("echo ready; sleep 300").env(MARK, &mark).yield_after(Duration::ZERO);
        let promoted = direct.execute(command.on_disconnect(on_disconnect).build().unwrap()).await.unwrap();
        let id = promoted.id().clone();
        assert!(matches!(within(promoted.collect::<Vec<_>>()).await.last(), Some(Ok(Event::Promoted))));
        let mut lost = scene.plain().await.attach(&id, again(0, SHORT)).await.unwrap();
        until_output(&mut lost, "ready\n").await;
        scene.proxy.cut();
        until("nothing is left", async || processes_with(&mark).is_empty()).await;
        assert_eq!(cause(&direct, &id).await, ExitCause::Cancelled);
    }
}

/// It follows, and holds nothing.
#[tokio::test(flavor = "multi_thread")]
async fn another_that_follows_does_not_keep_it() {
    let scene = Scene::tcp().await;
    let (lost, mark) = started(&scene.plain().await, "echo ready; sleep 300", SHORT).await;
    let direct = scene.direct().await;
    let mut watcher = direct.attach(lost.id(), Attach::start()).await.unwrap();
    scene.proxy.cut();
    let events = rest(&mut watcher).await.unwrap();
    assert!(matches!(events.last(), Some(Event::Exited(exited)) if exited.cause == ExitCause::Cancelled), "{events:?}");
    assert!(processes_with(&mark).is_empty());
}

/// Instead of that the connection was lost before.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_back_hears_that_another_has_cancelled_it() {
    let scene = Scene::tcp().await;
    let executor = scene.executor(RESUME).await;
    let text = format!("echo ready; {}; echo again; sleep 300", scene.wait());
    let mut execution = start(&executor, &text).await;
    until_output(&mut execution, "ready\n").await;
    let before = scene.proxy.accepted();
    scene.proxy.cut();
    tokio::select! {
        event = execution.next() => panic!("{event:?}"),
        () = until("it is back", async || scene.proxy.accepted() > before) => {}
    }
    scene.go_on();
    until_output(&mut execution, "again\n").await;
    drop(scene.direct().await.attach(execution.id(), again(0, LONG)).await.unwrap());
    let events = rest(&mut execution).await.unwrap();
    assert!(matches!(events.last(), Some(Event::Exited(exited)) if exited.cause == ExitCause::Cancelled), "{events:?}");
}

/// Of an RPC that follows it the deadline holds all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_the_grace() {
    let agent = Agent::start();
    let id = marker();
    let command = Command::shell("echo ready; sleep 300").execution_id(id.parse().unwrap()).env(MARK, &id);
    let mut first =
        within(agent.executor().await.execute(command.disconnect_grace(LONG).build().unwrap())).await.unwrap();
    until_output(&mut first, "ready\n").await;

    let wire = Wire::connect(&agent).await.unwrap();
    let mut attach = tonic::Request::new(AttachRequest {
        execution_id: id.clone(),
        on_disconnect: DisconnectPolicy::Kill.into(),
        disconnect_grace: Some(LONG.try_into().unwrap()),
        ..Default::default()
    });
    attach.set_timeout(SHORT);
    let mut stream = within(wire.executions().attach(attach)).await.unwrap().into_inner();
    within(stream.message()).await.unwrap().unwrap();
    wire.cut();
    until("nothing is left", async || processes_with(&id).is_empty()).await;
    drop(first);
}

const EXECUTE: &str = "/telexec.v1.ExecutionService/Execute";

/// Starts a command under this id on a stream.
fn execute(stream: u32, id: &str, grace: Duration) -> Vec<u8> {
    let request = ExecuteRequest {
        command: "sleep 300".into(),
        execution_id: id.to_owned(),
        environment: [(MARK.to_owned(), id.to_owned())].into(),
        disconnect_grace: Some(grace.try_into().unwrap()),
        ..Default::default()
    };
    let headers = frame(kind::HEADERS, END_HEADERS, stream, &call(EXECUTE));
    [headers, frame(kind::DATA, END_STREAM, stream, &message(&request.encode_to_vec()))].concat()
}

/// A peer that resets a call, or leaves without an error, does so on purpose.
#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_on_purpose_is_not_waited_for() {
    let agent = Agent::start();
    let executor = agent.executor().await;
    let goaway = |error: u8| frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, error]);
    let reset = frame(kind::RST_STREAM, 0, 3, &[0, 0, 0, 8]);
    for (last, waiting) in [(goaway(0), 0), (goaway(2), 2), (reset, 1), (Vec::new(), 2)] {
        let mut raw = Raw::connect(&agent).await;
        let (ids, unbound) = ([marker(), marker()], marker());
        for (stream, id, grace) in [(1, &ids[0], LONG), (3, &ids[1], LONG), (5, &unbound, Duration::ZERO)] {
            raw.write(&execute(stream, id, grace)).await.unwrap();
            until("it runs", async || !processes_with(id).is_empty()).await;
        }
        // what the agent has written is read, or else the end is a reset, which may overtake what is written here
        raw.lives().await;
        raw.write(&last).await.unwrap();
        drop(raw);
        let running = || ids.iter().filter(|id| !processes_with(id).is_empty()).count();
        until("the others are ended", async || processes_with(&unbound).is_empty() && running() <= waiting).await;
        for id in ids.iter().take(waiting) {
            let id = id.parse().unwrap();
            executor.signal(&id, telexec_executor::Signal::KILL).await.unwrap();
            assert_eq!(cause(&executor, &id).await, ExitCause::Signaled);
        }
    }
}

/// Calls are known by their streams: one that HTTP/2 refuses by itself, since its headers are too long, shifts none.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_call_does_not_change_which_other_is_waited_for() {
    let agent = Agent::start();
    let executor = agent.executor().await;
    for at_once in [true, false] {
        let mut raw = Raw::connect(&agent).await;
        let long = [call(EXECUTE), header("x-padding", &"x".repeat(40_000))].concat();
        let mut bytes = frame(kind::HEADERS, END_HEADERS, 1, &long);
        if !at_once {
            raw.write(&std::mem::take(&mut bytes)).await.unwrap();
            raw.until(|frame| frame.stream == 1).await.expect("a refusal");
        }
        let [cancelled, lost] = [marker(), marker()];
        for (stream, id) in [(3, &cancelled), (5, &lost)] {
            bytes.extend(execute(stream, id, LONG));
        }
        raw.write(&bytes).await.unwrap();
        until("they run", async || [&cancelled, &lost].iter().all(|id| !processes_with(id).is_empty())).await;
        // what the agent has written is read: it may not notice the end before it reads the reset
        raw.lives().await;
        raw.write(&frame(kind::RST_STREAM, 0, 3, &[0, 0, 0, 8])).await.unwrap();
        drop(raw);
        until("it is ended", async || processes_with(&cancelled).is_empty()).await;
        assert!(!processes_with(&lost).is_empty());
        executor.signal(&lost.parse().unwrap(), telexec_executor::Signal::KILL).await.unwrap();
        assert_eq!(cause(&executor, &lost.parse().unwrap()).await, ExitCause::Signaled);
    }
}
