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
    tmux.line(&format!("clear; telexec exec -it --id edit $T -- vim -u NONE -N {}", file.display()));
    tmux.shows("[New]").await;
    tmux.write("ihello, auditor");
    tmux.shows("hello, auditor").await;
    tmux.press("Escape");
    tmux.line(":set laststatus=2 statusline=size=%{&columns}x%{&lines}");
    tmux.shows("size=80x24").await;
    tmux.line(":wq");
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
    assert!(code == 0 && said.ends_with("1 recording: 1 unchanged, 0 changed, 0 incomplete, 0 removed\n"), "{said}");
    let recorded = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, recorded.replace("rm -rf /", "ls")).unwrap();
    let (code, shown, said) = audit.play("x").await;
    assert!(code == 1 && shown.is_empty() && said.contains("this is not what was recorded"), "{said}");
    let (code, said) = verify().await;
    assert!(
        code == 1 && said.contains(&format!("changed: {}\n1 recording: 0 unchanged, 1 changed", path.display())),
        "{said}"
    );
    std::fs::remove_file(&path).unwrap();
    let (code, said) = verify().await;
    assert!(code == 0 && said.ends_with("1 removed\n"), "{said}");
    let (code, _, said) = audit.play("x").await;
    assert!(code == 2 && said.contains("cannot read"), "{said}");
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
