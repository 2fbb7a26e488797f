//! Records that are sent to another agent, which keeps them.

mod limits;
mod segments;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Stdio;

use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsPartialSuccess, ExportLogsServiceRequest};
use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use rustix::process::Signal;
use telexec_executor::Command;
use telexec_tests::{Agent, AgentBuilder, Certs, Hierarchy, Leaf, Pair, Wire, is_root, run, until, within};
use tempfile::TempDir;
use tonic::Status;

use super::{Audit, verify};

/// What a collector keeps.
struct Collected(TempDir);

impl Collected {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn directory(&self) -> PathBuf {
        self.0.path().join("collected")
    }

    fn config(&self, more: &str) -> String {
        format!("[audit_collector]\ndirectory = {:?}\n{more}", self.directory())
    }

    /// A collector on a Unix socket, with these settings in the same table.
    fn collector(&self, more: &str) -> AgentBuilder {
        Agent::builder().config(self.config(more))
    }

    /// The current files of this agent's segments, the oldest first.
    fn segments(&self, name: &str) -> Vec<PathBuf> {
        let Ok(segments) = std::fs::read_dir(self.directory().join(format!("{name}.audit"))) else { return Vec::new() };
        let mut segments: Vec<_> = segments.map(|entry| entry.unwrap().path().join("audit.log")).collect();
        segments.sort();
        segments
    }

    fn of(&self, name: &str) -> String {
        let [segment] = <[PathBuf; 1]>::try_from(self.segments(name)).unwrap();
        std::fs::read_to_string(segment).unwrap()
    }

    async fn has_all_of(&self, name: &str, audit: &Audit) {
        let all = || std::fs::read_to_string(audit.file()).unwrap();
        until("the collector has all records", async || self.segments(name).len() == 1 && self.of(name) == all()).await;
    }
}

/// The name of who connects to a Unix socket.
fn own_name() -> String {
    format!("unix:uid={}", rustix::process::getuid().as_raw())
}

/// A line that begins so, with its hash.
fn sealed(text: &str) -> String {
    format!("{text},\"hash\":\"{}\"}}", telexec_receipt::sha256(text.as_bytes()).unwrap())
}

/// A log as an agent writes it.
struct Chain {
    seq: u64,
    prev: String,
    event: &'static str,
}

impl Chain {
    fn new(event: &'static str) -> Self {
        Self { seq: 0, prev: "0".repeat(64), event }
    }

    /// The next lines, each with so many bytes more than it needs.
    fn lines(&mut self, count: usize, more: usize) -> Vec<String> {
        let line = |_| {
            self.seq = self.seq.wrapping_add(1);
            let (seq, prev, event, more) = (self.seq, &self.prev, self.event, "x".repeat(more));
            let text =
                format!("{{\"seq\":{seq},\"time\":\"t\",\"event\":\"{event}\",\"more\":\"{more}\",\"prev\":\"{prev}\"");
            self.prev = telexec_receipt::sha256(text.as_bytes()).unwrap();
            sealed(&text)
        };
        (0..count).map(line).collect()
    }
}

/// Sends log records with these bodies.
struct Sender(LogsServiceClient<Wire>);

impl Sender {
    async fn new(collector: &Agent) -> Self {
        Self::over(Wire::connect(collector).await.unwrap())
    }

    async fn with(collector: &Agent, certs: &Certs, pair: &Pair) -> Self {
        Self::over(Wire::connect_tls(collector, certs.config(Some(pair))).await.unwrap())
    }

    fn over(wire: Wire) -> Self {
        Self(LogsServiceClient::with_origin(wire, Wire::origin()))
    }

    async fn send_records(&mut self, log_records: Vec<LogRecord>) -> Result<Option<ExportLogsPartialSuccess>, Status> {
        let scope_logs = vec![ScopeLogs { log_records, ..ScopeLogs::default() }];
        let resource_logs = vec![ResourceLogs { scope_logs, ..ResourceLogs::default() }];
        let response = within(self.0.export(ExportLogsServiceRequest { resource_logs })).await?;
        Ok(response.into_inner().partial_success)
    }

    async fn send(&mut self, lines: &[String]) -> Result<Option<ExportLogsPartialSuccess>, Status> {
        self.send_records(lines.iter().map(|line| record(Value::StringValue(line.clone()))).collect()).await
    }

    /// All of them are accepted.
    async fn deliver(&mut self, lines: &[String]) {
        assert_eq!(self.send(lines).await.unwrap(), None);
    }
}

fn record(value: Value) -> LogRecord {
    LogRecord { body: Some(AnyValue { value: Some(value) }), ..LogRecord::default() }
}

