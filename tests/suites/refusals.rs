//! What the agent refuses, and with which errors.

use std::collections::BTreeMap;

use prost_types::Duration;
use telexec_proto::v1::{
    AttachRequest, DisconnectPolicy, ExecuteRequest, GetExecutionRequest, InteractRequest, ListExecutionsRequest,
    ResizeTerminalRequest, ResourceLimits, SignalExecutionRequest, TerminalSize, WriteInputRequest,
    execution_event::Event, interact_request::Request as Step,
};
use telexec_tests::{Agent, Certs, Leaf, Wire, follow, lines, marker, until, within};
use tonic::{Code, Status};
use tonic_types::StatusExt;
use tower::Service;

fn echo() -> ExecuteRequest {
    ExecuteRequest { command: "echo ran >> ran".into(), ..Default::default() }
}

async fn execute(wire: &Wire, request: ExecuteRequest) -> Status {
    match within(wire.executions().execute(request.clone())).await {
        Err(status) => status,
        Ok(stream) => panic!("it ran: {request:?}: {:?}", follow(stream.into_inner()).await),
    }
}

/// The field that an INVALID_ARGUMENT names, in its text and in its details alike.
fn field(status: &Status) -> String {
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let field = status.get_details_bad_request().unwrap().field_violations[0].field.clone();
    assert!(status.message().starts_with(&format!("{field}: ")), "{status:?}");
    field
}

fn one<V: From<&'static str>>(key: &str, value: V) -> BTreeMap<String, V> {
    [(key.to_owned(), value)].into()
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_requests_name_their_field_and_run_nothing() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    let time = |seconds, nanos| Some(Duration { seconds, nanos });
    let argv = |argv: &[&str]| argv.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>();
    let cpus = |cpus| Some(ResourceLimits { cpus, ..Default::default() });
    let none = || ExecuteRequest { command: String::new(), ..echo() };
    for (request, named) in [
        (none(), "command"),
        (ExecuteRequest { argv: argv(&["true"]), ..echo() }, "command"),
        (ExecuteRequest { command: "echo \0".into(), ..echo() }, "command"),
        (ExecuteRequest { argv: argv(&[""]), ..none() }, "argv"),
        (ExecuteRequest { argv: argv(&["a", "b\0"]), ..none() }, "argv[1]"),
        (ExecuteRequest { argv: argv(&["true"]), shell: "sh".into(), ..none() }, "shell"),
        (ExecuteRequest { argv: argv(&["true"]), login: true, ..none() }, "login"),
        (
            ExecuteRequest { argv: argv(&["true"]), report_working_directory: true, ..none() },
            "report_working_directory",
        ),
        (ExecuteRequest { shell: "s\0h".into(), ..echo() }, "shell"),
        (ExecuteRequest { working_directory: "relative".into(), ..echo() }, "working_directory"),
        (ExecuteRequest { working_directory: "./".into(), ..echo() }, "working_directory"),
        (ExecuteRequest { working_directory: "/\0".into(), ..echo() }, "working_directory"),
        (ExecuteRequest { environment: one("", "x".into()), ..echo() }, "environment"),
        (ExecuteRequest { environment: one("A=B", "x".into()), ..echo() }, "environment"),
        (ExecuteRequest { environment: one("A\0", "x".into()), ..echo() }, "environment"),
        (ExecuteRequest { environment: one("A", "\0".into()), ..echo() }, "environment"),
        (ExecuteRequest { user: "\0".into(), ..echo() }, "user"),
        (ExecuteRequest { user: "root\0".into(), ..echo() }, "user"),
        (ExecuteRequest { limits: cpus(-1.0), ..echo() }, "limits.cpus"),
        (ExecuteRequest { limits: cpus(0.001), ..echo() }, "limits.cpus"),
        (ExecuteRequest { limits: cpus(1e5), ..echo() }, "limits.cpus"),
        (ExecuteRequest { limits: cpus(f64::NAN), ..echo() }, "limits.cpus"),
        (ExecuteRequest { limits: cpus(f64::INFINITY), ..echo() }, "limits.cpus"),
        (ExecuteRequest { timeout: time(0, 0), ..echo() }, "timeout"),
        (ExecuteRequest { timeout: time(-1, 0), ..echo() }, "timeout"),
        (ExecuteRequest { timeout: time(1, -1), ..echo() }, "timeout"),
        (ExecuteRequest { timeout: time(1, 1_000_000_000), ..echo() }, "timeout"),
        (ExecuteRequest { timeout: time(i64::MAX, 0), ..echo() }, "timeout"),
        (ExecuteRequest { kill_grace: time(-1, 0), ..echo() }, "kill_grace"),
        (ExecuteRequest { kill_grace: time(0, -1), ..echo() }, "kill_grace"),
        (ExecuteRequest { labels: one("", "x".into()), ..echo() }, "labels"),
        (ExecuteRequest { labels: one("-a", "x".into()), ..echo() }, "labels"),
        (ExecuteRequest { labels: one("a b", "x".into()), ..echo() }, "labels"),
        (ExecuteRequest { labels: one(&"a".repeat(129), "x".into()), ..echo() }, "labels"),
        (ExecuteRequest { labels: one("a", "x".repeat(257)), ..echo() }, "labels"),
        (ExecuteRequest { descendants: 99, ..echo() }, "descendants"),
        (ExecuteRequest { descendants: -1, ..echo() }, "descendants"),
    ] {
        let directory = agent.directory().to_str().unwrap().to_owned();
        let working_directory = Some(request.working_directory.clone()).filter(|path| !path.is_empty());
        let request = ExecuteRequest { working_directory: working_directory.unwrap_or(directory), ..request };
        assert_eq!(field(&execute(&wire, request).await), named);
    }
    assert!(lines(&agent.directory().join("ran")).is_empty());
}

