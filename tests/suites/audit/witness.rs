//! The log of a keeper, by which an audit log is verified.

use std::path::Path;

use telexec_executor::Command;
use telexec_tests::{Agent, Syslog, program, run, until, within};

use super::{Audit, verify_with};

fn agent(audit: &Audit, syslog: &Syslog) -> Agent {
    let config = format!("keeper_syslog = {:?}\n{}", syslog.path(), audit.config(""));
    Agent::builder().kept().config(config).start()
}

/// What its keeper has logged of an agent that has run this, when both have ended.
async fn ran(audit: &Audit, argv: &[&[&str]]) -> String {
    let syslog = Syslog::new();
    let mut agent = agent(audit, &syslog);
    let executor = agent.executor().await;
    for argv in argv {
        run(&executor, Command::argv(argv.iter().copied())).await.unwrap();
    }
    agent.terminate().await;
    until("all are logged", async || syslog.lines().matches("start of").count() == argv.len()).await;
    messages(&syslog)
}

/// As the journal prints them: without priority and tag.
fn messages(syslog: &Syslog) -> String {
    let lines = syslog.lines();
    let message = |line: &str| format!("{}\n", line.split_once("]: ").unwrap().1);
    lines.lines().map(message).collect()
}

async fn verified(audit: &Audit, keeper_log: &str) -> (i32, String) {
    let path = audit.0.path().join("keeper.log");
    std::fs::write(&path, keeper_log).unwrap();
    verify_with(&["--keeper-log", path.to_str().unwrap()], &[&audit.file()]).await
}

/// Without the last start, and all after it.
fn shorten(file: &Path) {
    let text = std::fs::read_to_string(file).unwrap();
    let last = text.rfind("\"event\":\"start\"").unwrap();
    let line = text[..last].rfind('\n').unwrap() + 1;
    std::fs::write(file, &text[..line]).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_ends_early_or_was_replaced_is_noticed() {
    let audit = Audit::new();
    let keeper_log = ran(&audit, &[&["true"], &["false"], &["true"]]).await;
    let (code, said) = verified(&audit, &keeper_log).await;
    assert!(code == 0 && said.contains("keeper's log: 3 starts recorded in these files\n"), "{said}");
    assert!(!said.contains("without a record"), "{said}");

    let whole = std::fs::read(audit.file()).unwrap();
    shorten(&audit.file());
    assert_eq!(audit.verify().await.0, 0, "it is a valid chain");
    let (code, said) = verified(&audit, &keeper_log).await;
    assert!(code == 1 && said.contains("records are missing"), "{said}");

    // an agent that has told its keeper something else
    std::fs::remove_file(audit.file()).unwrap();
    ran(&audit, &[&["true"], &["true"], &["true"]]).await;
    assert_eq!(audit.verify().await.0, 0, "it is a valid chain");
    let (code, said) = verified(&audit, &keeper_log).await;
    assert!(code == 1 && said.starts_with("broken: seq 2: "), "{said}");

    // what is in older files
    std::fs::write(audit.file(), whole).unwrap();
    let text = std::fs::read_to_string(audit.file()).unwrap();
    let second = text.match_indices("\"event\":\"start\"").nth(1).unwrap().0;
    std::fs::write(audit.file(), &text[text[..second].rfind('\n').unwrap() + 1..]).unwrap();
    let (code, said) = verified(&audit, &keeper_log).await;
    assert!(code == 0 && said.contains("2 starts recorded in"), "{said}");
    assert!(said.contains("1 start recorded before the first of these records"), "{said}");
    // of none of the starts
    std::fs::write(audit.file(), text.lines().last().unwrap().to_owned() + "\n").unwrap();
    assert_eq!(audit.verify().await.0, 0, "it is a valid chain");
    let (code, said) = verified(&audit, &keeper_log).await;
    assert!(code == 1 && said.contains("all starts in the keeper's log"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn starts_without_a_record_are_counted() {
    let audit = Audit::new();
    let syslog = Syslog::new();
    let mut agent = agent(&audit, &syslog);
    run(&agent.executor().await, Command::argv(["true"])).await.unwrap();
    let copy = format!("{}:{}", agent.uri(), audit.0.path().join("copy").display());
    let mut command = tokio::process::Command::new(program("telexec"));
    assert!(within(command.args(["cp", "-q", "/etc/hostname", &copy]).status()).await.unwrap().success());
    agent.terminate().await;
    until("the copy is logged", async || syslog.lines().contains("of files:")).await;
    let log = messages(&syslog);
    let (code, said) = verified(&audit, &log).await;
    assert!(code == 0 && said.contains("1 start recorded in"), "{said}");
    assert!(said.contains("for files and forwards") && !said.contains("hides"), "{said}");
    // what an agent would hide, and what the log has not taken
    let more = "3 starts were not logged\nstart of process 7 as uid 0 for \"execution a, of b\"\n";
    let (code, said) = verified(&audit, &format!("{log}{more}")).await;
    assert!(code == 0 && said.contains("1 start without a record") && said.contains("3 starts that"), "{said}");
    // what shows nothing is no witness
    assert_eq!(verify_with(&["--keeper-log", "/no/such/file"], &[&audit.file()]).await.0, 2);
    let (code, said) = verified(&audit, "telexecd: started\n").await;
    assert!(code == 2 && said.contains("contains no start"), "{said}");
}
