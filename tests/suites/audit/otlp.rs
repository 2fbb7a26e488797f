//! Records that are sent to an OpenTelemetry collector, as logs.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{LogsService, LogsServiceServer};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use telexec_executor::Command;
use telexec_tests::{Agent, Ca, Leaf, Scrape, run, until};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tower::ServiceExt;

use super::{Audit, verify};
use crate::cli::troubleshooting::shows;

/// Keeps what it receives; clones share it.
#[derive(Clone, Default)]
struct Collector {
    requests: Arc<Mutex<Vec<ExportLogsServiceRequest>>>,
    answer: Arc<Mutex<Answer>>,
}

/// How it answers.
#[derive(Clone, Copy, Default)]
enum Answer {
    #[default]
    Accepts,
    /// This many of each request.
    Rejects(i64),
    /// After it has kept the records.
    Fails,
    /// Not at all.
    Hangs,
}

#[tonic::async_trait]
impl LogsService for Collector {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        self.requests.lock().unwrap().push(request.into_inner());
        let answer = *self.answer.lock().unwrap();
        let partial_success = match answer {
            Answer::Accepts => None,
            Answer::Rejects(rejected_log_records) => {
                Some(ExportLogsPartialSuccess { rejected_log_records, error_message: "too\nold".to_owned() })
            }
            Answer::Fails => return Err(Status::unavailable("busy")),
            Answer::Hangs => std::future::pending().await,
        };
        Ok(Response::new(ExportLogsServiceResponse { partial_success }))
    }
}

impl Collector {
    /// Listens, with TLS if it is given.
    async fn listen(&self, address: &str, tls: Option<Arc<ServerConfig>>) -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Routes::new(LogsServiceServer::new(self.clone())).prepare();
        let serving = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (routes, tls) = (routes.clone(), tls.clone());
                let service = service_fn(move |request: hyper::Request<Incoming>| routes.clone().oneshot(request));
                let http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                connections.spawn(async move {
                    match tls {
                        None => drop(http2.serve_connection(TokioIo::new(stream), service).await),
                        Some(tls) => {
                            let Ok(stream) = TlsAcceptor::from(tls).accept(stream).await else { return };
                            drop(http2.serve_connection(TokioIo::new(stream), service).await);
                        }
                    }
                });
            }
        });
        (address, serving)
    }

    async fn start() -> (Self, String) {
        let this = Self::default();
        let (address, _) = this.listen("127.0.0.1:0", None).await;
        (this, format!("[audit.otlp]\naddress = \"http://{address}\""))
    }

    fn answers(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    fn records(&self) -> Vec<LogRecord> {
        let requests = self.requests.lock().unwrap();
        let resources = requests.iter().flat_map(|request| &request.resource_logs);
        resources.flat_map(|resource| &resource.scope_logs).flat_map(|scope| scope.log_records.clone()).collect()
    }

    /// The bodies, each once: after a failure some come again.
    fn lines(&self) -> Vec<String> {
        let mut seen = HashSet::new();
        self.records().iter().map(body).filter(|line| seen.insert(line.clone())).collect()
    }

    async fn has_all_of(&self, audit: &Audit) {
        let all = || std::fs::read_to_string(audit.file()).unwrap().lines().map(str::to_owned).collect::<Vec<_>>();
        until("the collector has all records", async || self.lines() == all()).await;
    }
}

fn body(record: &LogRecord) -> String {
    match record.body.as_ref().and_then(|body| body.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        other => panic!("{other:?}"),
    }
}