const NO_IDS: [&str; 9] = ["-", ".", "..", "../x", "a/b", "%2e%2e", "a\0b", "a b", "é"];

#[tokio::test(flavor = "multi_thread")]
async fn ids_outside_the_grammar_are_refused() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    let (one_too_long, far_too_long) = ("a".repeat(129), "a".repeat(64 * 1024));
    for id in NO_IDS.into_iter().chain([&one_too_long[..], &far_too_long]) {
        let execution_id = id.to_owned();
        assert_eq!(field(&execute(&wire, ExecuteRequest { execution_id, ..echo() }).await), "execution_id");
    }
    for id in NO_IDS.into_iter().chain(["", &one_too_long, &far_too_long]) {
        let execution_id = id.to_owned();
        let answer = wire.executions().get_execution(GetExecutionRequest { execution_id: execution_id.clone() }).await;
        assert_eq!(field(&answer.unwrap_err()), "execution_id");
        let request = SignalExecutionRequest { execution_id, signal: "TERM".into() };
        let answer = wire.executions().signal_execution(request).await;
        assert_eq!(field(&answer.unwrap_err()), "execution_id");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_id_is_taken() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    let execution_id = format!("0{}", "a._-".repeat(32).split_off(1));
    let request =
        ExecuteRequest { execution_id: execution_id.clone(), argv: vec!["true".into()], ..Default::default() };
    let stream = wire.executions().execute(request).await.unwrap().into_inner();
    assert_eq!(follow(stream).await.exited().unwrap().exit_code, 0);
    let request = GetExecutionRequest { execution_id: execution_id.clone() };
    let known = wire.executions().get_execution(request).await.unwrap().into_inner();
    assert_eq!((known.execution.unwrap().execution_id, execution_id.len()), (execution_id.clone(), 128));
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_signals_are_refused() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    for signal in ["", "0", "-9", "65", "NOPE", "SIG", "SIGTERM\0", "9 "] {
        let request = SignalExecutionRequest { execution_id: "a".into(), signal: signal.into() };
        assert_eq!(field(&wire.executions().signal_execution(request).await.unwrap_err()), "signal");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_page_tokens_are_refused() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    let request = ListExecutionsRequest { page_token: "another".into(), ..Default::default() };
    assert_eq!(field(&wire.executions().list_executions(request).await.unwrap_err()), "page_token");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_start_tells_stage_and_error_in_its_details() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    let here = |working_directory: &str| ExecuteRequest { working_directory: working_directory.into(), ..echo() };
    let program = |argv: &str| ExecuteRequest { argv: vec![argv.into()], ..Default::default() };
    for (request, code, stage, errno) in [
        (here("/no/such/directory"), Code::NotFound, "chdir", "ENOENT"),
        (here("/etc/passwd"), Code::NotFound, "chdir", "ENOTDIR"),
        (program("/no/such/program"), Code::NotFound, "exec", "ENOENT"),
        (program("/etc/passwd"), Code::FailedPrecondition, "exec", "EACCES"),
        (ExecuteRequest { shell: "/no/such/shell".into(), ..echo() }, Code::NotFound, "exec", "ENOENT"),
    ] {
        let status = execute(&wire, request).await;
        assert_eq!(status.code(), code, "{status:?}");
        let details = status.get_details_error_info().unwrap();
        assert_eq!(details.reason, "SPAWN_FAILED");
        assert_eq!((&details.metadata["stage"][..], &details.metadata["errno"][..]), (stage, errno));
    }
}

/// Statuses travel in headers, which have limits and their own alphabet.
#[tokio::test(flavor = "multi_thread")]
async fn errors_about_long_and_odd_texts_arrive() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    let odd = "/é\n%00\r\u{1b}\"".repeat(20_000);
    let program = ExecuteRequest { argv: vec![odd.clone()], ..Default::default() };
    assert_eq!(execute(&wire, program).await.code(), Code::FailedPrecondition);
    let status = execute(&wire, ExecuteRequest { working_directory: odd.clone(), ..echo() }).await;
    assert_eq!(status.get_details_error_info().unwrap().metadata["stage"], "chdir");
    assert_eq!(field(&execute(&wire, ExecuteRequest { execution_id: odd, ..echo() }).await), "execution_id");
}

