//! How output is shown: live, gathered, as differences, as JSON, in files.

use std::process::Stdio;

use serde_json::{Value, json};
use telexec_tests::within;
use tokio::io::AsyncWriteExt;

use super::super::Said;
use super::{Fleet, sorted, summary};

#[tokio::test]
async fn lines_have_their_host_before_them() {
    let fleet = Fleet::of(2);
    let said = fleet.say(&["-q", "-w", "@web", "-c", "echo out; echo err >&2; printf last"]).await;
    assert_eq!(said.code, 0);
    assert_eq!(sorted(said.stdout()), ["web01: last", "web01: out", "web02: last", "web02: out"]);
    assert_eq!(sorted(said.stderr()), ["web01: err", "web02: err"]);
    assert_eq!(fleet.say(&["-q", "-N", "-w", "@web", "--", "echo", "out"]).await.answer(), "out\nout\n");
}

#[tokio::test]
async fn bytes_are_exact_and_lines_are_whole() {
    let fleet = Fleet::of(8);
    let text = "for i in $(seq 200); do printf '%s\\377\\0' $i; printf '%s\\n' b; done";
    let said = fleet.say(&["-q", "-w", "@web", "-c", text]).await;
    let expected = |host: usize| {
        let line = move |i: usize| [format!("web{host:02}: {i}").as_bytes(), b"\xff\0b"].concat();
        (1..=200).map(line).collect::<Vec<_>>()
    };
    for host in 1..=8 {
        let prefix = format!("web{host:02}: ");
        let lines = said.stdout.split(|byte| *byte == b'\n').filter(|line| line.starts_with(prefix.as_bytes()));
        assert_eq!(lines.collect::<Vec<_>>(), expected(host));
    }
}

#[tokio::test]
async fn a_line_without_an_end_comes_in_pieces() {
    let fleet = Fleet::of(1);
    let said = fleet.say(&["-q", "-w", "web01", "-c", "head -c 100000 /dev/zero | tr '\\0' x"]).await;
    let lines: Vec<_> = said.answer().lines().map(|line| line.strip_prefix("web01: ").unwrap()).collect();
    assert_eq!(lines.concat(), "x".repeat(100_000));
    assert_eq!(lines.len(), 100_000_usize.div_ceil(16 * 1024));
}

/// A text that says the same everywhere but on other.
const KIND: &str = "echo 1; echo ${KIND:-usual}; echo 3; echo err >&2";

#[tokio::test]
async fn the_same_output_is_gathered() {
    let fleet = Fleet::of(3);
    let said = fleet.say(&["-qb", "-w", "@web,other", "-c", KIND]).await;
    let rule = "---------------\n";
    let blocks = format!("{rule}web[01-03] (3)\n{rule}1\nusual\n3\n{rule}other\n{rule}1\nother\n3\n");
    assert_eq!((said.code, said.stdout()), (0, &*blocks));
    assert_eq!(sorted(said.stderr()), ["other: err", "web01: err", "web02: err", "web03: err"]);
    let said = fleet.say(&["-qB", "-w", "@web", "-c", "echo err >&2"]).await;
    assert_eq!(said.answer(), format!("{rule}web[01-03] (3)\n{rule}err\n"));
    assert_eq!(fleet.say(&["-qbN", "-w", "@web", "-c", "printf x"]).await.answer(), "x\n");
}

#[tokio::test]
async fn differences_are_shown() {
    let fleet = Fleet::of(2);
    let said = fleet.say(&["-q", "--diff", "-w", "@web,other", "-c", KIND]).await;
    let (_, diff) = said.stdout().split_once("3\n").unwrap();
    assert_eq!(diff, "--- web[01-02]\n+++ other\n@@ -1,3 +1,3 @@\n 1\n-usual\n+other\n 3\n");
}

#[tokio::test]
async fn output_comes_in_the_order_of_the_hosts() {
    let fleet = Fleet::of(4);
    // the first waits for the others
    let text = "mkdir -p $D; touch $D/$$; until [ $(ls $D | wc -l) = 4 ]; do sleep 0.01; done; echo a; echo b";
    let directory = format!("D={}", fleet.path().join("seen").display());
    let said = fleet.say(&["-qL", "-e", &directory, "-w", "@web", "-c", text]).await;
    let lines = (1..=4).flat_map(|host| ["a", "b"].map(|line| format!("web{host:02}: {line}\n")));
    assert_eq!(said.answer(), lines.collect::<String>());
    let said = fleet.say(&["-qbL", "-w", "@web,other", "-c", "echo 1; echo ${KIND:-usual}; echo 3"]).await;
    let all = "other,web[01-04]";
    assert_eq!(said.answer(), format!("{all}: 1\nweb[01-04]: usual\nother: other\n{all}: 3\n"));
}

