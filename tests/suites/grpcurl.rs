//! grpcurl with no proto at hand: all it knows comes from server reflection.

use std::path::Path;

use serde_json::{Value, json};
use telexec_proto::v1::{ExecuteRequest, SignalExecutionRequest};
use telexec_tests::{Agent, Answer, Certs, Grpcurl, Wire, follow, marker, within};
use tonic::Code;
use tonic_reflection::pb::{v1, v1alpha};

const SERVICES: [&str; 4] =
    ["grpc.health.v1.Health", "telexec.v1.AgentService", "telexec.v1.ExecutionService", "telexec.v1.ForwardService"];

async fn call(agent: &Agent, method: &str, request: Value) -> Answer {
    Grpcurl::new(agent).call(method, &request).await
}

async fn execution(agent: &Agent, method: &str, request: Value) -> Answer {
    call(agent, &format!("telexec.v1.ExecutionService/{method}"), request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_services_are_listed() {
    let agent = Agent::start();
    let listed = Grpcurl::new(&agent).ask(&["list"]).await.stdout;
    for service in SERVICES {
        assert!(listed.lines().any(|line| line == service), "{listed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn services_and_messages_are_described() {
    let agent = Agent::start();
    for (name, part) in [
        ("telexec.v1.ExecutionService", "rpc Execute ( .telexec.v1.ExecuteRequest ) returns ( stream "),
        ("telexec.v1.ExecuteRequest", "map<string, string> environment = 6"),
        ("telexec.v1.ExitCause", "EXIT_CAUSE_AGENT_SHUTDOWN = 7"),
        ("grpc.health.v1.Health", "rpc Check"),
    ] {
        let described = Grpcurl::new(&agent).ask(&["describe", name]).await.stdout;
        assert!(described.contains(part), "{described}");
    }
}

/// grpcurl takes the version of reflection that it likes best, so both are asked here without it.
#[tokio::test(flavor = "multi_thread")]
async fn reflection_answers_in_both_versions() {
    let agent = Agent::start();
    let wire = Wire::connect(&agent).await.unwrap();
    macro_rules! services {
        ($version:ident) => {{
            use $version::server_reflection_request::MessageRequest;
            use $version::server_reflection_response::MessageResponse;
            let ask = MessageRequest::ListServices(String::new());
            let request = $version::ServerReflectionRequest { message_request: Some(ask), ..Default::default() };
            let mut client =
                $version::server_reflection_client::ServerReflectionClient::with_origin(wire.clone(), Wire::origin());
            let requests = futures_util::stream::iter([request]);
            let mut answers = client.server_reflection_info(requests).await.unwrap().into_inner();
            let answer = within(answers.message()).await.unwrap().unwrap().message_response;
            let Some(MessageResponse::ListServicesResponse(list)) = answer else { panic!("{answer:?}") };
            list.service.into_iter().map(|service| service.name).collect::<Vec<_>>()
        }};
    }
    for services in [services!(v1), services!(v1alpha)] {
        assert!(SERVICES.iter().all(|service| services.iter().any(|name| name == service)), "{services:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_can_be_switched_off() {
    let agent = Agent::builder().config("reflection = false").start();
    let answer = Grpcurl::new(&agent).ask(&["list"]).await;
    assert!(answer.code != 0 && answer.stderr.contains("does not support the reflection API"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_and_each_service_are_healthy() {
    let agent = Agent::start();
    for service in ["", "telexec.v1.ExecutionService", "telexec.v1.AgentService"] {
        let answer = call(&agent, "grpc.health.v1.Health/Check", json!({"service": service})).await;
        assert_eq!(answer.message()["status"], "SERVING");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn execute_streams_events() {
    let agent = Agent::start();
    let events = execution(&agent, "Execute", json!({"command": "echo hi; echo no >&2; exit 5"})).await.messages();
    let (first, last) = (&events[0], &events[events.len() - 1]);
    assert!(first["started"]["executionId"].is_string() && first["started"]["pid"].is_number(), "{first}");
    assert!(events.iter().any(|event| event["stdout"] == "aGkK"), "base64 of hi: {events:?}");
    assert!(events.iter().any(|event| event["stderr"] == "bm8K"), "base64 of no: {events:?}");
    assert_eq!((&last["exited"]["exitCode"], &last["exited"]["cause"]), (&json!(5), &json!("EXIT_CAUSE_EXITED")));
}

#[tokio::test(flavor = "multi_thread")]
async fn run_collects_text() {
    let agent = Agent::start();
    let request = json!({"argv": ["sh", "-c", "cat; printf '\\377' >&2; exit 3"], "stdin": "aGkK", "timeout": "60s"});
    let answer = execution(&agent, "Run", request).await.message();
    assert_eq!((&answer["stdout"], &answer["stderr"]), (&json!("hi\n"), &json!("\u{fffd}")));
    assert_eq!(answer["exited"]["exitCode"], 3);
    let known = execution(&agent, "GetExecution", json!({"executionId": answer["executionId"]})).await.message();
    assert_eq!(known["execution"]["state"], "EXECUTION_STATE_EXITED");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_says_what_it_is() {
    let agent = Agent::builder().config("max_executions = 7\n[labels]\nrack = \"b 4\"").start();
    let answer = call(&agent, "telexec.v1.AgentService/GetAgent", json!({})).await.message();
    assert_eq!((&answer["os"], &answer["architecture"]), (&json!("linux"), &json!(std::env::consts::ARCH)));
    assert_eq!((&answer["maxExecutions"], &answer["labels"]), (&json!(7), &json!({"rack": "b 4"})));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(answer["kernel"], kernel.trim_end());
    for field in ["version", "hostname", "containment", "startTime", "agentUser", "defaultUser"] {
        assert!(!answer[field].as_str().unwrap().is_empty(), "{field}");
    }
    assert_eq!(answer["identity"], format!("unix:uid={}", rustix::process::getuid().as_raw()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_execution_is_listed_and_signalled() {
    let agent = Agent::start();
    let id = marker();
    let request = ExecuteRequest { argv: vec!["sleep".into(), "300".into()], ..Default::default() };
    let request = ExecuteRequest { execution_id: id.clone(), labels: [("a".into(), "b".into())].into(), ..request };
    let wire = Wire::connect(&agent).await.unwrap();
    let stream = wire.executions().execute(request).await.unwrap().into_inner();

    let listed = execution(&agent, "ListExecutions", json!({"labels": {"a": "b"}})).await.message();
    assert_eq!((&listed["executions"][0]["executionId"], &listed["executions"][1]), (&json!(id), &Value::Null));
    let agent_now = call(&agent, "telexec.v1.AgentService/GetAgent", json!({})).await.message();
    assert_eq!(agent_now["runningExecutions"], 1);
    let answer = execution(&agent, "SignalExecution", json!({"executionId": id, "signal": "SIGINT"})).await;
    assert_eq!(answer.message()["execution"]["executionId"], json!(id));
    assert_eq!(follow(stream).await.exited().unwrap().signal_name, "SIGINT");
    let request = SignalExecutionRequest { execution_id: id, signal: "15".into() };
    within(wire.executions().signal_execution(request)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_name_their_code_and_field_and_details() {
    let agent = Agent::start();
    for (method, request, code, part) in [
        ("Execute", json!({}), Code::InvalidArgument, "command: give either command or argv"),
        ("Execute", json!({"command": "true", "timeout": "-1s"}), Code::InvalidArgument, "timeout: "),
        ("Run", json!({"argv": ["/no/such/program"]}), Code::NotFound, "google.rpc.ErrorInfo"),
        ("Run", json!({"argv": ["/etc/passwd"]}), Code::FailedPrecondition, "/etc/passwd: permission denied"),
        ("GetExecution", json!({"executionId": "nobody"}), Code::NotFound, "nobody"),
        ("SignalExecution", json!({"executionId": "nobody", "signal": "NO"}), Code::InvalidArgument, "signal: "),
    ] {
        let answer = execution(&agent, method, request).await;
        assert_eq!(answer.code, 64 + i32::from(code), "{answer:?}");
        assert!(answer.stderr.contains(part), "{part}: {}", answer.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_comes_in_over_mtls() {
    let certs = Certs::new();
    let agent = Agent::builder().mtls(&certs).start();
    let grpcurl = Grpcurl::with_tls(&agent, &certs, &certs.client);
    let answer = grpcurl.call("telexec.v1.AgentService/GetAgent", &json!({})).await;
    assert_eq!(answer.message()["identity"], "client");
}

/// All that it knows is the descriptor set that was kept of that release.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_a_release_before_works() {
    let agent = Agent::builder().config("reflection = false").start();
    let released = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("proto/released");
    let files = std::fs::read_dir(released).unwrap().map(|entry| entry.unwrap().path());
    let sets: Vec<_> = files.filter(|path| path.extension().is_some_and(|extension| extension == "binpb")).collect();
    assert!(!sets.is_empty());
    for set in sets {
        let call = async |method: &str, request: Value| {
            let grpcurl = Grpcurl::new(&agent).options(["-protoset", set.to_str().unwrap()]);
            grpcurl.call(&format!("telexec.v1.{method}"), &request).await
        };
        let request = json!({"command": "cat; exit 5", "stdin": "aGkK", "timeout": "60s", "executionId": marker()});
        let events = call("ExecutionService/Execute", request.clone()).await.messages();
        assert!(events[0]["started"]["pid"].is_number() && events[1]["stdout"] == "aGkK", "{events:?}");
        assert_eq!(events[2]["exited"]["exitCode"], 5);
        let again = call("ExecutionService/Attach", json!({"executionId": request["executionId"]})).await.messages();
        assert_eq!(again, events);
        let answer = call("ExecutionService/Run", json!({"argv": ["echo", "hi"]})).await.message();
        assert_eq!((&answer["stdout"], &answer["exited"]["cause"]), (&json!("hi\n"), &json!("EXIT_CAUSE_EXITED")));
        let refused = call("ExecutionService/Run", json!({})).await;
        assert_eq!(refused.code, 64 + i32::from(Code::InvalidArgument), "{refused:?}");
        assert!(call("AgentService/GetAgent", json!({})).await.message()["version"].is_string());
    }
}
