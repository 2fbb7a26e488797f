//! What recordings may take, and what happens beyond that.

use std::fs::{self, FileTimes};
use std::time::{Duration, SystemTime};

use super::*;
use telexec_tests::{Scrape, marker, processes_with};

/// More than the least limit, and less than two of them.
const MUCH: &str = "head -c 100000 /dev/zero | tr '\\0' x";

#[tokio::test(flavor = "multi_thread")]
async fn what_writes_more_than_one_may_take_is_ended_with_all_its_processes() {
    let audit = Audit::new();
    let agent = audit.recording("max_bytes = 65536").args(["--metrics-listen", "tcp://127.0.0.1:0"]).start();
    let executor = agent.executor().await;
    let mark = marker();
    let text = format!("sleep 300 & {MUCH}; read -r line; echo $line; wait");
    let command = detached(&text).env(telexec_tests::MARK, &mark).descendants(Descendants::Keep);
    let execution = within(executor.execute(command.build().unwrap())).await.unwrap();
    let id = execution.id().clone();
    let exited = exit_of(execution).await;
    assert_eq!(exited.cause, ExitCause::Cancelled);
    until("none of its processes is left", async || processes_with(&mark).is_empty()).await;
    let end = audit.end_of(&id).await;
    let recorded = &end["recording"];
    assert!(recorded["error"].as_str().unwrap().contains("audit.recordings.max_bytes"), "{end}");
    let cast = audit.recorded(&id).await;
    assert!(cast.all("m").contains("the recording ends here"), "{:?}", cast.events.last());
    assert!(agent.log().contains("a recording is incomplete"), "{}", agent.log());
    let scrape = Scrape::of(&agent).await;
    assert_eq!(scrape.value("telexec_audit_recordings_incomplete_total"), 1.0);
    assert!(scrape.value("telexec_audit_recordings_bytes") >= 16384.0);
    let (code, _, said) = audit.play(id.as_str()).await;
    assert!(code == 0 && said.contains("the recording is incomplete"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_missing_records_are_counted_it_runs_on() {
    let audit = Audit::new();
    let agent = audit.recording_with("when_full = \"count\"", "max_bytes = 65536").start();
    let executor = agent.executor().await;
    let outcome = run(&executor, Command::shell(format!("{MUCH}; echo done"))).await.unwrap();
    assert!(outcome.text().ends_with("done\n") && outcome.exited.exit_code() == 0);
    let end = audit.end_of(&outcome.started.id).await;
    assert!(end["recording"]["error"].is_string() && end["recording"]["sha256"].is_null(), "{end}");
    // nor can one be begun
    fs::remove_dir_all(audit.recordings()).unwrap();
    fs::write(audit.recordings(), "").unwrap();
    let outcome = run(&executor, Command::shell("echo done")).await.unwrap();
    assert_eq!(outcome.text(), "done\n");
    let starts = audit.events("start");
    let start = starts.iter().find(|start| start["execution_id"] == outcome.started.id.as_str()).unwrap();
    assert!(start["recording"].is_null() && start["recording_error"].is_string(), "{start}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_recorded_does_not_run() {
    let audit = Audit::new();
    let agent = audit.recording("").start();
    fs::write(audit.recordings(), "").unwrap();
    let ran = audit.0.path().join("ran");
    let refused = run(&agent.executor().await, Command::shell(format!("touch {}", ran.display()))).await;
    let Err(ExecutorError::Exhausted { reason, retry_after: Some(_) }) = &refused else { panic!("{refused:?}") };
    assert!(reason.starts_with("the policy has this recorded, and it cannot be: "), "{reason}");
    assert!(!reason.contains('/'), "{reason}");
    assert!(!ran.exists());
}

/// A short recording counts as 16 KiB.
#[tokio::test(flavor = "multi_thread")]
async fn a_share_is_used_up_until_recordings_are_removed() {
    for (settings, named) in [
        ("max_bytes_per_identity = 65536", "audit.recordings.max_bytes_per_identity"),
        ("max_total_bytes = 65536\nmax_bytes_per_identity = 1000000", "audit.recordings.max_total_bytes"),
    ] {
        let audit = Audit::new();
        let agent = audit.recording(settings).start();
        let executor = agent.executor().await;
        for _ in 0..4 {
            run(&executor, Command::shell("echo x")).await.unwrap();
        }
        let refused = run(&executor, Command::shell("echo x")).await;
        let Err(ExecutorError::Exhausted { reason, .. }) = &refused else { panic!("{refused:?}") };
        assert!(reason.contains(named), "{reason}");
        assert_eq!(run(&executor, Command::shell("uptime")).await.unwrap().exited.exit_code(), 0);
        let files = audit.recorded_files();
        fs::remove_file(audit.recordings().join(&files[0])).unwrap();
        until("there is room again", async || run(&executor, Command::shell("echo x")).await.is_ok()).await;
        // the next agent counts what is there
        drop(agent);
        let agent = audit.recording(settings).start();
        let refused = run(&agent.executor().await, Command::shell("echo x")).await;
        assert!(matches!(&refused, Err(ExecutorError::Exhausted { .. })), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn old_recordings_are_removed() {
    let audit = Audit::new();
    let agent = audit.recording("").start();
    for _ in 0..2 {
        run(&agent.executor().await, Command::shell("echo x")).await.unwrap();
    }
    audit.wait("end", 2).await;
    drop(agent);
    let files = audit.recorded_files();
    let old = fs::File::options().append(true).open(audit.recordings().join(&files[0])).unwrap();
    let before = SystemTime::now() - Duration::from_secs(8 * 24 * 3600);
    old.set_times(FileTimes::new().set_modified(before)).unwrap();
    fs::write(audit.recordings().join("of an operator"), "").unwrap();
    let agent = audit.recording("max_age = \"7d\"").start();
    until("it is removed", async || !audit.recordings().join(&files[0]).exists()).await;
    assert_eq!(audit.recorded_files().len(), 2);
    assert!(agent.log().contains("removed the recordings that were too old"), "{}", agent.log());
}

#[test]
fn sizes_that_are_too_small_are_named() {
    for key in ["max_bytes", "max_total_bytes", "max_bytes_per_identity"] {
        let audit = Audit::new();
        let refused = audit.recording(&format!("{key} = 1000")).try_start().unwrap_err();
        assert!(refused.log.contains(&format!("audit.recordings.{key}: expected at least 65536")), "{refused}");
    }
}
