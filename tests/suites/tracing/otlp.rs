//! Spans that the agent sends to a collector.

use std::sync::{Arc, Mutex};

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use telexec_executor::{Command, TraceContext};
use telexec_tests::{Agent, AgentBuilder, run, until};
use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tower::ServiceExt;

use super::{CALLER, SHOW, TRACE};

/// A collector of its own, on this address.
#[derive(Clone, Default)]
struct Collector {
    requests: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
    endpoint: String,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.requests.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let this = Self { endpoint, ..Self::default() };
        let routes = Routes::new(TraceServiceServer::new(this.clone())).prepare();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let routes = routes.clone();
                let service = service_fn(move |request: hyper::Request<Incoming>| routes.clone().oneshot(request));
                let http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(async move { http2.serve_connection(TokioIo::new(stream), service).await });
            }
        });
        this
    }

    /// Sent soon.
    fn agent(&self) -> AgentBuilder {
        Agent::builder().args(["--otlp-endpoint", &self.endpoint]).env("OTEL_BSP_SCHEDULE_DELAY", "20")
    }

    fn spans(&self) -> Vec<Span> {
        let requests = self.requests.lock().unwrap();
        let resources = requests.iter().flat_map(|request| &request.resource_spans);
        resources.flat_map(|resource| &resource.scope_spans).flat_map(|scope| scope.spans.clone()).collect()
    }

    async fn wait(&self, count: usize) -> Vec<Span> {
        until("the spans have arrived", async || self.spans().len() >= count).await;
        self.spans()
    }
}

/// An attribute as text.
fn attribute(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key).unwrap_or_else(|| panic!("no {key}"));
    match &found.value {
        Some(AnyValue { value: Some(Value::StringValue(text)) }) => text.clone(),
        Some(AnyValue { value: Some(Value::IntValue(number)) }) => number.to_string(),
        other => panic!("{key}: {other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parent(text: &str) -> Option<TraceContext> {
    TraceContext::parse(text, "a=1")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_a_span_between_the_callers_and_its_own() {
    let collector = Collector::start().await;
    let agent = collector.agent().start();
    let command = Command::shell(format!("{SHOW}; exit 3")).trace(parent(CALLER));
    let outcome = run(&agent.executor().await, command).await.unwrap();
    let span = collector.wait(1).await.swap_remove(0);
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.to_owned(), "b7ad6b7169203331".to_owned()));
    assert_eq!(outcome.text(), format!("00-{TRACE}-{}-01 a=1\n", hex(&span.span_id)));
    assert_eq!((span.name.as_str(), span.kind(), span.trace_state.as_str()), ("execution", SpanKind::Server, "a=1"));
    for (key, value) in [
        ("rpc.method", "Execute"),
        ("telexec.execution_id", outcome.started.id.as_str()),
        ("telexec.cause", "exited"),
        ("process.exit.code", "3"),
    ] {
        assert_eq!(attribute(&span.attributes, key), value);
    }
    assert!(span.end_time_unix_nano > span.start_time_unix_nano);
    assert_eq!(span.status.unwrap().message, "exit code 3");
    assert_eq!(attribute(&span.events[0].attributes, "process.pid"), outcome.started.pid.to_string());
    let resource = collector.requests.lock().unwrap()[0].resource_spans[0].resource.clone().unwrap();
    assert_eq!(attribute(&resource.attributes, "service.name"), "telexecd");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_without_a_trace_begins_one_and_what_is_not_recorded_is_not_sent() {
    let collector = Collector::start().await;
    let agent = collector.agent().start();
    let executor = agent.executor().await;
    let unrecorded = CALLER.replace("-01", "-00");
    let outcome = run(&executor, Command::shell(SHOW).trace(parent(&unrecorded))).await.unwrap();
    assert!(outcome.text().starts_with(&format!("00-{TRACE}-")) && outcome.text().ends_with("-00 a=1\n"));
    let outcome = run(&executor, Command::shell(SHOW)).await.unwrap();
    run(&executor, Command::argv(["/no/such/program"])).await.unwrap_err();
    let spans = collector.wait(2).await;
    assert_eq!(outcome.text(), format!("00-{}-{}-01 none\n", hex(&spans[0].trace_id), hex(&spans[0].span_id)));
    assert!(spans[0].parent_span_id.is_empty() && spans[0].status.clone().unwrap_or_default().message.is_empty());
    assert!(spans[1].status.clone().unwrap().message.starts_with("cannot run /no/such/program"), "{:?}", spans[1]);
    assert_eq!(spans.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_policy_denies_is_a_span_that_failed_and_the_audit_log_still_sees_all() {
    let directory = telexec_tests::directory();
    let file = directory.path().join("audit.log");
    let collector = Collector::start().await;
    let policy = r#"permit(principal, action, resource);
        forbid(principal, action == Action::"Execute", resource) when { context.programs.contains("reboot") };"#;
    let agent = collector.agent().policy(policy).config(format!("[audit]\nfile = {file:?}")).start();
    let executor = agent.executor().await;
    run(&executor, Command::shell("reboot")).await.unwrap_err();
    run(&executor, Command::shell("exit 4")).await.unwrap();
    let spans = collector.wait(2).await;
    assert!(spans[0].status.clone().unwrap().message.starts_with("the policy forbids Execute on "), "{:?}", spans[0]);
    let is_recorded = || telexec_tests::lines(&file).iter().any(|line| line.contains("\"exit_code\":4"));
    until("the end is in the audit log", async || is_recorded()).await;
}

/// What was not sent yet is sent at the end, and a missing collector delays nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_spans_are_sent_and_a_missing_collector_is_logged_once() {
    let collector = Collector::start().await;
    let mut agent = Agent::builder().env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint).start();
    run(&agent.executor().await, Command::shell("true")).await.unwrap();
    assert!(agent.terminate().await.success());
    assert_eq!(collector.spans().len(), 1);

    let nowhere = Collector { endpoint: "http://127.0.0.1:9".into(), ..Collector::default() };
    let mut agent = nowhere.agent().start();
    let executor = agent.executor().await;
    let reported = || agent.log().matches("cannot export spans to otlp_endpoint").count();
    until("that is logged", async || {
        run(&executor, Command::shell("true")).await.unwrap();
        reported() == 1
    })
    .await;
    run(&executor, Command::shell("true")).await.unwrap();
    assert!(agent.terminate().await.success());
    assert_eq!(agent.log().matches("cannot export spans").count(), 1, "{}", agent.log());
}
