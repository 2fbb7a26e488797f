//! Who may send records, which, and how many.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use telexec_tests::{Agent, Certs, Leaf, Scrape, until};
use tonic::Code;
use tonic::codec::CompressionEncoding;

use super::super::Audit;
use super::{Chain, Collected, Sender, own_name, record, sealed, text};
use crate::cli::troubleshooting::shows;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_record_is_rejected() {
    let collected = Collected::new();
    let collector = collected.collector("").args(["--metrics-listen", "tcp://127.0.0.1:0"]).start();
    let mut sender = Sender::new(&collector).await;
    let lines = Chain::new("e").lines(3, 0);
    let mut numbered_0 = Chain { seq: u64::MAX, ..Chain::new("e") };
    let record_of = |fields: &str| sealed(&format!("{fields},\"prev\":\"p\""));
    let long = record_of(&format!(r#"{{"seq":"{}","time":"t","event":"e""#, "x".repeat(900_000)));
    for (wrong, reason) in [
        ("hello".to_owned(), "it does not end with a hash"),
        (String::new(), "it does not end with a hash"),
        (lines[0].replacen("\"e\"", "\"f\"", 1), "its hash does not match"),
        (record_of("{\"seq\":1,\n\"time\":\"t\",\"event\":\"e\""), "it has a newline"),
        // whose numbers could not be found again
        (record_of(r#" {"seq":1,"time":"t","event":"e""#), "no agent writes it so"),
        (record_of(r#"{"seq":1,"time":"t","event":"e","trace_id":1"#), "expected a string"),
        (numbered_0.lines(1, 0).remove(0), "its number is 0"),
        ("x".repeat(2 << 20), "longer than 1 MiB"),
        (long, "[cut]"),
    ] {
        let rejected = sender.send(&[wrong]).await.unwrap().unwrap();
        assert_eq!(rejected.rejected_log_records, 1);
        assert!(rejected.error_message.contains(reason) && rejected.error_message.len() < 600, "{rejected:?}");
    }
    for wrong in [Value::IntValue(1), Value::BytesValue(lines[0].clone().into_bytes())] {
        let rejected = sender.send_records(vec![record(wrong)]).await.unwrap().unwrap();
        assert_eq!(
            (rejected.rejected_log_records, &*rejected.error_message),
            (1, "the body of a log record is not a string")
        );
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
    let too_long = compressed.send_records(bomb).await.unwrap_err();
    assert_eq!(too_long.code(), Code::ResourceExhausted, "{too_long}");
    // without a body, and more than an agent's own requests have
    let empty = sender.send_records(vec![LogRecord::default(); 100_000]).await.unwrap().unwrap();
    assert_eq!(empty.rejected_log_records, 100_000);
    let unrelated: Vec<_> = (0..100).flat_map(|more| Chain::new("unrelated").lines(1, more)).collect();
    let rejected = sender.send(&unrelated).await.unwrap().unwrap();
    assert_eq!(rejected.rejected_log_records, 92, "{rejected:?}");
    assert_eq!(Scrape::of(&collector).await.sum("telexec_audit_collector_rejected_records_total") as i64, {
        11 + 1 + 100_000 + rejected.rejected_log_records
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
    until("it is reported", async || collector.log().contains("are refused")).await;
    shows("records of an agent's audit log are refused", &collector.log());
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
    let other = Agent::builder().tcp().start();
    let sent = Audit::new();
    let sender = sent.agent(&format!("[audit.otlp]\naddress = \"http://{}\"", other.address())).start();
    until("it is reported", async || sender.log().contains("does not collect")).await;
    shows("what listens there does not collect logs", &sender.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_setting_is_refused() {
    let directory = "directory = \"/nonexistent/x\"";
    for (table, fault) in [
        ("".to_owned(), "missing field `directory`"),
        ("directory = \"logs\"".to_owned(), "audit_collector.directory: logs is not an absolute path"),
        ("directory = \"/etc\"".to_owned(), "use a directory for nothing else"),
        ("directory = \"/etc/passwd\"".to_owned(), "not a directory"),
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

/// Each file and directory counts as 4 KiB more, as it is known, and as it is found by the next agent.
#[tokio::test(flavor = "multi_thread")]
async fn what_it_takes_is_what_is_there() {
    let collected = Collected::new();
    let collector = || collected.collector("").args(["--metrics-listen", "tcp://127.0.0.1:0"]).start();
    let counted = async |collector: &Agent| Scrape::of(collector).await.value("telexec_audit_collector_bytes") as usize;
    let mut running = collector();
    let mut sender = Sender::new(&running).await;
    let (mut chain, mut other) = (Chain::new("e"), Chain::new("e"));
    let all = chain.lines(100, 0);
    for line in &all {
        sender.deliver(std::slice::from_ref(line)).await;
    }
    let length = text(&all).len();
    assert_eq!(counted(&running).await, length + 3 * 4096);
    let other = other.lines(5, 1);
    sender.deliver(&other).await;
    let length = length + text(&other).len() + 5 * 4096;
    assert_eq!(counted(&running).await, length);
    running.terminate().await;
    running = collector();
    assert_eq!(counted(&running).await, length);
}
