//! `Interact`, and the calls beside it, as they are on the wire.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use telexec_proto::v1::interact_request::Request as Step;
use telexec_proto::v1::{
    AttachRequest, DisconnectPolicy, DuplicatePolicy, ExecuteRequest, ExecutionEvent, ExecutionState, ExitCause,
    GetExecutionRequest, InteractRequest, ResizeTerminalRequest, TerminalSize, WriteInputRequest,
    execution_event::Event,
};
use telexec_tests::{
    Agent, Followed, Gate, Grpcurl, MARK, Memory, Wire, follow, marker, processes_with, until, within,
};
use tokio::sync::mpsc;
use tonic::{Code, Request, Status, Streaming};
use tonic_types::StatusExt;

/// The request stream of a call.
struct Steps(mpsc::Sender<InteractRequest>);

impl Steps {
    async fn take(&self, step: Step) {
        within(self.0.send(InteractRequest { request: Some(step) })).await.unwrap();
    }

    async fn stdin(&self, data: impl Into<Bytes>) {
        self.take(Step::Stdin(data.into())).await;
    }
}

fn requests(capacity: usize) -> (Steps, impl futures_util::Stream<Item = InteractRequest> + Send + 'static) {
    let (sender, receiver) = mpsc::channel(capacity);
    let requests = futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|request| (request, receiver))
    });
    (Steps(sender), requests)
}

/// Begins a call with this step.
async fn begin(wire: &Wire, first: Step) -> Result<(Steps, Streaming<ExecutionEvent>), Status> {
    let (steps, requests) = requests(1);
    steps.take(first).await;
    let stream = within(wire.executions().interact(requests)).await?.into_inner();
    Ok((steps, stream))
}

fn command(text: &str) -> ExecuteRequest {
    ExecuteRequest { command: text.into(), accepts_input: true, kill_grace: Some(zero()), ..Default::default() }
}

fn zero() -> prost_types::Duration {
    prost_types::Duration::default()
}

fn size(columns: u32, rows: u32) -> TerminalSize {
    TerminalSize { columns, rows }
}

async fn start(wire: &Wire, request: ExecuteRequest) -> (Steps, Streaming<ExecutionEvent>) {
    begin(wire, Step::Start(request)).await.unwrap()
}

/// Reads until standard output has had this text.
async fn until_output(stream: &mut Streaming<ExecutionEvent>, text: &str) {
    let mut reported = Vec::new();
    while !String::from_utf8_lossy(&reported).contains(text) {
        match within(stream.message()).await.unwrap().expect("it goes on").event {
            Some(Event::Stdout(data)) => reported.extend(data),
            Some(Event::Started(_)) => {}
            other => panic!("no {text:?} before {other:?}"),
        }
    }
}

/// The id of what a call follows: its first event.
async fn id(stream: &mut Streaming<ExecutionEvent>) -> String {
    match within(stream.message()).await.unwrap().unwrap().event {
        Some(Event::Started(started)) => started.execution_id,
        other => panic!("{other:?}"),
    }
}

async fn state(wire: &Wire, execution_id: &str) -> ExecutionState {
    let request = GetExecutionRequest { execution_id: execution_id.into() };
    within(wire.executions().get_execution(request)).await.unwrap().into_inner().execution.unwrap().state()
}

fn code(followed: &Followed) -> i32 {
    assert_eq!(followed.status.code(), Code::Ok, "{followed:?}");
    followed.exited().unwrap().exit_code
}

async fn agent() -> (Agent, Wire) {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    (agent, wire)
}

