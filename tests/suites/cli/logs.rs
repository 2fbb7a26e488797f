//! `telexec logs` and `wait`, and the beginnings of execution IDs.

use telexec_tests::until;

use super::{Said, Site, interrupt, next_line};
use tokio::io::BufReader;

#[tokio::test]
async fn logs_print_what_there_is_and_return() {
    let site = Site::unix().await;
    let text = "echo out; echo err >&2; printf 'no newline'; exec sleep 300";
    let id = site.detached(&["-c", text]).await;
    until("all is written", async || site.say("logs", &[&id]).await.stdout.ends_with(b"no newline")).await;
    let said = site.say("logs", &[&id]).await;
    assert_eq!((said.code, said.stdout(), said.stderr()), (0, "out\nno newline", "err\n"));
    site.say("kill", &[&id]).await.answer();
    // after the end too
    assert_eq!(site.say("wait", &[&id]).await.code, 143);
    let said = site.say("logs", &[&id]).await;
    assert_eq!((said.code, said.stdout(), said.stderr()), (0, "out\nno newline", "err\n"));
    assert_eq!(site.say("logs", &["--tail", "all", &id]).await.stdout(), "out\nno newline");
    assert!(site.say("logs", &["unknown"]).await.failure(125).contains("no execution unknown"));
}

#[tokio::test]
async fn logs_follow_until_the_end() {
    let site = Site::unix().await;
    let go = site.path().join("go");
    let text = format!("echo first; echo ready; until [ -e {} ]; do sleep 0.01; done; echo last; exit 3", go.display());
    let id = site.detached(&["-c", &text]).await;
    until("it is ready", async || site.say("logs", &[&id]).await.stdout().ends_with("ready\n")).await;
    let mut child = site.telexec("logs", &["-f", "--tail", "1", &id]).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(next_line(&mut stdout).await, "ready\n");
    std::fs::write(go, "").unwrap();
    assert_eq!(next_line(&mut stdout).await, "last\n");
    // the code is that of printing: `wait` tells the command's
    let said = Said::by_child(child).await;
    assert_eq!((said.code, said.stderr()), (0, ""));
}

#[tokio::test]
async fn logs_stop_at_ctrl_c_and_the_command_runs_on() {
    let site = Site::unix().await;
    let id = site.detached(&["-c", "echo ready; exec sleep 300"]).await;
    let mut child = site.telexec("logs", &["-f", &id]).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(next_line(&mut stdout).await, "ready\n");
    interrupt(&child);
    assert_eq!(Said::by_child(child).await.code, 130);
    assert_eq!(site.say("ps", &["-q"]).await.answer(), format!("{id}\n"));
}

#[tokio::test]
async fn the_last_lines_are_exact_however_much_there_is() {
    let site = Site::unix().await;
    let id = site.detached(&["-c", "seq 200000"]).await;
    assert_eq!(site.say("wait", &[&id]).await.answer(), "");
    for count in [0, 1, 2, 3, 1000, 100_000, 200_000, 200_001, 300_000] {
        let said = site.say("logs", &["-n", &count.to_string(), &id]).await;
        let expected: Vec<String> = (1..=200_000).rev().take(count).map(|n| format!("{n}\n")).collect();
        let expected: String = expected.into_iter().rev().collect();
        assert!(said.answer() == expected, "{count}: {} bytes", said.stdout.len());
    }
}

#[tokio::test]
async fn wait_has_the_code_of_the_command() {
    let site = Site::unix().await;
    let go = site.path().join("go");
    let text = |code| format!("echo out; until [ -e {} ]; do sleep 0.01; done; exit {code}", go.display());
    let ids = [site.detached(&["-c", &text(3)]).await, site.detached(&["-c", &text(0)]).await];
    let waiting = site.telexec("wait", &[&ids[0], &ids[1]]).spawn().unwrap();
    std::fs::write(&go, "").unwrap();
    let said = Said::by_child(waiting).await;
    assert_eq!((said.code, said.stdout()), (3, ""));
    assert!(said.remark().contains(&format!("{}: exited 3", ids[0])) && !said.stderr().contains(&ids[1]), "{said:?}");
    for (id, code) in ids.iter().zip([3, 0]) {
        let said = site.say("wait", &[id]).await;
        assert_eq!((said.code, said.stdout(), said.stderr()), (code, "", ""));
    }
    let timed = site.detached(&["--timeout", "100ms", "sleep", "300"]).await;
    assert!(site.say("wait", &[&timed]).await.failure(124).contains("timed out"));
    assert!(site.say("wait", &[&ids[0], "unknown"]).await.failure(125).contains("no execution unknown"));
}

#[tokio::test]
async fn the_beginning_of_an_id_is_enough_if_it_is_that_of_one() {
    let site = Site::unix().await;
    for id in ["first-a", "first-ab", "second"] {
        site.detached(&["-i", "--id", id, "-c", "cat; echo end"]).await;
    }
    for subcommand in ["logs", "attach", "wait"] {
        let said = site.say(subcommand, &["first"]).await;
        let message = said.failure(125);
        assert!(message.contains("2 executions") && message.contains("  first-a  running  cat"), "{said:?}");
    }
    // a name that was chosen may be the beginning of another by chance: no text is sent for that
    let said = site.say("input", &["sec", "text"]).await;
    assert!(said.failure(125).contains("no execution sec"), "{said:?}");
    let said = site.say("kill", &["fir"]).await;
    assert!(said.failure(125).contains("2 executions"), "{said:?}");
    site.say("input", &["--close", "-n", "second", "text"]).await.answer();
    assert_eq!(site.say("wait", &["s"]).await.answer(), "");
    assert_eq!(site.say("logs", &["sec"]).await.answer(), "textend\n");
    assert_eq!(site.say("attach", &["secon"]).await.answer(), "textend\n");
    // an exact ID goes before those that it begins
    site.say("kill", &["first-a"]).await.answer();
    assert_eq!(site.say("wait", &["first-a"]).await.code, 143);
    // what was meant is said where something is ended
    let said = site.say("kill", &["first-ab"]).await;
    assert_eq!((said.code, said.stderr()), (0, ""));
    site.detached(&["-i", "--id", "chosen", "cat"]).await;
    let said = site.say("kill", &["chos"]).await;
    assert!(said.code == 0 && said.remark().contains("SIGTERM sent to chosen"), "{said:?}");
    let third = site.detached(&["-i", "cat"]).await;
    let begin = &third[..18];
    site.say("input", &[begin, "text"]).await.answer();
    let said = site.say("kill", &[begin]).await;
    assert!(said.code == 0 && said.remark().contains(&format!("SIGTERM sent to {third}")), "{said:?}");
}
