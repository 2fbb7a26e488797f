//! The deadline of a call, kept by the agent: the client here has no clock of its own.

use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use futures_util::stream;
use hyper::body::Body as _;
use prost::Message;
use prost_types::FileDescriptorSet;
use serde_json::json;
use telexec_proto::v1::execution_event::Event;
use telexec_proto::v1::interact_request::Request as Step;
use telexec_proto::v1::{
    AttachRequest, DisconnectPolicy, DuplicatePolicy, ExecuteRequest, ExitCause, GetExecutionRequest, InteractRequest,
};
use telexec_tests::raw::message;
use telexec_tests::{
    Agent, Followed, Gate, Grpcurl, MARK, Wire, cgroups_named, directory, follow, lines, marker, processes_with, until,
    within,
};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;

/// A shell may take long to start on a busy machine.
const AMPLE: &str = "2S";

fn request(command: &str, mark: &str) -> ExecuteRequest {
    let environment = [(MARK.to_owned(), mark.to_owned())].into();
    let kill_grace = Some(Duration::from_millis(100).try_into().unwrap());
    ExecuteRequest { command: command.into(), environment, kill_grace, ..Default::default() }
}

fn with_timeout<T>(message: T, value: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("grpc-timeout", value.parse().unwrap());
    request
}

async fn execute(wire: &Wire, request: ExecuteRequest, timeout: &str) -> Result<Followed, Status> {
    let stream = within(wire.executions().execute(with_timeout(request, timeout))).await?;
    Ok(follow(stream.into_inner()).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_output_and_the_end_come_before_the_status() {
    let agent = Agent::start();
    let (wire, mark) = (Wire::connect(&agent).await.unwrap(), marker());
    let command = request("echo before; setsid sleep 300 & trap '' TERM; sleep 300; sleep 300", &mark);
    let followed = execute(&wire, command, AMPLE).await.unwrap();
    assert_eq!(followed.status.code(), Code::DeadlineExceeded);
    assert!(matches!(followed.events[0].event, Some(Event::Started(_))));
    assert_eq!(followed.stdout(), b"before\n");
    let exited = followed.exited().unwrap();
    assert_eq!((exited.cause(), exited.exit_code), (ExitCause::DeadlineExceeded, -1));
    assert_eq!((exited.surviving_processes, processes_with(&mark)), (0, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn run_ends_with_the_status() {
    let agent = Agent::start();
    let (wire, mark) = (Wire::connect(&agent).await.unwrap(), marker());
    let answer = within(wire.executions().run(with_timeout(request("sleep 300", &mark), "300m"))).await;
    assert_eq!(answer.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(processes_with(&mark), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_does_not_read_does_not_put_it_off() {
    let agent = Agent::start();
    let (wire, mark) = (Wire::connect(&agent).await.unwrap(), marker());
    let stream = wire.executions().execute(with_timeout(request("yes", &mark), "500m")).await.unwrap().into_inner();
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
    let followed = follow(stream).await;
    assert_eq!(followed.status.code(), Code::DeadlineExceeded);
    assert_eq!(followed.exited().unwrap().cause(), ExitCause::DeadlineExceeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_earlier_of_deadline_and_timeout_is_the_cause() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    for (deadline, timeout, cause, code) in [
        ("60S", Duration::from_millis(300), ExitCause::TimedOut, Code::Ok),
        ("300m", Duration::from_secs(60), ExitCause::DeadlineExceeded, Code::DeadlineExceeded),
    ] {
        let timeout = Some(timeout.try_into().unwrap());
        let request = ExecuteRequest { timeout, ..request("sleep 300", "") };
        let followed = execute(&wire, request, deadline).await.unwrap();
        assert_eq!((followed.exited().unwrap().cause(), followed.status.code()), (cause, code));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_within_its_deadline_is_not_touched() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    for timeout in ["60S", "1M", "1H", "99999999H", "99999m", "99999999u"] {
        let followed = execute(&wire, request("exit 3", ""), timeout).await.unwrap();
        assert_eq!((followed.exited().unwrap().exit_code, followed.status.code()), (3, Code::Ok), "{timeout}");
    }
}

async fn is_unknown(wire: &Wire, execution_id: &str) -> bool {
    let request = GetExecutionRequest { execution_id: execution_id.into() };
    matches!(wire.executions().get_execution(request).await, Err(status) if status.code() == Code::NotFound)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_that_has_passed_runs_nothing() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    for timeout in ["0S", "0n", "1n"] {
        let execution_id = marker();
        let request = ExecuteRequest { execution_id: execution_id.clone(), ..request("true", "") };
        assert_eq!(execute(&wire, request, timeout).await.unwrap_err().code(), Code::DeadlineExceeded);
        assert!(is_unknown(&wire, &execution_id).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_deadline_is_refused_and_nothing_runs() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    for timeout in ["", "1", "S", "1x", "1s", "-1S", "+1S", "1.5S", "1 S", "1S1S", "123456789S", "∞"] {
        let execution_id = marker();
        let request = ExecuteRequest { execution_id: execution_id.clone(), ..request("true", "") };
        let mut request = Request::new(request);
        request.metadata_mut().insert("grpc-timeout", timeout.as_bytes().try_into().unwrap());
        let status = wire.executions().execute(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{timeout:?}");
        let violation = &status.get_details_bad_request().unwrap().field_violations[0];
        assert_eq!(violation.field, "grpc-timeout");
        assert!(is_unknown(&wire, &execution_id).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grpcurl_gives_one_too() {
    let agent = Agent::start();
    let mark = marker();
    let request = json!({"command": "echo before; sleep 300", "environment": {MARK: mark}, "killGrace": "0s"});
    let grpcurl = Grpcurl::new(&agent).options(["-max-time", "2"]);
    let answer = grpcurl.call("telexec.v1.ExecutionService/Execute", &request).await;
    assert_eq!(answer.code, 64 + i32::from(Code::DeadlineExceeded), "{answer:?}");
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

/// All RPCs of our package, by their paths.
fn paths() -> Vec<String> {
    let set = FileDescriptorSet::decode(telexec_proto::FILE_DESCRIPTOR_SET).unwrap();
    let files = set.file.into_iter().filter(|file| file.package() == "telexec.v1");
    let services = files.flat_map(|file| file.service);
    services
        .flat_map(|one| one.method.clone().into_iter().map(move |rpc| (one.name().to_owned(), rpc)))
        .map(|(service, rpc)| format!("/telexec.v1.{service}/{}", rpc.name()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_has_its_own_also_before_its_request_is_whole() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    for path in paths() {
        let half = message(&[10, 90, b'x'])[..6].to_vec();
        let headers = [("content-type", "application/grpc"), ("grpc-timeout", "200m")];
        let answer = wire.post(&path, &headers, half, false).await.unwrap();
        let status = within(status(answer)).await.unwrap_or_else(|| panic!("{path}: no status"));
        assert_eq!(status.code(), Code::DeadlineExceeded, "{path}: {status:?}");
    }
}

/// In the headers or, if the answer begins before the request is whole, in the trailers.
async fn status(answer: http::Response<hyper::body::Incoming>) -> Option<Status> {
    if let Some(status) = Status::from_header_map(answer.headers()) {
        return Some(status);
    }
    let mut body = answer.into_body();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        if let Some(trailers) = frame.ok()?.trailers_ref() {
            return Status::from_header_map(trailers);
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_has_its_own_and_what_it_follows_goes_on() {
    let agent = Agent::start();
    let (wire, gate) = (Wire::connect(&agent).await.unwrap(), Gate::new());
    let command = format!("echo before; {}; exit 3", gate.wait());
    let request = ExecuteRequest { execution_id: marker(), ..request(&command, "") };
    let first = within(wire.executions().execute(request.clone())).await.unwrap().into_inner();

    let repeat = execute(&wire, request.clone(), AMPLE).await.unwrap();
    assert_eq!((repeat.status.code(), repeat.stdout()), (Code::DeadlineExceeded, b"before\n".to_vec()));
    assert!(repeat.exited().is_none(), "{repeat:?}");
    let run = within(wire.executions().run(with_timeout(request, "200m"))).await;
    assert_eq!(run.unwrap_err().code(), Code::DeadlineExceeded);

    let _open = gate.open();
    assert_eq!(follow(first).await.exited().unwrap().exit_code, 3);
}

/// Whatever an agent starts does not begin, until this is dropped.
struct Frozen(Vec<PathBuf>);

impl Frozen {
    /// `None`: it keeps its commands in no cgroup of version 2.
    fn new(agent: &Agent) -> Option<Self> {
        let mut trees = cgroups_named(&format!("telexec.{}.", agent.serving_pid()));
        trees.retain(|tree| tree.join("cgroup.freeze").exists());
        let this = (!trees.is_empty()).then_some(Self(trees))?;
        this.set("1");
        Some(this)
    }

    /// A process is being started.
    fn is_populated(&self) -> bool {
        let events = |tree: &PathBuf| std::fs::read_to_string(tree.join("cgroup.events")).unwrap_or_default();
        self.0.iter().any(|tree| events(tree).contains("populated 1"))
    }

    fn set(&self, value: &str) {
        self.0.iter().for_each(|tree| std::fs::write(tree.join("cgroup.freeze"), value).unwrap());
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.set("0");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_start_has_its_own_and_the_start_goes_on() {
    let agent = Agent::start();
    let (wire, trace) = (Wire::connect(&agent).await.unwrap(), directory());
    let Some(frozen) = Frozen::new(&agent) else {
        eprintln!("skipped: no cgroup of version 2 to freeze");
        return;
    };
    let ran = trace.path().join("ran");
    let execution_id = marker();
    let asked = ExecuteRequest {
        execution_id: execution_id.clone(),
        on_disconnect: DisconnectPolicy::Detach.into(),
        ..request(&format!("echo ran >> {}", ran.display()), "")
    };
    let first = tokio::spawn({
        let (wire, asked) = (wire.clone(), asked.clone());
        async move { follow(wire.executions().execute(asked).await.unwrap().into_inner()).await }
    });
    until("it is being started", async || frozen.is_populated()).await;

    let late = |answer: Result<(), Status>| assert_eq!(answer.unwrap_err().code(), Code::DeadlineExceeded);
    late(execute(&wire, asked.clone(), "200m").await.map(drop));
    late(within(wire.executions().run(with_timeout(asked.clone(), "200m"))).await.map(drop));
    let duplicate =
        ExecuteRequest { execution_id: String::new(), duplicate_policy: DuplicatePolicy::ReuseRunning.into(), ..asked };
    late(execute(&wire, duplicate, "200m").await.map(drop));
    let attach = AttachRequest { execution_id, ..Default::default() };
    late(within(wire.executions().attach(with_timeout(attach.clone(), "200m"))).await.map(drop));
    let steps = stream::iter([InteractRequest { request: Some(Step::Attach(attach)) }]);
    late(within(wire.executions().interact(with_timeout(steps, "200m"))).await.map(drop));

    drop(frozen);
    let first = within(first).await.unwrap();
    assert_eq!((first.exited().unwrap().exit_code, lines(&ran)), (0, vec!["ran".to_owned()]), "{first:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_given_up_while_it_was_started_never_runs() {
    never_runs(Agent::start()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_does_it_with_a_keeper() {
    never_runs(Agent::builder().kept().start()).await;
}

async fn never_runs(agent: Agent) {
    let (wire, trace) = (Wire::connect(&agent).await.unwrap(), directory());
    let Some(frozen) = Frozen::new(&agent) else {
        eprintln!("skipped: no cgroup of version 2 to freeze");
        return;
    };
    let ran = trace.path().join("ran");
    let asked = |text: &str| request(&format!("echo {text} >> {}", ran.display()), "");
    let given_up = tokio::spawn({
        let (wire, asked) = (wire.clone(), asked("given up"));
        async move { execute(&wire, asked, "1S").await.map(drop) }
    });
    until("it is being started", async || frozen.is_populated()).await;
    assert_eq!(within(given_up).await.unwrap().unwrap_err().code(), Code::DeadlineExceeded);
    until("it has ended, though it is frozen", async || !frozen.is_populated()).await;
    let next = tokio::spawn({
        let (wire, asked) = (wire.clone(), asked("next"));
        async move { follow(wire.executions().execute(asked).await.unwrap().into_inner()).await }
    });
    until("the next one is being started", async || frozen.is_populated()).await;
    drop(frozen);
    assert_eq!(within(next).await.unwrap().exited().unwrap().exit_code, 0);
    assert_eq!(lines(&ran), ["next"]);
}
