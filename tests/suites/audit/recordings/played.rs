//! Recordings are played, by `telexecd audit play` and by a program that nobody here wrote.

use std::path::PathBuf;

use telexec_tests::Tmux;

use super::super::verify_with;
use super::*;

fn asciinema() -> PathBuf {
    let python = std::env::var("ASCIINEMA_PYTHON").expect("tests/run sets it");
    PathBuf::from(python).with_file_name("asciinema")
}

/// An editor that fills the screen is recorded as a person used it, and played.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_vim_is_played() {
    let audit = Audit::new();
    let agent = audit.recording("").start();
    let programs = telexec_tests::program("telexecd").parent().unwrap().to_owned();
    let log = audit.file();
    let home = audit.0.path().to_str().unwrap();
    let variables =
        [("HOME", home), ("T", agent.uri()), ("B", programs.to_str().unwrap()), ("L", log.to_str().unwrap())];
    let tmux = Tmux::open(&variables).await;
    let settings = tmux.settings().await;
    let file = audit.0.path().join("file");
    tmux.line(&format!("clear; telexec exec -it --id edit $T -- vim -u NONE -N {}; echo edited=$?", file.display()));
    tmux.shows("[New]").await;
    tmux.write("ihello, auditor");
    tmux.shows("hello, auditor").await;
    tmux.press("Escape");
    tmux.line(":set laststatus=2 statusline=size=%{&columns}x%{&lines}");
    tmux.shows("size=80x24").await;
    tmux.line(":wq");
    // until telexec has ended, what is typed is its
    tmux.shows("edited=0\n").await;
    let id = "edit".parse().unwrap();
    let cast = audit.recorded(&id).await;
    assert!(cast.all("i").contains("ihello, auditor\u{1b}:set"), "{:?}", cast.all("i"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "hello, auditor\n");

    tmux.line("clear; $B/telexecd audit play --speed 0.02 --max-idle 2s $L edit; echo code=$?");
    tmux.shows("size=80x24").await;
    assert!(tmux.screen().contains("hello, auditor"), "{}", tmux.screen());
    tmux.shows("code=0\n").await;
    assert_eq!(tmux.settings().await, settings);
    let path = audit.recordings().join(&audit.recorded_files()[0]);
    tmux.line(&format!("clear; {} play -s 0.02 -i 2 {}; echo code=$?", asciinema().display(), path.display()));
    tmux.shows("size=80x24").await;
    assert!(tmux.screen().contains("hello, auditor"), "{}", tmux.screen());
    tmux.shows("code=0\n").await;
}

