//! What recordings may take, and what happens beyond that.

use std::fs::{self, FileTimes};
use std::time::{Duration, SystemTime};

use super::super::faults::on_small_disk;
use super::super::records;
use super::*;
use crate::cli::troubleshooting::shows;
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
    // as much as there is room for
    assert!(recorded["bytes"].as_u64().unwrap() > 9000, "{end}");
    assert!(cast.all("m").contains("the recording ends here"), "{:?}", cast.events.last());
    shows("a recording is incomplete", &agent.log());
    let scrape = Scrape::of(&agent).await;
    assert_eq!(scrape.value("telexec_audit_recordings_incomplete_total"), 1.0);
    assert!(scrape.value("telexec_audit_recordings_bytes") >= 16384.0);
    let (code, _, said) = audit.play(id.as_str()).await;
    assert!(code == 0 && said.contains("the recording is incomplete"), "{said}");
    let mut telexec = tokio::process::Command::new(telexec_tests::program("telexec"));
    let output = within(telexec.args(["exec", agent.uri(), "-c", MUCH]).output()).await.unwrap();
    assert!(output.stdout.len() < 66_000, "{}", output.stdout.len());
    let text = format!("{MUCH}; sleep 300");
    let mut telexec = tokio::process::Command::new(telexec_tests::program("telexec"));
    let output = within(telexec.args(["exec", agent.uri(), "-c", &text]).output()).await.unwrap();
    shows("the command was cancelled", &String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(255));
}

