//! Records that are sent to another agent, which keeps them.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsPartialSuccess, ExportLogsServiceRequest};
use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use rustix::process::Signal;
use telexec_executor::Command;
use telexec_tests::{Agent, AgentBuilder, Certs, Hierarchy, Leaf, Pair, Scrape, Wire, is_root, run, until, within};
use tempfile::TempDir;
use tonic::codec::CompressionEncoding;
use tonic::{Code, Status};

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
            self.seq += 1;
            let (seq, prev, event, more) = (self.seq, &self.prev, self.event, "x".repeat(more));
            let text =
                format!("{{\"seq\":{seq},\"time\":\"t\",\"event\":\"{event}\",\"more\":\"{more}\",\"prev\":\"{prev}\"");
            self.prev = telexec_receipt::sha256(text.as_bytes()).unwrap();
            format!("{text},\"hash\":\"{}\"}}", self.prev)
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

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sent_again_is_kept_once() {
    let (collected, mut chain) = (Collected::new(), Chain::new("e"));
    let all = chain.lines(100, 0);
    let mut collector = collected.collector("").start();
    let mut sender = Sender::new(&collector).await;
    for range in [0..40, 0..40, 10..30, 39..40, 0..50, 49..60] {
        sender.deliver(&all[range]).await;
    }
    assert_eq!(collected.of(&own_name()), text(&all[..60]));
    collector.signal(Signal::KILL);
    collector.ended().await;
    let collector = collected.collector("").args(["--metrics-listen", "tcp://127.0.0.1:0"]).start();
    let mut sender = Sender::new(&collector).await;
    for range in [0..10, 5..70, 70..100, 0..100] {
        sender.deliver(&all[range]).await;
    }
    assert_eq!(collected.of(&own_name()), text(&all));
    let scrape = Scrape::of(&collector).await;
    for (metric, value) in [("stored", 40.0), ("repeated", 10.0 + 55.0 + 100.0), ("rejected", 0.0)] {
        assert_eq!(scrape.value(&format!("telexec_audit_collector_{metric}_records_total")), value, "{metric}");
    }
    assert_eq!(scrape.value("telexec_audit_collector_breaks_total"), 0.0);
    assert_eq!(scrape.value("telexec_audit_collector_agents"), 1.0);
    assert!(scrape.value("telexec_audit_collector_bytes") > text(&all).len() as f64);
}

