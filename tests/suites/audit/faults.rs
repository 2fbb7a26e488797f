//! What happens to the log itself: full disks, restarts, torn and changed lines, another agent, files that are moved.

use std::fs;
use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use rustix::process::Signal;
use serde_json::json;
use telexec_executor::{Command, Event, Executor, ExecutorError};
use telexec_tests::{Agent, Gate, Scrape, is_root, lines, run, until, until_output, within};

use super::{Audit, records, verify, verify_with};

/// An agent whose log is on a small file system, which only it sees; and where that is seen from here. `None`: nothing can
/// be mounted here.
pub(super) fn on_small_disk(audit: &Audit, more: &str, policy: &str) -> Option<(Agent, PathBuf)> {
    if !is_root() {
        return None;
    }
    let directory = audit.file().parent().unwrap().to_str().unwrap().to_owned();
    fs::create_dir_all(&directory).unwrap();
    let mount = format!("mount -t tmpfs -o size=1m,mode=0700 none {directory} || exit 77; exec \"$@\"");
    let agent = audit.agent(more).args(["--metrics-listen", "tcp://127.0.0.1:0"]);
    let agent = if policy.is_empty() { agent } else { agent.policy(policy) };
    match agent.through(["unshare", "--mount", "sh", "-c", &mount, "sh"]).try_start() {
        Ok(agent) => {
            let seen = PathBuf::from(format!("/proc/{}/root{directory}", agent.pid()));
            Some((agent, seen))
        }
        Err(refused) if refused.log.contains("mount") || refused.status.code() == Some(77) => {
            eprintln!("skipped: nothing can be mounted here: {refused}");
            None
        }
        Err(refused) => panic!("{refused}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_nothing_starts_and_what_runs_goes_on() {
    let audit = Audit::new();
    let Some((agent, seen)) = on_small_disk(&audit, "", "") else { return };
    let (executor, log) = (agent.executor().await, seen.join("audit.log"));
    let gate = Gate::new();
    let before = Command::shell(format!("echo ready; {}; exit 3", gate.wait())).build().unwrap();
    let mut before = executor.execute(before).await.unwrap();
    until_output(&mut before, "ready\n").await;
    fs::write(seen.join("fill"), vec![0; 8 << 20]).unwrap_err();

    let ran = audit.0.path().join("ran");
    let command = || Command::shell(format!("echo >> {}", ran.display())).env("A".repeat(4000), "");
    let mut refused = 0;
    // the last page of the file has some room
    until("there is no room", async || match run(&executor, command()).await {
        Ok(_) => false,
        Err(ExecutorError::Exhausted { reason, retry_after: Some(_) }) => {
            assert!(reason.starts_with("the audit log cannot be written: ") && !reason.contains('/'), "{reason}");
            refused += 1;
            refused == 3
        }
        Err(error) => panic!("{error:?}"),
    })
    .await;
    assert_eq!(Scrape::of(&agent).await.value("telexec_audit_failing"), 1.0);
    let written = records(&log);
    let starts = written.iter().filter(|record| record["event"] == "start").count();
    assert_eq!(lines(&ran).len() + 1, starts, "what was refused did not run");
    assert!(fs::read(&log).unwrap().ends_with(b"\n"), "no piece of a line is left");
    let _open = gate.open();
    let end = within(before.next()).await;
    assert!(matches!(&end, Some(Ok(Event::Exited(exited))) if exited.exit_code() == 3), "{end:?}");
    assert_eq!(agent.log().matches("cannot be written").count(), 1, "{}", agent.log());

    fs::remove_file(seen.join("fill")).unwrap();
    run(&executor, Command::shell("exit 4")).await.unwrap();
    until("the ends are written", async || {
        let ends: Vec<_> = records(&log).iter().filter_map(|record| record["exit_code"].as_i64()).collect();
        ends.contains(&3) && ends.contains(&4)
    })
    .await;
    let dropped: u64 = records(&log).iter().filter_map(|record| record["dropped"].as_u64()).sum();
    assert_eq!(dropped, refused);
    until("it is logged", async || agent.log().contains("can be written again")).await;
    let scrape = Scrape::of(&agent).await;
    assert_eq!(scrape.value("telexec_refusals_total{reason=\"audit\"}"), refused as f64);
    assert_eq!(
        (scrape.value("telexec_audit_dropped_total"), scrape.value("telexec_audit_failing")),
        (refused as f64, 0.0)
    );
    let (code, said) = verify(&[&log]).await;
    assert!(code == 0 && !said.contains("without an end") && said.contains("could not be written"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_commands_run_and_are_counted_if_that_is_configured() {
    let audit = Audit::new();
    let Some((agent, seen)) = on_small_disk(&audit, "when_full = \"count\"", "") else { return };
    let (executor, log) = (agent.executor().await, seen.join("audit.log"));
    fs::write(seen.join("fill"), vec![0; 8 << 20]).unwrap_err();
    for _ in 0..20 {
        let outcome = run(&executor, Command::shell("echo ran").env("A".repeat(4000), "")).await.unwrap();
        assert_eq!(outcome.text(), "ran\n");
    }
    fs::remove_file(seen.join("fill")).unwrap();
    run(&executor, Command::shell("exit 4")).await.unwrap();
    let counted = |records: &[serde_json::Value]| {
        let starts = records.iter().filter(|record| record["event"] == "start").count();
        starts as u64 + records.iter().filter_map(|record| record["dropped"].as_u64()).sum::<u64>()
    };
    until("all are recorded or counted", async || counted(&records(&log)) == 21).await;
    assert_eq!(verify(&[&log]).await.0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_agents_do_not_share_a_log() {
    let audit = Audit::new();
    let first = audit.agent("").start();
    let refused = audit.agent("").try_start().expect_err("the log is taken");
    assert!(!refused.status.success() && refused.log.contains("another agent"), "{refused}");
    run(&first.executor().await, Command::argv(["true"])).await.unwrap();
    audit.wait("end", 1).await;
    assert_eq!(audit.verify().await.0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_goes_on_after_the_last_whole_line() {
    let audit = Audit::new();
    for restart in 0..3 {
        let mut agent = audit.agent("").start();
        run(&agent.executor().await, Command::argv(["true"])).await.unwrap();
        assert!(agent.terminate().await.success());
        assert_eq!(audit.records().len(), 4 * (restart + 1));
    }
    let whole = fs::read(audit.file()).unwrap();
    fs::write(audit.file(), [&whole[..], b"{\"seq\":13,\"time\":"].concat()).unwrap();
    let agent = audit.agent("").start();
    let recovered = audit.wait("recovered", 1).await.swap_remove(0);
    assert_eq!((&recovered["seq"], &recovered["bytes"]), (&json!(13), &json!(17)));
    let aside = recovered["set_aside"].as_str().unwrap();
    assert_eq!(fs::read(aside).unwrap(), b"{\"seq\":13,\"time\":");
    assert!(agent.log().contains("moved aside"), "{}", agent.log());
    run(&agent.executor().await, Command::argv(["true"])).await.unwrap();
    assert_eq!(audit.verify().await.0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_or_deleted_line_is_named() {
    let audit = Audit::new();
    let mut agent = audit.agent("").start();
    let executor = agent.executor().await;
    for _ in 0..3 {
        run(&executor, Command::shell("echo innocent")).await.unwrap();
    }
    assert!(agent.terminate().await.success());
    let text = fs::read_to_string(audit.file()).unwrap();
    let whole: Vec<_> = text.split_inclusive('\n').collect();
    let name = audit.file().display().to_string();
    let edited = whole[3].replace("innocent", "innocenT");
    for (changed, said_of_it) in [
        ([&whole[..3], &[&edited[..]], &whole[4..]].concat(), "line 4 (seq 4): it was modified"),
        ([&whole[..3], &whole[4..]].concat(), "line 4 (seq 5): records are missing before it: expected 4"),
    ] {
        fs::write(audit.file(), changed.concat()).unwrap();
        let (code, said) = audit.verify().await;
        assert!(code == 1 && said.starts_with(&format!("broken: {name}: {said_of_it}")), "{said}");
    }
    let (code, said) = verify(&[&audit.file().with_extension("none")]).await;
    assert!(code == 2 && said.starts_with("telexecd: cannot read "), "{said}");
    let (code, said) = verify(&[]).await;
    assert!(code == 78 && said.ends_with("no FILE is given, and no audit.file is configured\n"), "{said}");
}

/// Both end with a chain that is whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_was_emptied_or_shortened_is_not_valid() {
    let audit = Audit::new();
    let mut agent = audit.agent("").start();
    let executor = agent.executor().await;
    run(&executor, Command::argv(["true"])).await.unwrap();
    assert!(agent.terminate().await.success());
    let file = audit.file();
    let (code, said) = verify(&[&file]).await;
    assert_eq!(code, 0, "{said}");
    let hash = said.lines().find_map(|line| line.strip_prefix("last hash: ")).unwrap().to_owned();
    let expecting = async |file: &Path| verify_with(&["--expect", &hash], &[file]).await;
    assert_eq!(expecting(&file).await, (0, said));
    let text = fs::read_to_string(&file).unwrap();
    let (last_start, _) = text.trim_end().rmatch_indices('\n').next().unwrap();
    fs::write(&file, &text[..=last_start]).unwrap();
    assert_eq!(verify(&[&file]).await.0, 0);
    let (code, said) = expecting(&file).await;
    assert!(code == 1 && said.starts_with(&format!("broken: no record has the hash {hash}")), "{said}");
    // it is the one before the first record that is left, as after a rotation
    let last = &text[last_start + 1..];
    fs::write(&file, last).unwrap();
    let before: serde_json::Value = serde_json::from_str(last).unwrap();
    assert_eq!(verify_with(&["--expect", before["prev"].as_str().unwrap()], &[&file]).await.0, 0);
    fs::write(&file, "").unwrap();
    for (code, said) in [verify(&[&file]).await, expecting(&file).await] {
        assert!(code == 1 && said.starts_with("broken: no records"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_was_moved_away_goes_on_in_a_new_file_on_sighup() {
    let audit = Audit::new();
    let mut agent = audit.agent("").start();
    let executor = agent.executor().await;
    run(&executor, Command::argv(["true"])).await.unwrap();
    audit.wait("end", 1).await;
    let moved = audit.file().with_extension("log.1");
    fs::rename(audit.file(), &moved).unwrap();
    agent.signal(Signal::HUP);
    until("there is a new file", async || audit.file().exists()).await;
    run(&executor, Command::argv(["true"])).await.unwrap();
    audit.wait("end", 1).await;
    assert!(agent.terminate().await.success());
    assert_eq!(records(&moved).len(), 3);
    let (code, said) = verify(&[&moved, &audit.file()]).await;
    assert!(code == 0 && said.starts_with("valid: 6 records in 2 files, seq 1 "), "{said}");
}