/// Another's execution is not there: not by another code, text or detail than one that never was.
#[tokio::test(flavor = "multi_thread")]
async fn anothers_execution_is_not_found() {
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).start();
    let (alice, bob) = (certs.ca.issue(Leaf::client("alice")), certs.ca.issue(Leaf::client("bob")));
    let alice = Wire::connect_tls(&agent, certs.config(Some(&alice))).await.unwrap();
    let bob = Wire::connect_tls(&agent, certs.config(Some(&bob))).await.unwrap();
    let (known, unknown) = (marker(), marker());
    let request = ExecuteRequest {
        command: "sleep 300".into(),
        execution_id: known.clone(),
        accepts_input: true,
        terminal: Some(TerminalSize { columns: 80, rows: 24 }),
        ..Default::default()
    };
    let mut stream = alice.executions().execute(request).await.unwrap().into_inner();
    assert!(matches!(stream.message().await.unwrap().unwrap().event, Some(Event::Started(_))));

    let answers = async |execution_id: &str| {
        let get = GetExecutionRequest { execution_id: execution_id.into() };
        let signal = SignalExecutionRequest { execution_id: execution_id.into(), signal: "KILL".into() };
        let get = bob.executions().get_execution(get).await.unwrap_err();
        let signal = bob.executions().signal_execution(signal).await.unwrap_err();
        // by which it would be ended
        let on_disconnect = DisconnectPolicy::Kill.into();
        let attach = AttachRequest { execution_id: execution_id.into(), on_disconnect, ..Default::default() };
        let write = WriteInputRequest { execution_id: execution_id.into(), close: true, ..Default::default() };
        let size = Some(TerminalSize { columns: 1, rows: 1 });
        let resize = ResizeTerminalRequest { execution_id: execution_id.into(), size };
        let steps = [Step::Attach(attach.clone()), Step::Signal("KILL".into())];
        let steps = steps.map(|step| InteractRequest { request: Some(step) });
        let attach = bob.executions().attach(attach).await.unwrap_err();
        let write = bob.executions().write_input(write).await.unwrap_err();
        let resize = bob.executions().resize_terminal(resize).await.unwrap_err();
        let interact = bob.executions().interact(futures_util::stream::iter(steps)).await.unwrap_err();
        [get, signal, attach, write, resize, interact].map(|status| {
            assert_eq!(status.code(), Code::NotFound);
            let details = String::from_utf8_lossy(status.details()).replace(execution_id, "ID");
            (status.message().replace(execution_id, "ID"), details)
        })
    };
    assert_eq!(answers(&known).await, answers(&unknown).await);
    let everything = ListExecutionsRequest { include_exited: true, ..Default::default() };
    assert_eq!(bob.executions().list_executions(everything).await.unwrap().into_inner().executions, []);
    let own = alice.executions().get_execution(GetExecutionRequest { execution_id: known }).await.unwrap();
    let own = own.into_inner().execution.unwrap();
    assert_eq!((&own.identity[..], own.exited), ("alice", None));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_max_executions_are_refused_until_one_ends() {
    let agent = Agent::builder().config("max_executions = 1").start();
    let wire = Wire::connect(&agent).await.unwrap();
    let request = |command: &str| ExecuteRequest { command: command.into(), ..Default::default() };
    let first = wire.executions().execute(request("sleep 300")).await.unwrap();
    let status = execute(&wire, echo()).await;
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.get_details_retry_info().unwrap().retry_delay.is_some());
    drop(first);
    until("there is room again", async || wire.executions().run(request("true")).await.is_ok()).await;
}

