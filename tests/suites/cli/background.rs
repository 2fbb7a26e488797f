//! Executions that outlive the call that started them: `telexec exec -d`, `ps`, `attach`, `input`, `kill`.

use std::process::Stdio;

use futures_util::future::join_all;
use serde_json::{Value, json};
use telexec_executor::{Command, Executor};
use telexec_tests::{MARK, collect, marker, processes_with, until, within};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::{Said, Site, interrupt, next_line};

// exec

#[tokio::test]
async fn a_detached_command_says_its_id_and_nothing_else() {
    let site = Site::unix().await;
    let text =
        format!("echo out; echo err >&2; until [ -e {}/go ]; do sleep 0.01; done; exit 3", site.path().display());
    let id = site.detached(&["-c", &text]).await;
    assert_eq!(site.say("ps", &["-q"]).await.answer(), format!("{id}\n"));
    std::fs::write(site.path().join("go"), "").unwrap();
    let said = site.say("attach", &[&id]).await;
    assert_eq!((said.code, said.stdout(), said.stderr()), (3, "out\n", "err\n"));
}

#[tokio::test]
async fn a_detached_command_says_its_start_as_json() {
    let site = Site::unix().await;
    let said = site.exec(&["-d", "--json", "--id", "chosen", "-c", "true"]).await;
    let started: Value = serde_json::from_str(said.answer()).unwrap();
    assert_eq!((&started["event"], &started["execution_id"]), (&json!("started"), &json!("chosen")));
}

/// It starts nothing, and does not wait for the end of what runs.
#[tokio::test]
async fn a_detached_command_that_is_repeated_says_its_id_at_once() {
    let site = Site::unix().await;
    for _ in 0..2 {
        assert_eq!(site.detached(&["--id", "chosen", "--", "sleep", "300"]).await, "chosen");
    }
    assert_eq!(site.say("ps", &["-q"]).await.answer(), "chosen\n");
    site.say("kill", &["chosen"]).await.answer();
}

#[tokio::test]
async fn a_command_that_takes_long_is_left_to_the_background() {
    let site = Site::unix().await;
    let args = ["--id", "long", "--yield-after", "500ms", "-c", "echo out; sleep 300"];
    let said = site.exec(&args).await;
    assert_eq!((said.code, said.stdout()), (0, "out\n"));
    assert!(said.remark().contains("telexec attach") && said.remark().contains(" long`"), "{said:?}");
    assert_eq!(site.exec(&["--yield-after", "1m", "-c", "exit 4"]).await.code, 4);
    site.say("kill", &["long"]).await.answer();
}

#[tokio::test]
async fn ctrl_c_spares_a_command_that_survives_a_disconnect() {
    let site = Site::unix().await;
    let args = ["--on-disconnect", "detach", "--id", "kept", "-c", "echo ready; exec sleep 300"];
    let (child, _stdout) = site.running(&args).await;
    interrupt(&child);
    let said = Said::by_child(child).await;
    assert_eq!(said.code, 130);
    assert!(said.remark().contains(" kept`"), "{said:?}");
    assert_eq!(site.say("ps", &["-q"]).await.answer(), "kept\n");
    site.say("kill", &["kept"]).await.answer();
}

// ps

#[tokio::test]
async fn executions_are_listed() {
    let site = Site::unix().await;
    let (_child, _stdout) = site.running(&["--label", "job=a", "-c", "echo ready; exec sleep 300 # \x1b[2J\n"]).await;
    assert_eq!(site.exec(&["--label", "job=b", "--", "sh", "-c", "exit 3"]).await.code, 3);
    let lines = |said: &Said| said.answer().lines().map(str::to_owned).collect::<Vec<_>>();
    let [heading, row] = &lines(&site.say("ps", &[]).await)[..] else { panic!() };
    assert_eq!(
        heading.split_whitespace().collect::<Vec<_>>(),
        ["ID", "STATE", "PID", "STARTED", "CPU", "MEMORY", "USER", "COMMAND"]
    );
    assert!(row.contains(" running ") && row.ends_with("  echo ready; exec sleep 300 # \\u{1b}[2J\\n"), "{row}");
    let all = lines(&site.say("ps", &["-a"]).await);
    assert!(all.len() == 3 && all[2].contains(" exited 3 ") && all[2].ends_with("  sh -c exit 3"), "{all:?}");
    assert_eq!(lines(&site.say("ps", &["-a", "--label", "job=b"]).await).len(), 2);
    assert_eq!(site.say("ps", &["-q", "--label", "job=b"]).await.answer(), "");
    let id = row.split_whitespace().next().unwrap();
    assert_eq!(site.say("ps", &["-q", "--label", "job=a"]).await.answer(), format!("{id}\n"));
}

