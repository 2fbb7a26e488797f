//! Traces that go through the agent: from the caller to the command.

mod otlp;

use serde_json::Value;
use telexec_executor::{Command, DuplicatePolicy, TraceContext};
use telexec_proto::v1::ExecuteRequest;
use telexec_tests::{Agent, Wire, follow, program, run, until};
use tonic::Request;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
/// What the command was handed.
const SHOW: &str = "echo ${TRACEPARENT-none} ${TRACESTATE-none}";

/// What a command is handed whose call has these headers.
async fn handed(agent: &Agent, headers: &[(&'static str, &str)], request: ExecuteRequest) -> String {
    let wire = Wire::connect(agent).await.unwrap();
    let mut request = Request::new(request);
    for (name, value) in headers {
        request.metadata_mut().append(*name, value.parse().unwrap());
    }
    let followed = follow(wire.executions().execute(request).await.unwrap().into_inner()).await;
    String::from_utf8(followed.stdout()).unwrap().trim().to_owned()
}

fn show() -> ExecuteRequest {
    ExecuteRequest { command: SHOW.into(), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_handed_the_agents_span() {
    let agent = Agent::builder().args(["--log-format", "json"]).start();
    let headers = [("traceparent", CALLER), ("tracestate", "a=1"), ("tracestate", "b=2")];
    let handed = handed(&agent, &headers, show()).await;
    let (parent, state) = handed.split_once(' ').unwrap();
    let own = TraceContext::parse(parent, state).unwrap();
    assert_eq!((own.trace_id().as_str(), own.tracestate()), (TRACE, "a=1,b=2"));
    assert!(own.is_sampled() && !CALLER.contains(&own.span_id()), "{handed}");

    until("the end is logged", async || agent.log().contains("\"ended\"")).await;
    let log = agent.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    for line in lines.filter(|line| ["started", "ended"].contains(&line["message"].as_str().unwrap())) {
        let reported =
            ["trace_id", "span_id", "parent_span_id"].map(|field| line["span"][field].as_str().unwrap().to_owned());
        assert_eq!(reported, [TRACE.to_owned(), own.span_id(), "b7ad6b7169203331".to_owned()]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_trace_or_with_a_malformed_one_there_is_none() {
    let agent = Agent::start();
    for headers in [
        &[][..],
        &[("tracestate", "a=1")],
        &[("traceparent", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"), ("tracestate", "a=1")],
        &[("traceparent", CALLER), ("traceparent", CALLER)],
    ] {
        assert_eq!(handed(&agent, headers, show()).await, "none none", "{headers:?}");
    }
    assert!(!agent.log().contains("trace_id"), "{}", agent.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_may_set_the_variable_itself() {
    let config = "[environment]\nTRACESTATE = \"configured\"";
    let agent = Agent::builder().config(config).start();
    let headers = [("traceparent", CALLER), ("tracestate", "a=1")];
    let mut request = show();
    request.environment.insert("TRACEPARENT".into(), "mine".into());
    assert_eq!(handed(&agent, &headers, request.clone()).await, "mine configured");
    request.environment.insert("TRACESTATE".into(), "too".into());
    assert_eq!(handed(&agent, &headers, request).await, "mine too");
    // what belongs to another trace is not handed on with this one
    assert!(handed(&agent, &headers[..1], show()).await.ends_with("-01 none"));
    let empty = ExecuteRequest { clear_environment: true, ..show() };
    assert!(handed(&agent, &headers, empty).await.contains(TRACE));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_in_another_trace_is_the_same() {
    let agent = Agent::start();
    let executor = agent.executor().await;
    let id = telexec_tests::marker().parse::<telexec_executor::ExecutionId>().unwrap();
    let command = |trace: &str| Command::shell(SHOW).execution_id(id.clone()).trace(TraceContext::parse(trace, "x=y"));
    let first = run(&executor, command(CALLER)).await.unwrap();
    assert!(first.text().starts_with(&format!("00-{TRACE}-")) && first.text().ends_with(" x=y\n"), "{}", first.text());
    let other = CALLER.replace("0af7", "1af7");
    assert_eq!(run(&executor, command(&other)).await.unwrap().text(), first.text());
    let once = command(&other).duplicate_policy(DuplicatePolicy::ReuseRunning);
    run(&executor, once).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn telexec_hands_on_what_it_was_handed() {
    let agent = Agent::start();
    let exec = |target: &str, parent: &str| {
        let mut telexec = std::process::Command::new(program("telexec"));
        telexec.args(["exec", target, "-c", SHOW]).env("TRACEPARENT", parent).env("TRACESTATE", "a=1");
        String::from_utf8(telexec.output().unwrap().stdout).unwrap()
    };
    for target in [agent.uri(), "local"] {
        let handed = exec(target, CALLER);
        assert!(handed.starts_with(&format!("00-{TRACE}-")) && handed.ends_with("-01 a=1\n"), "{handed}");
        assert_eq!(exec(target, "malformed"), "none none\n");
    }
}