/// Two callers of an agent with this configuration.
async fn alice_and_bob(config: &str) -> (Agent, Wire, Wire) {
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).config(config).start();
    let connect = async |name| {
        let pair = certs.ca.issue(Leaf::client(name));
        Wire::connect_tls(&agent, certs.config(Some(&pair))).await.unwrap()
    };
    let (alice, bob) = (connect("alice").await, connect("bob").await);
    (agent, alice, bob)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_caller_does_not_take_the_executions_of_another() {
    let (_agent, alice, bob) = alice_and_bob("max_executions_per_identity = 2").await;
    let request = |command: &str| ExecuteRequest { command: command.into(), ..Default::default() };
    let first = alice.executions().execute(request("sleep 300")).await.unwrap();
    // what it leaves behind counts too
    let left = alice.executions().run(request("sleep 300 > /dev/null 2>&1 &")).await.unwrap().into_inner();
    let status = execute(&alice, echo()).await;
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.get_details_retry_info().unwrap().retry_delay.is_some());
    bob.executions().run(request("true")).await.unwrap();
    drop(first);
    until("there is room again", async || alice.executions().run(request("true")).await.is_ok()).await;
    let kill = SignalExecutionRequest { execution_id: left.execution_id, signal: "KILL".into() };
    alice.executions().signal_execution(kill).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_starts_too_often_waits_and_others_do_not() {
    let (_agent, alice, bob) = alice_and_bob("max_starts_per_second = 1").await;
    let request = || ExecuteRequest { command: "true".into(), ..Default::default() };
    alice.executions().run(request()).await.unwrap();
    // sooner or later two are less than a second apart
    let mut refused = None;
    until("one comes too soon", async || {
        refused = alice.executions().run(request()).await.err();
        refused.is_some()
    })
    .await;
    let refused = refused.unwrap();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("1 command per second"), "{refused:?}");
    assert!(refused.get_details_retry_info().unwrap().retry_delay.is_some());
    bob.executions().run(request()).await.unwrap();
    until("its time has come", async || alice.executions().run(request()).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_told_of_an_end_finds_room() {
    let agent = Agent::builder().config("max_executions = 1").start();
    let wire = Wire::connect(&agent).await.unwrap();
    let request = |shell: &str| ExecuteRequest { command: "true".into(), shell: shell.into(), ..Default::default() };
    for _ in 0..50 {
        wire.executions().run(request("sh")).await.unwrap();
        let stream = wire.executions().execute(request("sh")).await.unwrap().into_inner();
        assert_eq!(follow(stream).await.status.code(), Code::Ok);
        // what could not be started took no room
        assert_eq!(execute(&wire, request("/no/such/shell")).await.code(), Code::NotFound);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_over_the_limit_spares_the_connection() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    let request = ExecuteRequest { stdin: vec![0; 5_000_000].into(), ..echo() };
    execute(&wire, request).await;
    let request = ExecuteRequest { command: "true".into(), ..Default::default() };
    assert_eq!(wire.executions().run(request).await.unwrap().into_inner().exited.unwrap().exit_code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_method_is_unimplemented() {
    let agent = Agent::start();
    let mut wire = Wire::connect(&agent).await.unwrap();
    for path in ["/telexec.v1.ExecutionService/NoSuchMethod", "/telexec.v1.NoSuchService/Execute"] {
        let request = http::Request::post(format!("http://localhost{path}")).header("content-type", "application/grpc");
        let answer = wire.call(request.body(tonic::body::Body::empty()).unwrap()).await.unwrap();
        assert_eq!(answer.headers()["grpc-status"], i32::from(Code::Unimplemented).to_string());
    }
}