#[tokio::test]
async fn executions_are_listed_as_json() {
    let site = Site::unix().await;
    site.exec(&["--id", "one", "--label", "a=b", "--", "true"]).await.answer();
    site.exec(&["--id", "two", "-c", "exit 3"]).await;
    let said = site.say("ps", &["-a", "--json"]).await;
    let objects: Vec<Value> = said.answer().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [one, two] = &objects[..] else { panic!("{said:?}") };
    assert_eq!(
        (&one["execution_id"], &one["state"], &one["argv"]),
        (&json!("one"), &json!("exited"), &json!(["true"]))
    );
    assert_eq!((&one["labels"], &one["command"], &one["terminal"]), (&json!({"a": "b"}), &json!(null), &json!(false)));
    assert_eq!((&two["command"], &two["exited"]["exit_code"]), (&json!("exit 3"), &json!(3)));
}

#[tokio::test]
async fn all_pages_are_listed() {
    let site = Site::unix().await;
    let executor = site.agent.as_ref().unwrap().executor().await;
    let run = |n| {
        let command = Command::argv(["true"]).execution_id(format!("n{n:03}").parse().unwrap()).build().unwrap();
        within(executor.execute(command))
    };
    // more than a page of the agent's
    let mut executions = Vec::new();
    for n in (0..120).step_by(20) {
        executions.extend(join_all((n..n + 20).map(run)).await.into_iter().map(Result::unwrap));
    }
    join_all(executions.into_iter().map(collect)).await;
    assert_eq!(site.say("ps", &["-aq"]).await.answer().lines().count(), 120);
}

#[tokio::test]
async fn a_login_shell_is_listed_as_one() {
    let site = Site::unix().await;
    // killed amid a profile of this machine it could leave locks behind
    let id = site.detached(&["-it", "-e", &format!("HOME={}", site.path().display())]).await;
    let listed = site.say("ps", &[]).await;
    assert!(listed.answer().trim_end().ends_with("(login shell)"), "{listed:?}");
    site.say("kill", &["-s", "KILL", &id]).await.answer();
}

// kill

#[tokio::test]
async fn signals_end_executions() {
    let site = Site::unix().await;
    for (flags, code) in [(&[][..], 143), (&["-s", "INT"], 130), (&["-s", "sigusr1"], 138), (&["-s", "9"], 137)] {
        let id = format!("id{code}");
        let (child, _stdout) = site.running(&["--id", &id, "-c", "echo ready; exec sleep 300"]).await;
        site.say("kill", &[flags, &[&id]].concat()).await.answer();
        assert_eq!(Said::by_child(child).await.code, code);
        // it has ended already
        site.say("kill", &[&id]).await.answer();
    }
}

#[tokio::test]
async fn an_id_that_is_not_known_is_reported_and_the_others_are_signalled() {
    let site = Site::unix().await;
    let (child, _stdout) = site.running(&["--id", "known", "-c", "echo ready; exec sleep 300"]).await;
    let said = site.say("kill", &["nope", "known"]).await;
    assert!(said.failure(125).contains("nope"), "{said:?}");
    assert_eq!(Said::by_child(child).await.code, 143);
    let said = site.say("wait", &["nope", "known"]).await;
    assert!(said.failure(143).contains("no execution nope\n") && said.stderr().contains("known: "), "{said:?}");
    for line in
        [&["attach", "nope"][..], &["input", "nope", "text"], &["kill", "nope"], &["logs", "nope"], &["wait", "nope"]]
    {
        assert!(site.say(line[0], &line[1..]).await.failure(125).contains("nope"), "{line:?}");
    }
}

// attach

