//! Messages that are too long, malformed or not gRPC, on connections that live on.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, stream};
use http::{Response, StatusCode};
use hyper::body::Incoming;
use prost::Message;
use telexec_proto::v1::interact_request::Request as Step;
use telexec_proto::v1::{ExecuteRequest, InteractRequest, RunResponse};
use telexec_tests::raw::message;
use telexec_tests::{Agent, Memory, Wire, follow, lines, marker, processes_with, until, within};
use tokio::sync::Notify;
use tonic::{Code, Status};

use super::{EXECUTE, marked};

const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// A request that is so long on the wire.
fn of_length(bytes: usize, directory: &str) -> ExecuteRequest {
    let command = "echo ran >> ran; wc -c".to_owned();
    let mut request = ExecuteRequest { command, working_directory: directory.into(), ..Default::default() };
    request.stdin = vec![7; bytes - 100].into();
    request.stdin = vec![7; bytes - 100 + bytes - request.encoded_len()].into();
    assert_eq!(request.encoded_len(), bytes);
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_may_have_four_mebibytes_and_not_a_byte_more() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    let directory = agent.directory().to_str().unwrap();
    for (bytes, code) in [
        (MAX_MESSAGE_BYTES - 1, Code::Ok),
        (MAX_MESSAGE_BYTES, Code::Ok),
        (MAX_MESSAGE_BYTES + 1, Code::ResourceExhausted),
        (2 * MAX_MESSAGE_BYTES, Code::ResourceExhausted),
        (MAX_MESSAGE_BYTES, Code::Ok),
    ] {
        let request = of_length(bytes, directory);
        let read = format!("{}\n", request.stdin.len());
        match within(wire.executions().run(request.clone())).await {
            Ok(answer) => assert_eq!((answer.into_inner().stdout, code), (read.clone(), Code::Ok), "{bytes}"),
            Err(status) => {
                assert_eq!(status.code(), code, "{bytes}: {status:?}");
                assert!(status.message().contains("4194304"), "{status:?}");
            }
        }
        match within(wire.executions().execute(request)).await {
            Ok(stream) => assert_eq!(follow(stream.into_inner()).await.stdout(), read.as_bytes()),
            Err(status) => assert_eq!(status.code(), code, "{bytes}: {status:?}"),
        }
    }
    assert_eq!(lines(&agent.directory().join("ran")).len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_message_in_the_course_of_a_call_ends_it_and_its_command() {
    let agent = Agent::start();
    let (wire, mark) = (Wire::connect(&agent).await.unwrap(), marker());
    let request = ExecuteRequest { accepts_input: true, ..marked("cat; exec sleep 300", &mark) };
    let long = Step::Stdin(vec![7; MAX_MESSAGE_BYTES].into());
    let step = |step| InteractRequest { request: Some(step) };
    let (first, long) = (stream::iter([step(Step::Start(request))]), step(long));
    let runs = Arc::new(Notify::new());
    let then = Arc::clone(&runs);
    let second = stream::once(async move {
        then.notified().await;
        long
    });
    // the request has no end
    let requests = first.chain(second).chain(stream::pending());
    let stream = within(wire.executions().interact(requests)).await.unwrap().into_inner();
    until("it runs", async || !processes_with(&mark).is_empty()).await;
    runs.notify_one();
    let followed = follow(stream).await;
    assert_eq!(followed.status.code(), Code::ResourceExhausted, "{followed:?}");
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
    wire.executions().run(marked("true", "")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_without_their_ends_are_refused_before_they_are_many() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    let part = Bytes::from(message(&vec![7; MAX_MESSAGE_BYTES])).slice(..MAX_MESSAGE_BYTES - 1000);
    let call = || wire.post(EXECUTE, GRPC, part.clone(), false);
    let before = Memory::of(agent.pid()).resident;
    let mut calls: FuturesUnordered<_> = (0..40).map(|_| call()).collect();
    let refused = within(calls.next()).await.unwrap().unwrap();
    assert_eq!(refused.headers()["grpc-status"], (Code::ResourceExhausted as i32).to_string());
    // what is whole is served all the same
    within(wire.executions().run(marked("true", ""))).await.unwrap();
    let grown = Memory::of(agent.pid()).resident - before;
    assert!(grown < 80 * 1024 * 1024, "the agent has grown by {grown} bytes");
    drop(calls);
    until("there is room again", async || {
        let request = of_length(MAX_MESSAGE_BYTES, agent.directory().to_str().unwrap());
        within(wire.executions().run(request)).await.is_ok()
    })
    .await;
}

/// What Execute with just this body comes to; dropping it ends the call.
async fn post(wire: &Wire, headers: &[(&str, &str)], body: Vec<u8>) -> Response<Incoming> {
    wire.post(EXECUTE, headers, body, true).await.unwrap()
}

const GRPC: &[(&str, &str)] = &[("content-type", "application/grpc"), ("te", "trailers")];

fn echo(agent: &Agent) -> Vec<u8> {
    let working_directory = agent.directory().to_str().unwrap().to_owned();
    ExecuteRequest { command: "echo ran >> ran".into(), working_directory, ..Default::default() }.encode_to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_messages_have_their_code_and_run_nothing() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    let whole = message(&echo(&agent));
    let with_flag = |flag| [&[flag], &whole[1..]].concat();
    let gzip = [GRPC, &[("grpc-encoding", "gzip")]].concat();
    let unknown = [GRPC, &[("grpc-encoding", "xyz")]].concat();
    for (name, headers, body, code) in [
        ("compressed, and not said how", GRPC, with_flag(1), Code::Internal),
        ("compressed", &gzip, with_flag(1), Code::Unimplemented),
        ("compressed in an unknown way", &unknown, with_flag(1), Code::Unimplemented),
        ("an unknown flag", GRPC, with_flag(2), Code::Internal),
        ("the last unknown flag", GRPC, with_flag(255), Code::Internal),
        ("no message", GRPC, vec![], Code::InvalidArgument),
        ("half a header", GRPC, whole[..3].to_vec(), Code::InvalidArgument),
        ("half a message", GRPC, whole[..whole.len() - 1].to_vec(), Code::InvalidArgument),
        ("no protobuf", GRPC, message(&[0xff; 100]), Code::InvalidArgument),
        ("text that is no text", GRPC, message(&[10, 1, 0xff]), Code::InvalidArgument),
        ("the longest length", GRPC, [&[0, 255, 255, 255, 255], &[7; 100][..]].concat(), Code::ResourceExhausted),
        ("an empty message", GRPC, message(&[]), Code::InvalidArgument),
    ] {
        let answer = post(&wire, headers, body).await;
        assert_eq!(answer.status(), StatusCode::OK, "{name}");
        let status = Status::from_header_map(answer.headers()).unwrap_or_else(|| panic!("{name}: {answer:?}"));
        assert_eq!(status.code(), code, "{name}: {status:?}");
    }
    assert!(lines(&agent.directory().join("ran")).is_empty());
    wire.executions().run(marked("true", "")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_grpc_is_refused_and_runs_nothing() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    let whole = message(&echo(&agent));
    for headers in [
        &[][..],
        &[("content-type", "")],
        &[("content-type", "text/plain")],
        &[("content-type", "application/grpc-web")],
    ] {
        assert_eq!(
            post(&wire, headers, whole.clone()).await.status(),
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "{headers:?}"
        );
    }
    assert!(lines(&agent.directory().join("ran")).is_empty());
    let mut running = Vec::new();
    for kind in ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"] {
        let answer = post(&wire, &[("content-type", kind)], whole.clone()).await;
        assert_eq!(answer.status(), StatusCode::OK, "{kind}");
        running.push(answer);
    }
    until("these ran", async || lines(&agent.directory().join("ran")).len() == 3).await;
}

/// As the gRPC interop case `special_status_message`, and longer: statuses travel in headers.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_and_odd_status_is_encoded_and_cut() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    let odd = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n%";
    for times in [1, 1000] {
        let working_directory = format!("/{}", odd.repeat(times));
        let request = ExecuteRequest { command: "true".into(), working_directory, ..Default::default() };
        let answer = post(&wire, GRPC, message(&request.encode_to_vec())).await;
        let headers = answer.headers();
        let text = headers["grpc-message"].to_str().unwrap();
        assert!(text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()), "{text}");
        let all: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        assert!(all < 8 * 1024, "{all} bytes");
        let status = within(wire.executions().run(request)).await.unwrap_err();
        assert!(!status.message().is_empty() && status.message().len() <= 1024 + 64, "{}", status.message().len());
    }
    let answer: RunResponse = wire.executions().run(marked("echo fine", "")).await.unwrap().into_inner();
    assert_eq!(answer.stdout, "fine\n");
}