#[tokio::test]
async fn what_is_kept_is_limited_and_what_is_missing_reported() {
    let fleet = Fleet::of(2);
    let said = fleet.say(&["-b", "--keep", "4", "-w", "@web", "-c", "echo 123456"]).await;
    assert!(said.stdout().ends_with("1234\n") && said.code == 0, "{said:?}");
    assert!(said.remark().contains("web[01-02]: 3 more bytes were dropped"), "{said:?}");
}

#[tokio::test]
async fn json_lines_tell_the_events() {
    let fleet = Fleet::of(2);
    let said = fleet.say(&["--json", "-w", "@web", "-c", "echo out; echo err >&2; exit 3"]).await;
    assert_eq!((said.code, said.stderr()), (1, ""));
    let lines: Vec<Value> = said.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for host in ["web01", "web02"] {
        let events: Vec<_> = lines.iter().filter(|line| line["host"] == host).collect();
        let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
        assert_eq!((names[0], names[3], names.len()), ("started", "outcome", 4), "{names:?}");
        assert!(events.iter().any(|event| event["event"] == "stderr" && event["text"] == "err\n"));
        assert_eq!((&events[3]["outcome"], &events[3]["exit_code"]), (&json!("failed"), &json!(3)));
        assert_eq!(events[3]["exited"]["cause"], "exited");
    }
    let last = lines.last().unwrap();
    assert_eq!((&last["event"], &last["hosts"], &last["failed"]), (&json!("summary"), &json!(2), &json!(2)));
}

#[tokio::test]
async fn files_hold_what_each_host_wrote() {
    let fleet = Fleet::of(2);
    fleet.add("gone", "127.0.0.1:1");
    let directory = fleet.path().join("out");
    let text = "echo out; echo err >&2; exit 3";
    let said = fleet.say(&["-qS", "--outdir", directory.to_str().unwrap(), "-w", "@web,gone", "-c", text]).await;
    assert_eq!(said.code, 255);
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    assert_eq!((read("web01/stdout"), read("web02/stderr")), ("out\n".to_owned(), "err\n".to_owned()));
    let record = |host: &str| serde_json::from_str::<Value>(&read(&format!("{host}/exit.json"))).unwrap();
    assert_eq!((&record("web01")["exit_code"], &record("gone")["outcome"]), (&json!(3), &json!("unreachable")));
}

#[tokio::test]
async fn standard_input_goes_to_all() {
    let fleet = Fleet::of(3);
    let mut command = fleet.telexec(&["-qb", "-i", "-f", "1", "-w", "@web", "--", "wc", "-c"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    within(stdin.write_all(&vec![b'x'; 1_000_000])).await.unwrap();
    drop(stdin);
    let said = Said::by_child(child).await;
    assert!(said.answer().contains("web[01-03] (3)") && said.answer().ends_with("\n1000000\n"), "{said:?}");
}

#[tokio::test]
async fn color_is_for_those_who_want_it() {
    let fleet = Fleet::of(1);
    let said = async |variables: &[(&str, &str)]| {
        let mut command = fleet.telexec(&["-q", "-w", "web01", "--", "echo", "hi"]);
        command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").envs(variables.iter().copied());
        Said::by(command).await.answer().to_owned()
    };
    assert_eq!(said(&[]).await, "web01: hi\n");
    assert!(said(&[("CLICOLOR_FORCE", "1")]).await.contains("\x1b["));
    assert_eq!(said(&[("NO_COLOR", "1")]).await, "web01: hi\n");
}

#[tokio::test]
async fn the_summary_tells_ends_apart() {
    let fleet = Fleet::of(3);
    fleet.add("gone", "127.0.0.1:1");
    let text = "[ \"$KIND\" = other ] && sleep 60; exit 3";
    let said = fleet.say(&["-u", "2s", "-w", "@web,other,gone", "-c", text]).await;
    assert_eq!((said.code, said.stdout()), (1, ""));
    let lines = [
        "0 of 5 ok, 3 failed, 1 timed out, 1 unreachable",
        "  web[01-03]: failed: exit code 3",
        "  other: timed out",
        "  gone: unreachable: Connection refused (os error 111)",
        "no agent is listening there: check the port, and that telexecd is running",
    ];
    assert_eq!(summary(&said), lines);
}