#[tokio::test]
async fn output_is_followed_from_any_position() {
    let site = Site::unix().await;
    let id = site.detached(&["-c", "printf 0123456789; exit 5"]).await;
    let attach = async |args: &[&str]| site.say("attach", &[&[id.as_str()], args].concat()).await;
    let whole = attach(&[]).await;
    assert_eq!((whole.code, whole.stdout(), whole.stderr()), (5, "0123456789", ""));
    assert_eq!(attach(&["--from", "4"]).await.stdout(), "456789");
    let end = attach(&["--no-history"]).await;
    assert_eq!((end.code, end.stdout(), end.stderr()), (5, "", ""));
    assert!(attach(&["--from", "11"]).await.failure(125).contains("10"));
    let events = attach(&["--json"]).await;
    let last: Value = serde_json::from_str(events.stdout().lines().last().unwrap()).unwrap();
    assert_eq!((&last["event"], &last["exit_code"]), (&json!("exited"), &json!(5)));
}

#[tokio::test]
async fn ctrl_c_only_ends_the_following() {
    let site = Site::unix().await;
    let mark = marker();
    let id = site.detached(&["-e", &format!("{MARK}={mark}"), "-c", "echo ready; exec sleep 300"]).await;
    for (flags, survives) in [(&[][..], true), (&["--kill-on-disconnect"], false)] {
        let mut child = site.telexec("attach", &[flags, &[&id]].concat()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        assert_eq!(next_line(&mut stdout).await, "ready\n");
        interrupt(&child);
        let said = Said::by_child(child).await;
        assert_eq!((said.code, said.stderr().is_empty()), (130, !survives), "{said:?}");
        if survives {
            let again = format!("keeps running: follow it with `telexec attach {} {id}`", site.target[0]);
            assert!(said.remark().contains(&again), "{said:?}");
            assert_eq!(site.say("ps", &["-q"]).await.answer(), format!("{id}\n"));
        }
    }
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

#[tokio::test]
async fn output_that_is_no_longer_kept_is_reported() {
    let site = Site::unix().await;
    // of one whose caller does not come back only the last few KiB are kept
    let text = "echo ready; head -c 1000000 /dev/zero; echo; exec sleep 300";
    let (child, mut stdout) = site.running(&["--reconnect", "0", "-c", text]).await;
    let mut zeros = Vec::new();
    assert_eq!(within(stdout.read_until(b'\n', &mut zeros)).await.unwrap(), 1_000_001);
    let listed = site.say("ps", &["-q"]).await;
    let id = listed.answer().trim_end();
    site.say("kill", &[id]).await.answer();
    Said::by_child(child).await;
    let said = site.say("attach", &[id]).await;
    assert!(
        said.code == 143 && said.stdout.len() < 1_000_000 && said.remark().contains("missing"),
        "{}",
        said.stderr()
    );
    let said = site.say("attach", &["--json", id]).await;
    assert!(said.stdout().contains("{\"event\":\"gap\",\"resume_position\":"));
}

// input

#[tokio::test]
async fn input_goes_to_an_execution() {
    let site = Site::unix().await;
    let id = site.detached(&["-i", "--", "cat"]).await;
    let input = async |args: &[&str]| {
        site.say("input", args).await.answer();
    };
    input(&[&id, "one"]).await;
    input(&["-n", &id, "two "]).await;
    input(&[&id, "-three"]).await;
    let mut child = site.telexec("input", &[&id]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"four\n").await.unwrap();
    Said::by_child(child).await.answer();
    input(&["--close", &id, "five"]).await;
    assert_eq!(site.say("attach", &[&id]).await.answer(), "one\ntwo -three\nfour\nfive\n");
    site.say("input", &[&id, "six"]).await.failure(1);
}

#[tokio::test]
async fn a_command_without_input_refuses_it() {
    let site = Site::unix().await;
    let id = site.detached(&["-c", "echo out; sleep 300"]).await;
    assert!(site.say("input", &[&id, "text"]).await.failure(1).contains("started without -i"));
    let mut child = site.telexec("attach", &["-i", &id]).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(next_line(&mut stdout).await, "out\n");
    site.say("kill", &[&id]).await.answer();
    let said = Said::by_child(child).await;
    assert!(said.code == 143 && said.remark().contains("input"), "{said:?}");
}

#[tokio::test]
async fn who_attaches_can_write() {
    let site = Site::unix().await;
    let id = site.detached(&["-i", "--", "cat"]).await;
    site.say("input", &[&id, "before"]).await.answer();
    let mut child = site.telexec("attach", &["-i", &id]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"after\n").await.unwrap();
    assert_eq!(Said::by_child(child).await.answer(), "before\nafter\n");
}
