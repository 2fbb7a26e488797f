//! What is kept, of records that arrive once, again, or not at all.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use telexec_tests::{Scrape, until};

use super::super::verify;
use super::{Chain, Collected, Sender, list, own_name, text};
use crate::cli::troubleshooting::shows;

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
    let log = || collector.log();
    until("it is reported", async || log().contains("records between these")).await;
    shows("records between these are missing in the audit log of an agent", &log());
    // what was acknowledged, but the agent does not know
    sender.deliver(&[&first[8..], &after[..]].concat()).await;
    sender.deliver(&first[..3]).await;
    // a log that is as long, another that is shorter, and one that goes on
    let anew = other.lines(20, 0);
    sender.deliver(&anew[..15]).await;
    until("it is reported", async || log().contains("another audit log")).await;
    shows("an agent sends another audit log than before", &log());
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

/// Of the same log, as a file that was restored on its machine.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_missing_may_come_later() {
    let (collected, all) = (Collected::new(), Chain::new("e").lines(120, 0));
    let collector = collected.collector("").start();
    let mut sender = Sender::new(&collector).await;
    for range in [0..10, 79..100, 69..85] {
        sender.deliver(&all[range]).await;
    }
    sender.deliver(&all[4..]).await;
    sender.deliver(&all).await;
    let kept: Vec<_> =
        collected.segments(&own_name()).iter().map(|log| std::fs::read_to_string(log).unwrap()).collect();
    assert_eq!(kept, [text(&all[..10]), text(&all[79..100]), text(&all[69..85]), text(&all[4..]), text(&all)]);
}

/// By a power cut, or a disk that fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_with_an_unusable_end_is_repaired() {
    let (collected, all) = (Collected::new(), Chain::new("e").lines(10, 0));
    let mut collector = collected.collector("").start();
    Sender::new(&collector).await.deliver(&all[..5]).await;
    collector.terminate().await;
    let log = collected.segments(&own_name()).remove(0);
    let torn = text(&all[..5]) + &all[5][..20];
    std::fs::write(&log, &torn).unwrap();
    // and what an attempt that failed has left
    std::fs::create_dir(log.parent().unwrap().with_file_name("000002")).unwrap();
    let collector = collected.collector("").start();
    Sender::new(&collector).await.deliver(&all[5..]).await;
    assert_eq!(collected.of(&own_name()), text(&all));
    until("it is reported", async || collector.log().contains("the unusable end of a collected audit log was moved"))
        .await;
    // something else has changed it while it is used
    std::fs::write(&log, text(&all[..8])).unwrap();
    let mut chain = Chain::new("e");
    chain.lines(10, 0);
    let more = chain.lines(1, 0);
    let mut sender = Sender::new(&collector).await;
    let refused = sender.send(&more).await.unwrap_err();
    assert!(refused.message().contains("the file was changed by something else"), "{refused}");
    sender.deliver(&more).await;
    let kept: Vec<_> =
        collected.segments(&own_name()).iter().map(|log| std::fs::read_to_string(log).unwrap()).collect();
    assert_eq!(kept, [text(&all[..8]), text(&more)]);
}

/// And what is in the files before it is found.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_full_is_rotated() {
    let (collected, mut chain) = (Collected::new(), Chain::new("e"));
    let mut collector = collected.collector("").args(["--metrics-listen", "tcp://127.0.0.1:0"]).start();
    let mut sender = Sender::new(&collector).await;
    // it begins later, and is named by its first record
    chain.lines(100, 0);
    let first = chain.lines(4, 900_000);
    sender.deliver(&first).await;
    let mut count = first.len();
    let log = collected.segments(&own_name()).remove(0);
    let rotated = log.with_file_name("audit.log.000000000101");
    while !rotated.exists() {
        sender.deliver(&chain.lines(4, 900_000)).await;
        count += 4;
    }
    sender.deliver(&first).await;
    assert!(rotated.metadata().unwrap().len() <= 64 << 20 && count > 70, "{count}");
    let (code, said) = verify(&[&log]).await;
    assert!(code == 0 && said.starts_with(&format!("valid: {count} records in 2 files")), "{said}");
    let scrape = Scrape::of(&collector).await;
    assert_eq!(scrape.value("telexec_audit_collector_breaks_total"), 0.0);
    assert_eq!(scrape.value("telexec_audit_collector_repeated_records_total"), 4.0);
    let bytes = rotated.metadata().unwrap().len() + log.metadata().unwrap().len() + 4 * 4096;
    assert_eq!(scrape.value("telexec_audit_collector_bytes") as u64, bytes);
    until("it is reported", async || collector.log().contains("whose earlier records are not here")).await;
    // killed after it was rotated
    collector.terminate().await;
    std::fs::remove_file(&log).unwrap();
    let kept = std::fs::read_to_string(&rotated).unwrap().lines().count();
    let collector = collected.collector("").start();
    let mut chain = Chain::new("e");
    chain.lines(100, 0);
    let again = chain.lines(4 + kept, 900_000);
    Sender::new(&collector).await.deliver(&again[kept - 2..kept + 2]).await;
    assert_eq!(std::fs::read_to_string(&log).unwrap(), text(&again[kept..kept + 2]));
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
    let gone = collected.directory().join("gone.audit/000001/audit.log");
    std::fs::create_dir_all(gone.parent().unwrap()).unwrap();
    std::fs::write(&gone, text(&all)).unwrap();
    set_age(&gone, 91);
    let mut collector = collected.collector("").start();
    until("another one is removed", async || !collected.directory().join("gone.audit").exists()).await;
    assert_eq!(collected.of(&own_name()), text(&all[..10]));
    Sender::new(&collector).await.deliver(&all[10..20]).await;
    assert_eq!(collected.of(&own_name()), text(&all[..20]));
    collector.terminate().await;
    let silent = async |days: &str| list(&["--silent-for", days, collected.directory().to_str().unwrap()]).await;
    set_age(&segment, 3);
    assert_eq!(silent("4d").await, (1, String::new()));
    let (code, said) = silent("2d").await;
    assert!(code == 0 && said.lines().count() == 2 && said.contains(&own_name()), "{said}");
    set_age(&segment, 91);
    let collector = collected.collector("").args(["--metrics-listen", "tcp://127.0.0.1:0"]).start();
    until("it is removed", async || collected.segments(&own_name()).is_empty()).await;
    until("it is reported", async || collector.log().contains("removed collected records that were too old")).await;
    // which is no break
    Sender::new(&collector).await.deliver(&all[20..]).await;
    assert_eq!(collected.of(&own_name()), text(&all[20..]));
    assert_eq!(Scrape::of(&collector).await.value("telexec_audit_collector_breaks_total"), 0.0);
    assert_eq!(Scrape::of(&collector).await.value("telexec_audit_collector_agents"), 1.0);
}