async fn run_some(agent: &Agent, count: usize) {
    let executor = agent.executor().await;
    for number in 0..count {
        run(&executor, Command::shell(format!("echo {number} 'é\"\t'"))).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_a_log_record() {
    let ((collector, table), audit) = (Collector::start().await, Audit::new());
    let policy = r#"permit(principal, action, resource);
        forbid(principal, action in Action::"start", resource) when { context.command like "*secret*" };"#;
    let agent = audit.agent(&table).policy(policy).start();
    run_some(&agent, 20).await;
    run(&agent.executor().await, Command::shell("echo secret")).await.unwrap_err();
    audit.wait("denied", 1).await;
    collector.has_all_of(&audit).await;
    let received = audit.file().with_file_name("received");
    std::fs::write(&received, collector.lines().join("\n") + "\n").unwrap();
    let (code, said) = verify(&[&received]).await;
    assert!(code == 0 && said.starts_with("valid: 42 records"), "{said}");
    for (record, line) in collector.records().iter().zip(audit.records()) {
        let event = line["event"].as_str().unwrap();
        assert_eq!(record.event_name, format!("telexec.audit.{event}"));
        let severity = if event == "denied" { (13, "WARN") } else { (9, "INFO") };
        assert_eq!((record.severity_number, record.severity_text.as_str()), severity);
        let time = nanos_since_epoch(line["time"].as_str().unwrap());
        assert_eq!(record.time_unix_nano, time);
        assert!(record.observed_time_unix_nano >= record.time_unix_nano);
        let seq = record.attributes.iter().find(|attribute| attribute.key == "telexec.audit.seq").unwrap();
        assert_eq!(seq.value.as_ref().unwrap().value, Some(Value::IntValue(line["seq"].as_i64().unwrap())));
    }
    let request = collector.requests.lock().unwrap()[0].clone();
    let resource = request.resource_logs[0].resource.clone().unwrap();
    let name = resource.attributes.iter().find(|attribute| attribute.key == "service.name").unwrap();
    assert_eq!(name.value.as_ref().unwrap().value, Some(Value::StringValue("telexecd".to_owned())));
}

/// Of a time as in a record.
fn nanos_since_epoch(time: &str) -> u64 {
    let parsed = time::OffsetDateTime::parse(time, &time::format_description::well_known::Rfc3339).unwrap();
    u64::try_from(parsed.unix_timestamp_nanos()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_missing_after_failures_and_restarts() {
    let (collector, audit) = (Collector::default(), Audit::new());
    // nobody listens yet
    // of its own: other tests take no port of it
    let free = format!("127.90.{}.{}:4317", fastrand::u8(..), fastrand::u8(1..255));
    let table = format!("[audit.otlp]\naddress = \"http://{free}\"");
    let mut agent = audit.agent(&table).start();
    run_some(&agent, 5).await;
    until("it is reported", async || agent.log().contains("cannot be sent to the OpenTelemetry collector")).await;
    let (_, serving) = collector.listen(&free, None).await;
    collector.has_all_of(&audit).await;
    collector.answers(Answer::Fails);
    run_some(&agent, 5).await;
    until("it is reported", async || agent.log().contains("busy")).await;
    collector.answers(Answer::Accepts);
    collector.has_all_of(&audit).await;
    serving.abort();
    let _ = serving.await;
    run_some(&agent, 5).await;
    let (_, serving) = collector.listen(&free, None).await;
    collector.has_all_of(&audit).await;
    assert!(agent.log().contains("the audit log is sent to the OpenTelemetry collector"), "{}", agent.log());
    // the last records are sent before it ends, and not again
    agent.terminate().await;
    collector.has_all_of(&audit).await;
    let before = collector.records().len();
    let mut agent = audit.agent(&table).start();
    run_some(&agent, 1).await;
    agent.terminate().await;
    collector.has_all_of(&audit).await;
    assert_eq!(collector.records().len() - before, 4, "opened, start, end, closed");
    serving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_collector_rejects_is_counted_and_not_sent_again() {
    let ((collector, table), audit) = (Collector::start().await, Audit::new());
    collector.answers(Answer::Rejects(1));
    let agent = audit.agent(&table).args(["--metrics-listen", "tcp://127.0.0.1:0"]).start();
    until("it is reported", async || agent.log().contains("the collector rejects records of the audit log")).await;
    assert!(agent.log().contains("too\\\\nold"), "{}", agent.log());
    collector.answers(Answer::Accepts);
    run_some(&agent, 3).await;
    collector.has_all_of(&audit).await;
    let scrape = Scrape::of(&agent).await;
    assert!(scrape.value("telexec_audit_otlp_lost_records_total") >= 1.0, "{}", scrape.text);
    assert_eq!(scrape.value("telexec_audit_otlp_failing"), 0.0);
    assert_eq!(collector.records().len(), collector.lines().len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_hangs_holds_up_nothing() {
    let ((collector, table), audit) = (Collector::start().await, Audit::new());
    collector.answers(Answer::Hangs);
    let mut agent = audit.agent(&table).start();
    run_some(&agent, 20).await;
    audit.wait("end", 20).await;
    until("it is reported", async || agent.log().contains("the collector does not acknowledge the records")).await;
    agent.terminate().await;
    super::assert_whole(&audit).await;
    collector.answers(Answer::Accepts);
    let agent = audit.agent(&table).start();
    run_some(&agent, 1).await;
    collector.has_all_of(&audit).await;
}

/// What was acknowledged is known to the next agent, however the last one ends.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_killed_repeats_only_what_was_not_acknowledged() {
    let ((collector, table), audit) = (Collector::start().await, Audit::new());
    let mut agent = audit.agent(&table).start();
    run_some(&agent, 5).await;
    collector.has_all_of(&audit).await;
    let before = collector.records().len();
    collector.answers(Answer::Fails);
    run_some(&agent, 5).await;
    until("it is reported", async || agent.log().contains("busy")).await;
    agent.signal(rustix::process::Signal::KILL);
    agent.ended().await;
    collector.requests.lock().unwrap().clear();
    collector.answers(Answer::Accepts);
    let agent = audit.agent(&table).start();
    let all = || std::fs::read_to_string(audit.file()).unwrap().lines().count();
    until("the rest arrives", async || before + collector.records().len() == all()).await;
    drop(agent);
}

/// Before any of it was delivered, and by the agent before.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_removed_before_it_was_sent_is_reported() {
    let ((collector, table), audit) = (Collector::start().await, Audit::new());
    collector.answers(Answer::Fails);
    let config = format!("max_bytes = 20000\nkeep = 1\n{table}");
    let mut agent = audit.agent(&config).start();
    run_some(&agent, 100).await;
    agent.terminate().await;
    collector.answers(Answer::Accepts);
    let agent = audit.agent(&config).args(["--metrics-listen", "tcp://127.0.0.1:0"]).start();
    until("it is reported", async || agent.log().contains("records of the audit log were removed before")).await;
    let scrape = Scrape::of(&agent).await;
    assert!(scrape.value("telexec_audit_otlp_lost_records_total") > 50.0, "{}", scrape.text);
}

/// A collector, or a proxy, closes connections that are idle.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_the_collector_closes_is_no_failure() {
    let (collector, audit) = (Collector::default(), Audit::new());
    let address = format!("127.91.{}.{}:4317", fastrand::u8(..), fastrand::u8(1..255));
    let (_, mut serving) = collector.listen(&address, None).await;
    let table = format!("[audit.otlp]\naddress = \"http://{address}\"");
    let agent = audit.agent(&table).args(["--metrics-listen", "tcp://127.0.0.1:0"]).start();
    for _ in 0..3 {
        run_some(&agent, 1).await;
        collector.has_all_of(&audit).await;
        let pending = async || Scrape::of(&agent).await.value("telexec_audit_otlp_pending_records");
        until("they are acknowledged", async || pending().await == 0.0).await;
        serving.abort();
        let _ = serving.await;
        (_, serving) = collector.listen(&address, None).await;
    }
    assert!(!agent.log().contains("cannot be sent"), "{}", agent.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_destination_does_not_hold_up_another() {
    let ((collector, table), audit) = (Collector::start().await, Audit::new());
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let syslog = format!("[audit.syslog]\naddress = \"tcp://{}\"", silent.local_addr().unwrap());
    let agent = audit.agent(&format!("{syslog}\n{table}")).start();
    run_some(&agent, 5).await;
    audit.wait("end", 5).await;
    collector.has_all_of(&audit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_has_the_trace_of_its_call() {
    let ((collector, table), audit) = (Collector::start().await, Audit::new());
    let agent = audit.agent(&table).start();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let header = format!("traceparent: {trace}");
    let call = telexec_tests::Grpcurl::new(&agent).options(["-H", &header]);
    let answer = call.call("telexec.v1.ExecutionService/Run", &serde_json::json!({ "argv": ["true"] })).await;
    assert_eq!(answer.code, 0, "{answer:?}");
    audit.wait("start", 1).await;
    collector.has_all_of(&audit).await;
    let start = collector.records().into_iter().find(|record| record.event_name == "telexec.audit.start").unwrap();
    assert_eq!(start.trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_right_collector_gets_the_records() {
    let (ca, other) = (Ca::new("logs"), Ca::new("other"));
    let (server, client) = (ca.issue(Leaf::server("logs.example.org")), ca.issue(Leaf::client("web1")));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls::pki_types::CertificateDer::from_pem_file(ca.cert()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider)).build().unwrap();
    let tls = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let tls = tls.with_client_cert_verifier(clients);
    let key = PrivateKeyDer::from_pem_file(&server.key).unwrap();
    let mut tls = tls.with_single_cert(vec![server.der()], key).unwrap();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let (collector, audit) = (Collector::default(), Audit::new());
    let (address, _serving) = collector.listen("127.0.0.1:0", Some(tls.into())).await;
    let table = |ca: &Ca, name: &str, pair: &str| {
        let ca = ca.cert();
        format!("[audit.otlp]\naddress = \"https://{address}\"\nca = {ca:?}\nserver_name = {name:?}\n{pair}")
    };
    let pair = format!("cert = {:?}\nkey = {:?}", client.cert, client.key);
    let mut logs = String::new();
    for (wrong, message) in [
        (
            table(&other, "logs.example.org", &pair),
            "none of the CAs in audit.otlp.ca has issued the server's certificate",
        ),
        (table(&ca, "elsewhere.example.org", &pair), "not valid for name"),
        (table(&ca, "logs.example.org", ""), "cannot be sent to the OpenTelemetry collector"),
    ] {
        let agent = audit.agent(&wrong).start();
        run_some(&agent, 1).await;
        until(message, async || agent.log().contains(message)).await;
        logs += &agent.log();
    }
    shows("none of the CAs in audit.otlp.ca has issued the server's certificate", &logs);
    assert!(collector.records().is_empty());
    let agent = audit.agent(&table(&ca, "logs.example.org", &pair)).start();
    run_some(&agent, 1).await;
    collector.has_all_of(&audit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_setting_is_refused() {
    for (table, fault) in [
        ("address = \"grpc://localhost:4317\"", "audit.otlp.address: expected https://HOST:PORT, or http://HOST:PORT"),
        ("address = \"http://192.0.2.1:4317\"", "use https://"),
        ("address = \"http://localhost:4318/v1/logs\"", "audit.otlp.address: expected HOST:PORT"),
        ("address = \"https://localhost:4317\"", "audit.otlp.ca: is required with https://"),
        ("address = \"https://localhost:4317\"\nca = \"missing.pem\"", "missing.pem"),
        ("address = \"http://localhost:4317\"\nheader = \"x\"", "header"),
    ] {
        let refused = Audit::new().agent(&format!("[audit.otlp]\n{table}")).try_start().err().unwrap();
        assert!(refused.log.contains(fault), "{table}: {}", refused.log);
    }
}

/// Rotel, which listens at `grpc`, and is given more arguments.
pub(super) async fn rotel(grpc: &str, args: &[&str], printed: Stdio) -> tokio::process::Child {
    let python =
        std::env::var_os("ROTEL_PYTHON").expect("ROTEL_PYTHON names no python: run tests/run, which makes one");
    let found = "import pathlib, rotel; print(pathlib.Path(rotel.__file__).with_name('rotel-agent'))";
    let found = std::process::Command::new(python).args(["-c", found]).output().unwrap();
    let program = String::from_utf8(found.stdout).unwrap();
    let mut rotel = tokio::process::Command::new(program.trim());
    let http = grpc.replace("4317", "4318");
    rotel.args(["start", "--otlp-grpc-endpoint", grpc, "--otlp-http-endpoint", &http]).args(args);
    rotel.stdin(Stdio::null()).stdout(printed).stderr(Stdio::null());
    let rotel = rotel.kill_on_drop(true).spawn().unwrap();
    until("it listens", async || tokio::net::TcpStream::connect(grpc).await.is_ok()).await;
    rotel
}

/// Rotel, unmodified, receives the records, and prints them.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_has_each_record_as_it_is() {
    let (audit, directory) = (Audit::new(), telexec_tests::directory());
    // of its own: other tests take no port of it
    let grpc = format!("127.89.{}.{}:4317", fastrand::u8(..), fastrand::u8(1..255));
    let printed = directory.path().join("printed");
    let args = ["--exporter", "blackhole", "--debug-log", "logs", "--debug-log-verbosity", "detailed"];
    let _rotel = rotel(&grpc, &args, std::fs::File::create(&printed).unwrap().into()).await;
    let agent = audit.agent(&format!("[audit.otlp]\naddress = \"http://{grpc}\"")).start();
    run_some(&agent, 20).await;
    audit.wait("end", 20).await;
    let all = || std::fs::read_to_string(audit.file()).unwrap().lines().map(str::to_owned).collect::<Vec<_>>();
    until("it has all records", async || {
        let text = std::fs::read_to_string(&printed).unwrap();
        let mut seen = HashSet::new();
        let bodies = text.lines().filter_map(|line| line.strip_prefix("Body: Str(")?.strip_suffix(')'));
        bodies.filter(|body| seen.insert(body.to_owned())).map(str::to_owned).collect::<Vec<_>>() == all()
    })
    .await;
}