fn text(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

async fn run_some(agent: &Agent, count: usize) {
    let executor = agent.executor().await;
    for number in 0..count {
        run(&executor, Command::shell(format!("echo {number} 'é\"\t'"))).await.unwrap();
    }
}

/// What `telexecd audit collected` prints.
async fn list(words: &[&str]) -> (i32, String) {
    let mut command = tokio::process::Command::from(telexec_tests::telexecd());
    let output = within(command.args(["audit", "collected"]).args(words).output()).await.unwrap();
    (output.status.code().unwrap_or(-1), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

/// Over mTLS, while both are killed.
#[tokio::test(flavor = "multi_thread")]
async fn another_agent_has_each_record_as_it_is() {
    let (certs, collected, audit) = (Certs::new(), Collected::new(), Audit::new());
    let web1 = certs.ca.issue(Leaf::client("web1"));
    // of its own: other tests take no port of it
    let address = format!("127.92.{}.{}:4317", fastrand::u8(..), fastrand::u8(1..255));
    let policy = r#"permit(principal == Identity::"web1", action == Action::"ExportLogs", resource);"#;
    let collector = || {
        let agent = &certs.agent;
        let tls = [("--tls-cert", &agent.cert), ("--tls-key", &agent.key), ("--client-ca", &certs.ca.cert())];
        let tls = tls.map(|(option, path)| [option.to_owned(), path.to_str().unwrap().to_owned()]);
        let listen = format!("tcp://{address}");
        collected.collector("").listen(&listen).args(tls.into_iter().flatten()).policy(policy).start()
    };
    let table = format!(
        "[audit.otlp]\naddress = \"https://{address}\"\nca = {:?}\nserver_name = \"localhost\"\ncert = {:?}\nkey = {:?}",
        certs.ca.cert(),
        web1.cert,
        web1.key
    );
    let mut running = collector();
    for round in 0..3 {
        let mut agent = audit.agent(&table).start();
        run_some(&agent, 10).await;
        running.signal(Signal::KILL);
        running.ended().await;
        run_some(&agent, 10).await;
        if round == 1 {
            agent.signal(Signal::KILL);
            agent.ended().await;
        } else {
            agent.terminate().await;
        }
        running = collector();
    }
    let agent = audit.agent(&table).start();
    collected.has_all_of("web1", &audit).await;
    let [segment] = <[PathBuf; 1]>::try_from(collected.segments("web1")).unwrap();
    let (code, said) = verify(&[&segment]).await;
    assert!(code == 0 && said.starts_with("valid: "), "{said}");
    drop(agent);
    let (code, said) = list(&[collected.directory().to_str().unwrap()]).await;
    let last = audit.records().len();
    let row = said.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!((code, row[0], row[1], row[2], row[4]), (0, "web1", "1", &*last.to_string(), segment.to_str().unwrap()));
}

/// Rotel, unmodified, passes the records on.
#[tokio::test(flavor = "multi_thread")]
async fn records_may_come_through_another_collector() {
    let (collected, audit) = (Collected::new(), Audit::new());
    let collector = collected.collector("").tcp().start();
    // of its own: other tests take no port of it
    let relay = format!("127.93.{}.{}:4317", fastrand::u8(..), fastrand::u8(1..255));
    let to = format!("http://{}", collector.address());
    // compressed
    let args = ["--exporter", "otlp", "--otlp-exporter-endpoint", &to, "--otlp-exporter-protocol", "grpc"];
    let _rotel = super::otlp::rotel(&relay, &args, Stdio::null()).await;
    let agent = audit.agent(&format!("[audit.otlp]\naddress = \"http://{relay}\"")).start();
    run_some(&agent, 20).await;
    audit.wait("end", 20).await;
    collected.has_all_of("tcp:anonymous", &audit).await;
}

/// With a keeper the agent has a user of its own, and may write nowhere else.
#[tokio::test(flavor = "multi_thread")]
async fn the_collector_may_be_another_user_and_be_upgraded() {
    if !is_root() || Hierarchy::Unified.usable().is_none() {
        return;
    }
    let (collected, mut chain) = (Collected::new(), Chain::new("e"));
    let all = chain.lines(20, 0);
    std::fs::set_permissions(collected.0.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let collector = collected.collector("").agent_user().start();
    Sender::new(&collector).await.deliver(&all[..10]).await;
    crate::keeper::hand_over_and_wait(&collector).await;
    Sender::new(&collector).await.deliver(&all).await;
    assert_eq!(collected.of(&own_name()), text(&all));
    let owner = collected.segments(&own_name())[0].metadata().unwrap().uid();
    assert_ne!(owner, 0);
}
