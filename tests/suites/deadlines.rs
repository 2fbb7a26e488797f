//! The deadline of a call, kept by the agent: the client here has no clock of its own.

use std::time::Duration;

use serde_json::json;
use telexec_proto::v1::execution_event::Event;
use telexec_proto::v1::{ExecuteRequest, ExitCause, GetExecutionRequest};
use telexec_tests::{Agent, Followed, Grpcurl, MARK, Wire, follow, marker, processes_with, until, within};
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