/// Ctrl-C ends it, and the terminal is as it was.
#[tokio::test(flavor = "multi_thread")]
async fn playing_is_interrupted() {
    let audit = Audit::new();
    let agent = audit.recording("").start();
    let command = on_terminal("printf '\\033[?1049h\\033[?25lon the other screen'; sleep 1; echo end");
    let execution = started(&agent.executor().await, command.execution_id("slow".parse().unwrap()), "screen").await;
    let programs = telexec_tests::program("telexecd").parent().unwrap().to_owned();
    let log = audit.file();
    let tmux = Tmux::open(&[("B", programs.to_str().unwrap()), ("L", log.to_str().unwrap())]).await;
    assert_eq!(exit_of(execution).await.exit_code(), 0);
    audit.end_of(&"slow".parse().unwrap()).await;
    tmux.line("$B/telexecd audit play --speed 0.01 $L slow; echo code=$?");
    tmux.shows("on the other screen").await;
    tmux.press("C-c");
    tmux.shows("code=0\n").await;
    assert!(!tmux.screen().contains("on the other screen"), "{}", tmux.screen());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_changed_is_not_played() {
    let audit = Audit::new();
    let agent = audit.recording("").start();
    let outcome =
        run(&agent.executor().await, Command::shell("echo rm -rf /").execution_id("x".parse().unwrap())).await;
    let id = outcome.unwrap().started.id;
    audit.recorded(&id).await;
    let path = audit.recordings().join(&audit.recorded_files()[0]);
    let verify = async || verify_with(&["--recordings"], &[&audit.file()]).await;
    let (code, said) = verify().await;
    assert!(code == 0 && said.ends_with("\n1 recording, 1 unchanged\n"), "{said}");
    let recorded = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, recorded.replace("rm -rf /", "ls")).unwrap();
    let (code, shown, said) = audit.play("x").await;
    assert!(code == 1 && shown.is_empty() && said.contains("this is not what was recorded"), "{said}");
    let (code, said) = verify().await;
    assert!(code == 1 && said.contains(&format!("changed: {}\n1 recording, 1 changed\n", path.display())), "{said}");
    let other = audit.recordings().join("other.cast");
    std::fs::rename(&path, other).unwrap();
    let (code, said) = verify().await;
    let missing = format!("missing: {}\n1 recording, 1 missing; 1 more not in these files\n", path.display());
    assert!(code == 1 && said.ends_with(&missing), "{said}");
    let (code, said) = verify_with(&["--recordings", "--max-age", "1ms"], &[&audit.file()]).await;
    assert!(code == 0 && said.contains("1 recording, 1 expired"), "{said}");
    let (code, _, said) = audit.play("x").await;
    assert!(code == 1 && said.contains("is gone: "), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_not_ended_is_played_unverified() {
    let audit = Audit::new();
    let agent = audit.recording("").start();
    let command = detached("echo so far; sleep 300").execution_id("runs".parse().unwrap());
    let _execution = started(&agent.executor().await, command, "so far\n").await;
    let shows = async || audit.play("runs").await.1 == "so far\n";
    until("it is recorded", shows).await;
    let (code, _, said) = audit.play("runs").await;
    assert!(code == 0 && said.contains("not verified: the execution has not ended"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_meant_is_named() {
    let audit = Audit::new();
    let agent = audit.recording("").start();
    let executor = agent.executor().await;
    for (id, text) in [("deploy-1", "echo one"), ("deploy-2", "echo two"), ("deploy-2", "uptime"), ("other", "uptime")]
    {
        let command = Command::shell(text).execution_id(id.parse().unwrap());
        drop(run(&executor, command).await);
    }
    audit.wait("end", 3).await;
    let (code, shown, _) = audit.play("deploy-1").await;
    assert_eq!((code, shown.as_str()), (0, "one\n"));
    let (code, shown, _) = audit.play("deploy-2").await;
    assert_eq!((code, shown.as_str()), (0, "two\n"));
    let (code, _, said) = audit.play("deploy").await;
    assert!(code == 1 && said.contains("several executions begin with deploy: deploy-1, deploy-2"), "{said}");
    // a repeat is no recording, and hides none
    drop(run(&executor, Command::shell("echo one").execution_id("deploy-1".parse().unwrap())).await);
    audit.wait("not_started", 2).await;
    let (code, shown, _) = audit.play("deploy-1").await;
    assert_eq!((code, shown.as_str()), (0, "one\n"));
    let (code, _, said) = audit.play("oth").await;
    assert!(code == 1 && said.contains("the execution other was not recorded: no rule"), "{said}");
    let search = async |flags: &[&str]| {
        let mut command = tokio::process::Command::from(telexec_tests::telexecd());
        let output = within(command.args(["audit", "search"]).args(flags).arg(audit.file()).output()).await.unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let found = search(&["--recorded", "--event", "start", "--id", "deploy-2"]).await;
    assert!(found.lines().count() == 1 && found.ends_with("-deploy-2.cast]\n"), "{found}");
    let (code, said) = verify_with(&["--recordings"], &[&audit.file()]).await;
    assert!(code == 0 && said.ends_with("2 recordings, 2 unchanged\n"), "{said}");
    // the recording in place of the log
    let path = audit.recordings().join(&audit.recorded_files()[0]);
    let mut command = tokio::process::Command::from(telexec_tests::telexecd());
    let output = within(command.args(["audit", "play"]).arg(&path).arg("x").output()).await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains("is no audit log"), "{said}");
}