/// An intruder who changes the log, or removes some of it, does not reach what was collected.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_was_changed_is_reported_and_kept_apart() {
    let collected = Collected::new();
    let collector = collected.collector("").args(["--metrics-listen", "tcp://127.0.0.1:0"]).start();
    let mut sender = Sender::new(&collector).await;
    let (mut before, mut other) = (Chain::new("before"), Chain::new("other"));
    let first = before.lines(10, 0);
    sender.deliver(&first).await;
    // removed before they were sent
    before.lines(5, 0);
    let after = before.lines(5, 0);
    sender.deliver(&after).await;
    until("it is reported", async || collector.log().contains("records are missing in the audit log of an agent"))
        .await;
    // a log that is as long, another that is shorter, and one that goes on
    let anew = other.lines(20, 0);
    sender.deliver(&anew[..15]).await;
    until("it is reported", async || collector.log().contains("the audit log of an agent is another one")).await;
    sender.deliver(&anew[15..]).await;
    sender.deliver(&Chain::new("third").lines(3, 0)).await;
    let logs: Vec<_> = collected.segments(&own_name());
    let kept: Vec<_> = logs.iter().map(|log| std::fs::read_to_string(log).unwrap()).collect();
    let third = Chain::new("third").lines(3, 0);
    assert_eq!(kept, [text(&first), text(&after), text(&anew), text(&third)]);
    for log in &logs {
        let (code, said) = verify(&[log]).await;
        assert!(code == 0, "{said}");
    }
    assert_eq!(Scrape::of(&collector).await.value("telexec_audit_collector_breaks_total"), 3.0);
    let (_, said) = list(&[collected.directory().to_str().unwrap()]).await;
    let rows: Vec<Vec<_>> =
        said.lines().skip(1).map(|line| line.split_whitespace().skip(1).take(2).collect()).collect();
    assert_eq!(rows, [["1", "10"], ["16", "20"], ["1", "20"], ["1", "3"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_record_is_rejected() {
    let collected = Collected::new();
    let collector = collected.collector("").args(["--metrics-listen", "tcp://127.0.0.1:0"]).start();
    let mut sender = Sender::new(&collector).await;
    let lines = Chain::new("e").lines(3, 0);
    let within_newline = lines[0].replacen(",\"time\"", ",\n\"time\"", 1);
    for wrong in [
        Value::StringValue("hello".to_owned()),
        Value::StringValue(String::new()),
        Value::StringValue(lines[0].replacen("\"e\"", "\"f\"", 1)),
        Value::StringValue(within_newline),
        Value::StringValue("x".repeat(2 << 20)),
        Value::IntValue(1),
        Value::BytesValue(lines[0].clone().into_bytes()),
    ] {
        let rejected = sender.send_records(vec![record(wrong.clone())]).await.unwrap().unwrap();
        assert!(rejected.rejected_log_records == 1 && !rejected.error_message.is_empty(), "{rejected:?}");
    }
    // beside them the others are stored; those after one that was changed do not follow
    let mixed = [lines[0].clone(), "hello".to_owned(), lines[1].clone()];
    let rejected = sender.send(&mixed).await.unwrap().unwrap();
    assert_eq!(rejected.rejected_log_records, 1);
    assert!(rejected.error_message.contains("it is not an audit record"), "{rejected:?}");
    sender.deliver(&lines[2..]).await;
    assert_eq!(collected.of(&own_name()), text(&lines));
    // decompressed it is too long
    let bomb = vec![record(Value::StringValue("x".repeat(8 << 20)))];
    let mut compressed = Sender::new(&collector).await;
    compressed.0 = compressed.0.send_compressed(CompressionEncoding::Gzip);
    compressed.deliver(&lines).await;
    compressed.send_records(bomb).await.unwrap_err();
    // without a body, and more than an agent's own requests have
    let empty = sender.send_records(vec![LogRecord::default(); 100_000]).await.unwrap().unwrap();
    assert_eq!(empty.rejected_log_records, 100_000);
    let unrelated: Vec<_> = (0..100).flat_map(|_| Chain::new("unrelated").lines(1, 0)).collect();
    let rejected = sender.send(&unrelated).await.unwrap().unwrap();
    assert!(rejected.rejected_log_records > 90, "{rejected:?}");
    assert_eq!(Scrape::of(&collector).await.sum("telexec_audit_collector_rejected_records_total") as i64, {
        7 + 1 + 100_000 + rejected.rejected_log_records
    });
}

/// Nothing is removed to make room, however much is sent: an intruder could do that to hide what is there.
#[tokio::test(flavor = "multi_thread")]
async fn an_identity_fills_its_share_and_no_more() {
    let (certs, collected) = (Certs::new(), Collected::new());
    let other = certs.ca.issue(Leaf::client("other"));
    let limits = "max_bytes_per_identity = 9000000\nmax_total_bytes = 12000000";
    let collector = collected.collector(limits).mtls(&certs).start();
    let (mut chain, mut others) = (Chain::new("e"), Chain::new("e"));
    let mut sender = Sender::with(&collector, &certs, &certs.client).await;
    let mut all = Vec::new();
    let refused = loop {
        let lines = chain.lines(3, 900_000);
        all.extend(lines.clone());
        match sender.send(&lines).await {
            Ok(rejected) => assert_eq!(rejected, None),
            Err(refused) => break refused,
        }
    };
    assert_eq!((refused.code(), all.len()), (Code::ResourceExhausted, 12));
    assert!(refused.message().contains("audit_collector.max_bytes_per_identity"), "{refused}");
    until("it is reported", async || collector.log().contains("records of an agent's audit log are refused")).await;
    assert_eq!(collected.of("client"), text(&all[..9]));
    // what is left of the total
    let mut second = Sender::with(&collector, &certs, &other).await;
    second.deliver(&others.lines(3, 900_000)).await;
    let refused = second.send(&others.lines(3, 900_000)).await.unwrap_err();
    assert!(refused.message().contains("audit_collector.max_total_bytes"), "{refused}");
    // a third leaves nothing behind
    let third = certs.ca.issue(Leaf::client("third"));
    let mut third = Sender::with(&collector, &certs, &third).await;
    third.send(&Chain::new("e").lines(3, 900_000)).await.unwrap_err();
    assert_eq!(std::fs::read_dir(collected.directory()).unwrap().count(), 3, "two, and the lock");
    drop(collector);
    // with more room it goes on where it was
    let collector = collected.collector("").mtls(&certs).start();
    Sender::with(&collector, &certs, &certs.client).await.deliver(&all[9..]).await;
    assert_eq!(collected.of("client"), text(&all));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_is_permitted_sends_records() {
    let (certs, collected, audit) = (Certs::new(), Collected::new(), Audit::new());
    let web1 = certs.ca.issue(Leaf::client("web1"));
    let policy = r#"permit(principal, action in [Action::"start", Action::"read", Action::"files"], resource);
        permit(principal == Identity::"web1", action == Action::"ExportLogs", resource);"#;
    let config = audit.config(&collected.config(""));
    let collector = Agent::builder().config(config).mtls(&certs).policy(policy).start();
    let lines = Chain::new("e").lines(1, 0);
    let denied = Sender::with(&collector, &certs, &certs.client).await.send(&lines).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied, "{denied}");
    let denied = audit.wait("call", 1).await;
    assert_eq!((&denied[0]["rpc"], &denied[0]["identity"]), (&"ExportLogs".into(), &"client".into()));
    Sender::with(&collector, &certs, &web1).await.deliver(&lines).await;
    assert_eq!(collected.of("web1"), text(&lines));
    assert!(!collected.directory().join("client.audit").exists());
    // who does not collect has no such service
    let other = Agent::builder().mtls(&certs).start();
    let unknown = Sender::with(&other, &certs, &web1).await.send(&lines).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);
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

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_setting_is_refused() {
    let directory = "directory = \"/nonexistent/x\"";
    for (table, fault) in [
        ("".to_owned(), "missing field `directory`"),
        ("directory = \"logs\"".to_owned(), "audit_collector.directory: expected an absolute path"),
        (
            format!("{directory}\nmax_total_bytes = 1"),
            "audit_collector.max_total_bytes: expected at least 8388608 bytes",
        ),
        (format!("{directory}\nmax_age = 90"), "max_age"),
        ("directory = \"/proc/collected\"".to_owned(), "cannot keep the audit logs of other agents in /proc/collected"),
    ] {
        let refused = Agent::builder().config(format!("[audit_collector]\n{table}")).try_start().err().unwrap();
        assert!(refused.log.contains(fault), "{table}: {}", refused.log);
    }
    let collected = Collected::new();
    let _first = collected.collector("").start();
    let refused = collected.collector("").try_start().err().unwrap();
    assert!(refused.log.contains("another agent writes to it"), "{}", refused.log);
}

/// Files that were last written long ago are removed, of agents that are gone too.
#[tokio::test(flavor = "multi_thread")]
async fn old_files_are_removed() {
    let (collected, mut chain) = (Collected::new(), Chain::new("e"));
    let all = chain.lines(30, 0);
    let mut collector = collected.collector("").start();
    Sender::new(&collector).await.deliver(&all[..10]).await;
    collector.terminate().await;
    let [segment] = <[PathBuf; 1]>::try_from(collected.segments(&own_name())).unwrap();
    let set_age = |path: &Path, days: u64| {
        let written = SystemTime::now() - Duration::from_secs(days * 24 * 60 * 60);
        std::fs::File::options().append(true).open(path).unwrap().set_modified(written).unwrap();
    };
    set_age(&segment, 89);
    let mut collector = collected.collector("").start();
    Sender::new(&collector).await.deliver(&all[10..20]).await;
    assert_eq!(collected.of(&own_name()), text(&all[..20]));
    collector.terminate().await;
    set_age(&segment, 91);
    let collector = collected.collector("").start();
    until("it is removed", async || collected.segments(&own_name()).is_empty()).await;
    until("it is reported", async || collector.log().contains("removed collected records that were too old")).await;
    // which is no break
    Sender::new(&collector).await.deliver(&all[20..]).await;
    assert_eq!(collected.of(&own_name()), text(&all[20..]));
    assert!(!collector.log().contains("another one"), "{}", collector.log());
}