#[tokio::test(flavor = "multi_thread")]
async fn input_is_written_in_its_order_and_closed() {
    let (_agent, wire) = agent().await;
    let (steps, stream) = start(&wire, ExecuteRequest { stdin: "a".into(), ..command("cat; exit 3") }).await;
    for piece in ["b", "", "c"] {
        steps.stdin(piece).await;
    }
    steps.take(Step::CloseStdin(false)).await;
    steps.stdin("d").await;
    steps.take(Step::CloseStdin(true)).await;
    let followed = follow(stream).await;
    assert_eq!((followed.stdout(), code(&followed)), (b"abcd".to_vec(), 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_requests_closes_the_input_and_is_no_cancel() {
    let (_agent, wire) = agent().await;
    let (steps, stream) = start(&wire, command("cat; sleep 0.3; echo after; exit 3")).await;
    steps.stdin("abc\n").await;
    drop(steps);
    let followed = follow(stream).await;
    assert_eq!((followed.stdout(), code(&followed)), (b"abc\nafter\n".to_vec(), 3));
    // also where there is none to close
    let request = ExecuteRequest { accepts_input: false, ..command("sleep 0.3; exit 4") };
    let (steps, stream) = start(&wire, request).await;
    drop(steps);
    assert_eq!(code(&follow(stream).await), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_typed_on_and_resized_and_signalled() {
    let (_agent, wire) = agent().await;
    let text = "trap 'echo usr; exit 7' USR1; read -r line; echo \"<$line>\"; stty size; echo on; \
                while :; do sleep 0.02; done";
    let (steps, mut stream) = start(&wire, ExecuteRequest { terminal: Some(size(80, 24)), ..command(text) }).await;
    steps.take(Step::Resize(size(132, 43))).await;
    steps.stdin("abc\n").await;
    until_output(&mut stream, "<abc>\r\n43 132\r\non\r\n").await;
    steps.take(Step::Signal("USR1".into())).await;
    assert_eq!(code(&follow(stream).await), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_request_is_a_start_or_an_attach() {
    let (_agent, wire) = agent().await;
    let others = [
        Step::Stdin("x".into()),
        Step::CloseStdin(true),
        Step::Resize(size(80, 24)),
        Step::Signal("TERM".into()),
        Step::Start(ExecuteRequest::default()),
        Step::Start(ExecuteRequest { terminal: Some(size(0, 0)), ..command("true") }),
        Step::Attach(AttachRequest { execution_id: "../x".into(), ..Default::default() }),
        Step::Attach(AttachRequest { execution_id: "a".into(), on_disconnect: 9, ..Default::default() }),
    ];
    for first in others {
        let status = begin(&wire, first.clone()).await.err().unwrap();
        assert_eq!(status.code(), Code::InvalidArgument, "{first:?}: {status:?}");
        assert!(status.get_details_bad_request().is_some());
    }
    let empty = futures_util::stream::iter([InteractRequest::default()]);
    assert_eq!(within(wire.executions().interact(empty)).await.unwrap_err().code(), Code::InvalidArgument);
    let none = futures_util::stream::empty::<InteractRequest>();
    assert_eq!(within(wire.executions().interact(none)).await.unwrap_err().code(), Code::InvalidArgument);
    let unknown = AttachRequest { execution_id: marker(), ..Default::default() };
    assert_eq!(begin(&wire, Step::Attach(unknown)).await.err().unwrap().code(), Code::NotFound);
}

/// A call that is refused is over, and what it has started is ended.
#[tokio::test(flavor = "multi_thread")]
async fn later_requests_that_are_wrong_end_the_call() {
    let (_agent, wire) = agent().await;
    let mark = marker();
    let environment = [(MARK.to_owned(), mark.clone())].into();
    let plain = ExecuteRequest { accepts_input: false, environment, ..command("sleep 300") };
    let accepting = ExecuteRequest { accepts_input: true, ..plain.clone() };
    let attach = AttachRequest { execution_id: "a".into(), ..Default::default() };
    for (request, step, expected) in [
        (&plain, Some(Step::Start(command("true"))), Code::InvalidArgument),
        (&plain, Some(Step::Attach(attach)), Code::InvalidArgument),
        (&plain, None, Code::InvalidArgument),
        (&plain, Some(Step::Signal("NOPE".into())), Code::InvalidArgument),
        (&plain, Some(Step::Resize(size(0, 0))), Code::InvalidArgument),
        (&plain, Some(Step::Resize(size(100_000, 1))), Code::InvalidArgument),
        (&plain, Some(Step::Resize(size(80, 24))), Code::FailedPrecondition),
        (&plain, Some(Step::Stdin("x".into())), Code::FailedPrecondition),
        (&plain, Some(Step::CloseStdin(true)), Code::FailedPrecondition),
        (&accepting, Some(Step::Resize(size(80, 24))), Code::FailedPrecondition),
    ] {
        let (steps, stream) = start(&wire, request.clone()).await;
        within(steps.0.send(InteractRequest { request: step.clone() })).await.unwrap();
        let status = follow(stream).await.status;
        assert_eq!(status.code(), expected, "{step:?}: {status:?}");
        until("nothing is left", async || processes_with(&mark).is_empty()).await;
    }
}

/// As at the end of a pipe: what is not read is no fault of who has sent it.
#[tokio::test(flavor = "multi_thread")]
async fn input_that_is_not_read_does_not_hide_the_end() {
    let (_agent, wire) = agent().await;
    for text in ["head -c 1 >/dev/null; exit 3", "exec <&-; sleep 0.1; exit 3", "exit 3"] {
        for _ in 0..30 {
            let (steps, stream) = start(&wire, command(text)).await;
            let flood = async {
                // until the call is over
                while steps.0.send(InteractRequest { request: Some(Step::Stdin(vec![0; 100].into())) }).await.is_ok() {}
            };
            let (followed, ()) = within(async { tokio::join!(follow(stream), flood) }).await;
            assert_eq!(code(&followed), 3, "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_attaches_and_types() {
    let (_agent, wire) = agent().await;
    let (steps, mut first) = start(&wire, command("while read -r line; do echo \"<$line>\"; done; exit 3")).await;
    let execution_id = id(&mut first).await;
    steps.stdin("one\n").await;
    until_output(&mut first, "<one>\n").await;
    let attach = AttachRequest { execution_id: execution_id.clone(), ..Default::default() };
    let (other, mut second) = begin(&wire, Step::Attach(attach.clone())).await.unwrap();
    until_output(&mut second, "<one>\n").await;
    other.stdin("two\n").await;
    until_output(&mut first, "<two>\n").await;
    // who only follows goes, and nothing happens
    drop(within(wire.executions().attach(attach)).await.unwrap());
    steps.stdin("three\n").await;
    until_output(&mut second, "<two>\n<three>\n").await;
    drop(other);
    assert_eq!(code(&follow(first).await), 3, "the end of its requests closed the input");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cancels_ends_it_or_not_as_it_asked() {
    let (_agent, wire) = agent().await;
    for (policy, goes_on) in [(DisconnectPolicy::Kill, false), (DisconnectPolicy::Detach, true)] {
        let (gate, mark) = (Gate::new(), marker());
        let environment = [(MARK.to_owned(), mark.clone())].into();
        let request = ExecuteRequest { on_disconnect: policy.into(), environment, ..command(&gate.wait()) };
        let (steps, mut stream) = start(&wire, request).await;
        let execution_id = id(&mut stream).await;
        drop((steps, stream));
        let attach = AttachRequest { execution_id, ..Default::default() };
        let follower = within(wire.executions().attach(attach)).await.unwrap().into_inner();
        if goes_on {
            within(wire.executions().run(command("sleep 0.1"))).await.unwrap();
            assert_eq!(processes_with(&mark).len(), 1);
            let _open = gate.open();
            assert_eq!(code(&follow(follower).await), 0);
        } else {
            assert_eq!(follow(follower).await.exited().unwrap().cause(), ExitCause::Cancelled);
        }
    }
}

/// The peer is gone without a word of HTTP/2.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_ends_what_is_bound_and_leaves_what_is_not() {
    let agent = Agent::start();
    let (wire, other) = (Wire::connect(&agent).await.unwrap(), Wire::connect(&agent).await.unwrap());
    let gate = Gate::new();
    let request = |policy: DisconnectPolicy| ExecuteRequest {
        on_disconnect: policy.into(),
        ..command(&format!("echo ready; {}; seq 1 50000; exit 3", gate.wait()))
    };
    let mut calls = Vec::new();
    for policy in [DisconnectPolicy::Kill, DisconnectPolicy::Detach] {
        let mut stream = wire.executions().execute(request(policy)).await.unwrap().into_inner();
        let execution_id = id(&mut stream).await;
        until_output(&mut stream, "ready\n").await;
        calls.push((execution_id, stream));
    }
    let follow_other = async |execution_id: &str| {
        let attach = AttachRequest { execution_id: execution_id.into(), ..Default::default() };
        within(other.executions().attach(attach)).await.unwrap().into_inner()
    };
    let killed = follow_other(&calls[0].0).await;
    wire.cut();
    assert_eq!(follow(killed).await.exited().unwrap().cause(), ExitCause::Cancelled);
    let _open = gate.open();
    let detached = follow(follow_other(&calls[1].0).await).await;
    let lines: String = (1..=50_000).map(|i| format!("{i}\n")).collect();
    assert!(detached.stdout() == format!("ready\n{lines}").into_bytes());
    assert_eq!(code(&detached), 3);
}

/// Who does not read what a command floods it with can still end it.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_does_not_read_still_types() {
    let (_agent, wire) = agent().await;
    let mark = marker();
    for step in [Step::Signal("KILL".into()), Step::Stdin(b"\x03".to_vec().into())] {
        let environment = [(MARK.to_owned(), mark.clone())].into();
        let request = ExecuteRequest { terminal: Some(size(80, 24)), environment, ..command("exec yes") };
        let (steps, mut stream) = start(&wire, request).await;
        let execution_id = id(&mut stream).await;
        let (mut position, mut looks) = (0, 0);
        until("it is held up", async || {
            let request = GetExecutionRequest { execution_id: execution_id.clone() };
            let info = wire.executions().get_execution(request).await.unwrap().into_inner().execution.unwrap();
            looks = if info.position > 0 && info.position == position { looks + 1 } else { 0 };
            position = info.position;
            looks > 20
        })
        .await;
        steps.take(step).await;
        until("nothing is left", async || processes_with(&mark).is_empty()).await;
        drop(stream);
    }
}

/// While the command does not read, no more requests are read.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_input_costs_bounded_memory() {
    let agent = Agent::start();
    let before = Memory::of(agent.pid()).resident;
    let mut calls = Vec::new();
    for _ in 0..4 {
        let wire = Wire::connect(&agent).await.unwrap();
        let (steps, stream) = start(&wire, command("exec sleep 300")).await;
        let mut sent: usize = 0;
        // the connection takes no more: it is not read
        while tokio::time::timeout(Duration::from_millis(300), steps.stdin(vec![0; 1 << 20])).await.is_ok() {
            sent += 1;
            assert!(sent < 200, "a command that does not read was sent 200 MiB");
        }
        calls.push((wire, steps, stream));
    }
    let grown = Memory::of(agent.pid()).resident.saturating_sub(before);
    assert!(grown < 64 << 20, "by {grown} bytes for four floods");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_what_was_started_and_not_what_is_followed() {
    let (_agent, wire) = agent().await;
    let with_deadline = |first: Step, value: &'static str| {
        let (steps, requests) = requests(1);
        let mut request = Request::new(requests);
        request.metadata_mut().insert("grpc-timeout", value.parse().unwrap());
        async {
            steps.take(first).await;
            let stream = within(wire.executions().interact(request)).await.unwrap().into_inner();
            (steps, stream)
        }
    };
    let (_steps, stream) = with_deadline(Step::Start(command("echo before; sleep 300")), "2S").await;
    let followed = follow(stream).await;
    assert_eq!(followed.status.code(), Code::DeadlineExceeded);
    assert_eq!(followed.exited().unwrap().cause(), ExitCause::DeadlineExceeded);

    let (_steps, mut running) = start(&wire, command("exec sleep 300")).await;
    let execution_id = id(&mut running).await;
    let attach = AttachRequest { execution_id: execution_id.clone(), ..Default::default() };
    let (_other, stream) = with_deadline(Step::Attach(attach), "300m").await;
    let followed = follow(stream).await;
    assert_eq!((followed.status.code(), followed.exited()), (Code::DeadlineExceeded, None));
    assert_eq!(state(&wire, &execution_id).await, ExecutionState::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_is_reported_and_the_call_is_over() {
    let (_agent, wire) = agent().await;
    let request = ExecuteRequest { duplicate_policy: DuplicatePolicy::ReuseRunning.into(), ..command("sleep 300") };
    let (_steps, mut first) = start(&wire, request.clone()).await;
    let execution_id = id(&mut first).await;
    let (_other, second) = start(&wire, request.clone()).await;
    let followed = follow(second).await;
    let [ExecutionEvent { event: Some(Event::AlreadyRunning(running)), .. }] = &followed.events[..] else {
        panic!("{followed:?}")
    };
    assert_eq!(running.execution.as_ref().unwrap().execution_id, execution_id);
    assert_eq!(followed.status.code(), Code::Ok);
    let run = within(wire.executions().run(request)).await.unwrap_err();
    assert_eq!(run.code(), Code::AlreadyExists);
}

#[tokio::test(flavor = "multi_thread")]
async fn run_answers_without_an_end_what_goes_to_the_background() {
    let (_agent, wire) = agent().await;
    let gate = Gate::new();
    let request = ExecuteRequest { yield_after: Some(zero()), ..command(&format!("{}; exit 3", gate.wait())) };
    let answer = within(wire.executions().run(request)).await.unwrap().into_inner();
    assert_eq!(answer.exited, None);
    let _open = gate.open();
    let attach = AttachRequest { execution_id: answer.execution_id, ..Default::default() };
    assert_eq!(code(&follow(within(wire.executions().attach(attach)).await.unwrap().into_inner()).await), 3);
}

/// The code of each answer that is no success.
#[tokio::test(flavor = "multi_thread")]
async fn the_calls_beside_it_say_what_is_wrong() {
    let (agent, wire) = agent().await;
    let ended = ExecuteRequest { terminal: Some(size(80, 24)), ..command("echo abc") };
    let ended = wire.executions().run(ended).await.unwrap().into_inner().execution_id;
    let plain = ExecuteRequest { accepts_input: false, ..command("sleep 300") };
    let mut plain = wire.executions().execute(plain).await.unwrap().into_inner();
    let plain = (id(&mut plain).await, plain);
    let mut open = wire.executions().execute(command("sleep 300")).await.unwrap().into_inner();
    let open = (id(&mut open).await, open);
    let (ended, plain, open) = (&ended[..], &plain.0[..], &open.0[..]);
    let call = async |method: &str, request: serde_json::Value| {
        let method = format!("telexec.v1.ExecutionService/{method}");
        Grpcurl::new(&agent).call(&method, &request).await.code
    };
    let id = |id: &str| json!({"executionId": id});
    let attach = |id: &str, position: &str| json!({"executionId": id, "position": position});
    let write = |id: &str, offset: &str| json!({"executionId": id, "data": "eA==", "offset": offset});
    let resize =
        |id: &str, columns: u32, rows: u32| json!({"executionId": id, "size": {"columns": columns, "rows": rows}});
    for (method, request, expected) in [
        ("Attach", id("nobody"), Code::NotFound),
        ("Attach", id(""), Code::InvalidArgument),
        ("Attach", id("../x"), Code::InvalidArgument),
        ("Attach", json!({"executionId": ended, "onDisconnect": 7}), Code::InvalidArgument),
        ("Attach", attach(ended, "5"), Code::Ok),
        ("Attach", attach(ended, "6"), Code::OutOfRange),
        ("Attach", attach(open, "18446744073709551615"), Code::OutOfRange),
        ("WriteInput", write("nobody", "0"), Code::NotFound),
        ("WriteInput", write("", "0"), Code::InvalidArgument),
        ("WriteInput", write("a/b", "0"), Code::InvalidArgument),
        ("WriteInput", write(plain, "0"), Code::FailedPrecondition),
        ("WriteInput", write(ended, "0"), Code::FailedPrecondition),
        ("WriteInput", write(open, "0"), Code::Ok),
        ("WriteInput", write(open, "0"), Code::Ok),
        ("WriteInput", write(open, "2"), Code::OutOfRange),
        ("WriteInput", json!({"executionId": open, "close": true}), Code::Ok),
        ("WriteInput", write(open, "1"), Code::FailedPrecondition),
        ("ResizeTerminal", resize("nobody", 80, 24), Code::NotFound),
        ("ResizeTerminal", resize("-", 80, 24), Code::InvalidArgument),
        ("ResizeTerminal", id(open), Code::InvalidArgument),
        ("ResizeTerminal", resize(open, 0, 0), Code::InvalidArgument),
        ("ResizeTerminal", resize(open, 100_000, 1), Code::InvalidArgument),
        ("ResizeTerminal", resize(open, 1, 65_536), Code::InvalidArgument),
        ("ResizeTerminal", resize(open, 80, 24), Code::FailedPrecondition),
        ("ResizeTerminal", resize(ended, 80, 24), Code::FailedPrecondition),
        ("Execute", json!({"command": "true", "terminal": {}}), Code::InvalidArgument),
        ("Execute", json!({"command": "true", "terminal": {"columns": 100_000, "rows": 1}}), Code::InvalidArgument),
        ("Execute", json!({"command": "true", "yieldAfter": "-1s"}), Code::InvalidArgument),
        ("Execute", json!({"command": "true", "executionId": ended}), Code::AlreadyExists),
    ] {
        let expected = if expected == Code::Ok { 0 } else { 64 + i32::from(expected) };
        assert_eq!(call(method, request.clone()).await, expected, "{method} {request}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_offsets_and_positions_name_what_there_is() {
    let (_agent, wire) = agent().await;
    let mut open = wire.executions().execute(command("echo abc; exec sleep 300")).await.unwrap().into_inner();
    let execution_id = id(&mut open).await;
    until_output(&mut open, "abc\n").await;
    let write = WriteInputRequest { execution_id: execution_id.clone(), offset: 1, ..Default::default() };
    let attach = AttachRequest { execution_id: execution_id.clone(), position: 5, ..Default::default() };
    for (status, field, end) in [
        (within(wire.executions().write_input(write)).await.unwrap_err(), "offset", "0"),
        (within(wire.executions().attach(attach)).await.unwrap_err(), "position", "4"),
    ] {
        let details = status.get_details_error_info().unwrap();
        assert_eq!((status.code(), &details.reason[..]), (Code::OutOfRange, "BEYOND_END"));
        assert_eq!((&details.metadata["field"][..], &details.metadata["end"][..]), (field, end));
    }
    let resize = ResizeTerminalRequest { execution_id, size: None };
    let status = within(wire.executions().resize_terminal(resize)).await.unwrap_err();
    assert_eq!(status.get_details_bad_request().unwrap().field_violations[0].field, "size");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_waits_ends_with_its_deadline() {
    let (_agent, wire) = agent().await;
    let mut open = wire.executions().execute(command("exec sleep 300")).await.unwrap().into_inner();
    let execution_id = id(&mut open).await;
    let data = vec![0; 1 << 20].into();
    let mut request = Request::new(WriteInputRequest { execution_id, data, ..Default::default() });
    request.metadata_mut().insert("grpc-timeout", "300m".parse().unwrap());
    assert_eq!(within(wire.executions().write_input(request)).await.unwrap_err().code(), Code::DeadlineExceeded);
}

/// grpcurl sends all its messages and closes, then waits for the answers.
#[tokio::test(flavor = "multi_thread")]
async fn grpcurl_interacts() {
    let (agent, _wire) = agent().await;
    let start = json!({"start": {"argv": ["cat"], "acceptsInput": true}});
    let messages = format!("{start}{}{}", json!({"stdin": "aGVsbG8g"}), json!({"stdin": "d29ybGQK"}));
    let options = ["-d".to_owned(), messages];
    let answer = Grpcurl::new(&agent).options(options).ask(&["telexec.v1.ExecutionService/Interact"]).await;
    let events = answer.messages();
    // "hello " and "world\n" in base64, in one piece or in two
    let reported: String = events.iter().filter_map(|event| event["stdout"].as_str()).collect();
    assert_eq!(reported, "aGVsbG8gd29ybGQK");
    assert_eq!(events[events.len() - 1]["exited"]["cause"], "EXIT_CAUSE_EXITED");
}