#[tokio::test(flavor = "multi_thread")]
async fn where_missing_records_are_counted_it_runs_on() {
    let audit = Audit::new();
    let agent = audit.recording_with("when_full = \"count\"", "max_bytes = 65536").start();
    let executor = agent.executor().await;
    let outcome = run(&executor, Command::shell(format!("{MUCH}; echo done"))).await.unwrap();
    assert!(outcome.text().ends_with("done\n") && outcome.exited.exit_code() == 0);
    let end = audit.end_of(&outcome.started.id).await;
    assert!(end["recording"]["error"].is_string() && end["recording"]["sha256"].is_string(), "{end}");
    // nor can one be begun
    fs::remove_dir_all(audit.recordings()).unwrap();
    fs::write(audit.recordings(), "").unwrap();
    let outcome = run(&executor, Command::shell("echo done")).await.unwrap();
    assert_eq!(outcome.text(), "done\n");
    let starts = audit.events("start");
    let start = starts.iter().find(|start| start["execution_id"] == outcome.started.id.as_str()).unwrap();
    assert!(start["recording"]["file"].is_null() && start["recording"]["error"].is_string(), "{start}");
    let (code, _, said) = audit.play(outcome.started.id.as_str()).await;
    assert!(code == 1 && said.contains("was not recorded: "), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_recorded_does_not_run() {
    let audit = Audit::new();
    let agent = audit.recording("").start();
    fs::write(audit.recordings(), "").unwrap();
    let ran = audit.0.path().join("ran");
    let refused = run(&agent.executor().await, Command::shell(format!("touch {}", ran.display()))).await;
    let Err(ExecutorError::Exhausted { reason, retry_after: Some(_) }) = &refused else { panic!("{refused:?}") };
    shows("the policy requires a recording, which cannot be begun: …; nothing ran", reason);
    assert!(!reason.contains('/'), "{reason}");
    assert!(!ran.exists());
    let refused = audit.wait("refused", 1).await.pop().unwrap();
    assert_eq!((&refused["decision"], &refused["error"]), (&json!("allow"), &json!("exhausted")));
}

/// A short recording counts as 16 KiB, and new ones leave a tenth to those that are written.
#[tokio::test(flavor = "multi_thread")]
async fn a_share_is_used_up_until_recordings_are_removed() {
    for (settings, named) in [
        ("max_bytes_per_identity = 73000", "audit.recordings.max_bytes_per_identity"),
        ("max_total_bytes = 73000\nmax_bytes_per_identity = 1000000", "audit.recordings.max_total_bytes"),
    ] {
        let audit = Audit::new();
        let agent = audit.recording(settings).start();
        let executor = agent.executor().await;
        for _ in 0..4 {
            let outcome = run(&executor, Command::shell("echo x")).await.unwrap();
            assert_eq!((outcome.text(), audit.recorded(&outcome.started.id).await.all("o").as_str()), ("x\n", "x\r\n"));
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
    let is_said = async || agent.log().contains("removed a recording that was too old");
    until("that is said", is_said).await;
    assert_eq!(audit.recorded_files().len(), 2);
}

/// One that goes on is not too old, however long it was quiet.
#[tokio::test(flavor = "multi_thread")]
async fn a_recording_that_is_continued_is_not_removed() {
    let audit = Audit::new();
    let agent = audit.recording("max_age = \"7d\"").kept().start();
    let executor = agent.executor().await;
    let execution = started(&executor, detached("echo ready; read -r line; echo $line"), "ready\n").await;
    let id = execution.id().clone();
    drop(execution);
    let file = fs::File::options().append(true).open(audit.recordings().join(&audit.recorded_files()[0])).unwrap();
    file.set_times(FileTimes::new().set_modified(SystemTime::now() - Duration::from_secs(8 * 24 * 3600))).unwrap();
    crash_and_wait(&agent).await;
    let executor = agent.executor().await;
    let execution = within(executor.attach(&id, Attach::position(0))).await.unwrap();
    input(&executor, &id, "end\n").await.unwrap();
    assert_eq!(exit_of(execution).await.exit_code(), 0);
    assert!(audit.recorded(&id).await.all("o").ends_with("end\r\n"));
}

/// Whoever is given time to end does not get it without a recording, and nobody is shown what is not recorded.
#[tokio::test(flavor = "multi_thread")]
async fn no_grace_outlasts_a_recording() {
    let audit = Audit::new();
    let config = format!("max_kill_grace = \"1h\"\n{}", audit.config("[audit.recordings]\nmax_bytes = 65536"));
    let agent = Agent::builder().config(config).policy(RULES).start();
    let executor = agent.executor().await;
    // sleep ends by the same SIGTERM, of which the shell writes to standard error
    let text = format!("exec 2>/dev/null; trap 'while :; do {MUCH}; done' TERM; echo ready; sleep 300; sleep 300");
    let grace = Duration::from_secs(3600);
    let command = detached(&text).timeout(Duration::from_secs(1)).kill_grace(grace);
    let outcome = run(&executor, command).await.unwrap();
    assert!(outcome.stdout.len() < 70_000, "{}", outcome.stdout.len());
    assert!(outcome.exited.stdout.dropped_bytes > 0, "{:?}", outcome.exited);
    let shown = outcome.text().replace('\n', "\r\n");
    assert!(audit.recorded(&outcome.started.id).await.all("o").starts_with(&shown));
}

/// A disk that is full is no way to run something unrecorded.
#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_what_is_recorded_is_killed() {
    let audit = Audit::new();
    let Some((agent, seen)) = on_small_disk(&audit, "output_digest = true", RULES) else { return };
    let executor = agent.executor().await;
    let execution =
        started(&executor, detached("echo ready; while read -r line; do echo $line; done"), "ready\n").await;
    let id = execution.id().clone();
    fs::write(seen.join("fill"), vec![0; 8 << 20]).unwrap_err();
    let line = format!("{}\n", "x".repeat(10_000));
    // the last page has some room
    until("it is killed", async || input(&executor, &id, &line).await.is_err()).await;
    assert_eq!(exit_of(execution).await.cause, ExitCause::Cancelled);
    fs::remove_file(seen.join("fill")).unwrap();
    let log = seen.join("audit.log");
    let ends = async || records(&log).iter().any(|record| record["event"] == "end");
    until("its end is in the log", ends).await;
    let end = records(&log).into_iter().find(|record| record["event"] == "end").unwrap();
    assert!(end["recording"]["error"].as_str().unwrap().contains("No space left"), "{end}");
}

#[test]
fn sizes_that_are_too_small_are_named() {
    for key in ["max_bytes", "max_total_bytes", "max_bytes_per_identity"] {
        let audit = Audit::new();
        let refused = audit.recording(&format!("{key} = 1000")).try_start().unwrap_err();
        assert!(refused.log.contains(&format!("audit.recordings.{key}: expected at least 65536")), "{refused}");
    }
}
