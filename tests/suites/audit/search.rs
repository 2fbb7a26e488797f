//! `telexecd audit search` and `show`.

use std::path::Path;

use serde_json::Value;
use telexec_executor::{Command, CommandBuilder, Executor, Signal};
use telexec_tests::{collect, program, run, within};

use super::Audit;

async fn search(log: &Path, args: &[&str]) -> (i32, Vec<String>) {
    audit(&[&["search"], args, &[log.to_str().unwrap()]].concat()).await
}

/// Its exit code, and the lines that it prints; what it says on standard error instead, if it fails.
async fn audit(args: &[&str]) -> (i32, Vec<String>) {
    let mut command = tokio::process::Command::new(program("telexecd"));
    command.arg("audit").args(args).kill_on_drop(true);
    let output = within(command.output()).await.unwrap();
    let text = if output.status.code() == Some(2) { output.stderr } else { output.stdout };
    let text = String::from_utf8(text).unwrap();
    (output.status.code().unwrap(), text.lines().map(str::to_owned).collect())
}

/// The events of the records that it prints.
async fn events(log: &Path, args: &[&str]) -> String {
    let (code, lines) = search(log, &[args, &["--json"]].concat()).await;
    assert_eq!(code, i32::from(lines.is_empty()), "{lines:?}");
    let event = |line: &String| serde_json::from_str::<Value>(line).unwrap()["event"].as_str().unwrap().to_owned();
    lines.iter().map(event).collect::<Vec<_>>().join(" ")
}

async fn exited(executor: &impl Executor, command: CommandBuilder) -> i32 {
    run(executor, command).await.unwrap().exited.exit_code()
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_found_by_who_what_and_when() {
    let audit = Audit::new();
    let agent = audit.agent("[commands.greet]\nargv = [\"echo\", \"hello\", \"{a,b}\"]").start();
    let executor = agent.executor().await;
    let named = |words: &[&str]| Command::argv(words.iter().copied());
    assert_eq!(
        exited(&executor, named(&["@greet", "a"]).reason("INC-7").execution_id("one-1".parse().unwrap())).await,
        0
    );
    run(&executor, named(&["@greet", "x"])).await.unwrap_err();
    let labels = ["job", "host"].map(|name| (name.to_owned(), format!("{name}-1")));
    let labelled = Command::shell("exit 3").execution_id("two".parse().unwrap()).labels(labels);
    assert_eq!(exited(&executor, labelled.env("RELEASE", "9")).await, 3);
    run(&executor, named(&["/no/such/program"])).await.unwrap_err();
    audit.wait("end", 2).await;
    audit.wait("not_started", 1).await;
    let log = audit.file();
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("telexecd.toml");
    std::fs::write(&config, format!("[audit]\nfile = {log:?}\n")).unwrap();
    assert_eq!(self::audit(&["search", "--config", config.to_str().unwrap()]).await, search(&log, &[]).await);
    let identity = format!("unix:uid={}", rustix::process::getuid().as_raw());
    for (args, found) in [
        (&[][..], "opened start end refused start end start not_started"),
        (&["--text", "@greet"], "start end refused"),
        (&["--text", "hello"], "start end"),
        (&["--text", "INC-7"], "start end"),
        (&["--text", "exit 3", "--event", "end"], "end"),
        (&["--event", "refused", "--event", "not_started"], "refused not_started"),
        (&["--id", "one"], "start end"),
        (&["--exit-code", "3"], "start end"),
        (&["--label", "job=job-1", "--label", "host=host-1"], "start end"),
        (&["--label", "job=job-1", "--label", "host=job-1"], ""),
        (&["--label", "job="], ""),
        (&["--text", "RELEASE", "--event", "start"], "start"),
        (&["--exit-code", "3", "--exit-code", "0", "--event", "end"], "end end"),
        (&["--exit-code", "3", "--cause", "signaled"], ""),
        (&["--cause", "exited", "--id", "one"], "start end"),
        (&["--cause", "not_started"], "start not_started"),
        (&["--unfinished"], ""),
        (&["--user", "no-such-user"], ""),
        (&["--identity", &identity, "--event", "start"], "start start start"),
        (&["--identity", "unix:uid=*", "--id", "two"], "start end"),
        (&["--identity", "anna"], ""),
        (&["--since", "1h", "--event", "opened"], "opened"),
        (&["--until", "1h"], ""),
        (&["--since", "2100-01-01"], ""),
        (&["--since", "2020-01-01T00:00:00Z", "--until", "2100-01-01", "--event", "opened"], "opened"),
    ] {
        assert_eq!(events(&log, args).await, found, "{args:?}");
    }
    let (_, lines) = search(&log, &["--id", "one-1"]).await;
    let [start, end] = &lines[..] else { panic!("{lines:?}") };
    assert!(start.ends_with(&format!("  start  {identity}  one-1  @greet: echo hello a; reason: INC-7")), "{start}");
    assert!(end.contains("  one-1  exit code 0 after "), "{end}");
}

/// What an agent recorded that was killed; and who approved what.
#[tokio::test(flavor = "multi_thread")]
async fn executions_are_found_by_their_approval_and_their_end() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let records = [
        r#""event":"denied","identity":"anna","approval_id":"A1""#,
        r#""event":"call","identity":"bob","rpc":"ApproveExecution","approval_id":"A1""#,
        r#""event":"start","execution_id":"x","identity":"anna","approval_id":"A1","approved_by":"ops/bob","user":"root""#,
        r#""event":"start","execution_id":"xy","identity":"anna","argv":["lost"]"#,
        r#""event":"end","execution_id":"x","start":3,"cause":"timed_out","exit_code":-1,"user":"root""#,
        r#""event":"end","execution_id":"z","cause":"timed_out","exit_code":-1,"user":"www""#,
        r#""event":"start","execution_id":"y","identity":"anna""#,
        r#""event":"end","execution_id":"y","start":7,"cause":"exited","exit_code":0,"user":"www""#,
    ];
    let line = |(number, record): (usize, &&str)| {
        format!("{{\"seq\":{},\"time\":\"2026-01-02T03:04:05Z\",{record}}}\n", number + 1)
    };
    std::fs::write(&log, records.iter().enumerate().map(line).collect::<String>()).unwrap();
    for (args, found) in [
        (&["--approved-by", "ops/*"][..], "start end"),
        (&["--approved-by", "bob"], ""),
        (&["--user", "root"], "start end"),
        (&["--cause", "timed_out"], "start end end"),
        (&["--user", "www"], "end start end"),
        (&["--cause", "timed_out", "--user", "www"], "end"),
        (&["--unfinished"], "start"),
        (&["--unfinished", "--text", "lost"], "start"),
        (&["--unfinished", "--id", "z"], ""),
    ] {
        assert_eq!(events(&log, args).await, found, "{args:?}");
    }
    let log = log.to_str().unwrap();
    for id in ["x", "A1"] {
        let (code, lines) = audit(&["show", log, id]).await;
        let headings: Vec<_> = lines.iter().filter(|line| line.contains(", record ")).collect();
        assert_eq!((code, headings.len()), (0, 4), "{id}: {lines:?}");
        assert!(!headings.iter().any(|heading| heading.contains("without an end")), "{headings:?}");
    }
    let (_, lines) = audit(&["show", log, "xy"]).await;
    assert_eq!(lines[0], "start, record 4, 2026-01-02T03:04:05Z, without an end");
    let (code, lines) = audit(&["show", "--json", log, "xy"]).await;
    let record: Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!((code, lines.len(), &record["argv"][0]), (0, 1, &Value::from("lost")));
    // all that it reads twice has to be there twice
    let (code, said) = search(Path::new("/dev/stdin"), &["--unfinished"]).await;
    assert!(code == 2 && said[0].contains("it is not a regular file"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_record_is_reported_and_the_rest_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let record = r#"{"time":"2026-01-02T03:04:05Z","event":"start","identity":"a","argv":["\u001b[2J\u202e"]}"#;
    let long = "x".repeat(3 << 20);
    std::fs::write(&log, format!("{record}\n[1]\n{long}\n{record}\nno end")).unwrap();
    let (code, said) = search(&log, &[]).await;
    assert_eq!((code, said.len()), (2, 1));
    assert!(said[0].ends_with(": line 2 and maybe others are no records"), "{said:?}");
    std::fs::write(&log, format!("{record}\n{record}\n")).unwrap();
    let (code, lines) = search(&log, &[]).await;
    assert_eq!((code, lines.len()), (0, 2));
    // nothing that a terminal obeys
    assert!(lines[0].ends_with(r"  \u{1b}[2J\u{202e}"), "{lines:?}");
    let (code, said) = search(&directory.path().join("none"), &[]).await;
    assert!(code == 2 && said[0].contains("cannot read"), "{said:?}");
}

/// Its start, an operation on it, and its end, in full. No text of its caller looks like a field.
#[tokio::test(flavor = "multi_thread")]
async fn an_execution_is_shown_in_full() {
    let audit_log = Audit::new();
    let agent = audit_log.agent("").start();
    let executor = agent.executor().await;
    let id = "shown-1".parse().unwrap();
    let command = Command::shell("sleep 300\nagent  forged \u{1b}[2J").reason("INC-7").execution_id(id);
    let execution = within(executor.execute(command.build().unwrap())).await.unwrap();
    within(executor.signal(execution.id(), Signal::KILL)).await.unwrap();
    collect(execution).await.unwrap();
    run(&executor, Command::shell("true").execution_id("shown-10".parse().unwrap())).await.unwrap();
    audit_log.wait("end", 2).await;
    let log = audit_log.file();
    let (code, lines) = audit(&["show", log.to_str().unwrap(), "shown-1"]).await;
    assert_eq!(code, 0, "{lines:?}");
    let blocks: Vec<&[String]> = lines.split(String::is_empty).collect();
    let [start, call, end] = blocks[..] else { panic!("{lines:?}") };
    for (block, event) in [(start, "start, record 2, 2"), (call, "call, record 3, 2"), (end, "end, record 4, 2")] {
        assert!(block[0].starts_with(event), "{block:?}");
        assert!(block.iter().skip(1).all(|line| line.starts_with("  ")), "{block:?}");
        let fields: Vec<&str> = block.iter().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(fields[1], "execution_id", "{block:?}");
    }
    let value = |block: &[String], name: &str| -> Option<String> {
        let line = block.iter().find(|line| line.trim_start().starts_with(&format!("{name} ")))?;
        Some(line.trim_start().trim_start_matches(name).trim_start().to_owned())
    };
    assert_eq!(value(start, "command").unwrap(), "sleep 300");
    let second = start.iter().skip_while(|line| !line.contains("sleep 300")).nth(1).unwrap();
    assert_eq!(second.trim_start(), r"agent  forged \u{1b}[2J", "below the text, not among the names");
    let column = start.iter().find_map(|line| line.find("sleep 300"));
    assert_eq!(second.find("agent"), column, "{start:?}");
    assert_eq!(value(start, "reason").unwrap(), "INC-7");
    assert_eq!(value(call, "rpc").unwrap(), "SignalExecution");
    assert_eq!((value(end, "cause").unwrap(), value(end, "stdout.bytes").unwrap()), ("signaled".into(), "0".into()));
    assert!(value(end, "hash").is_none() && value(end, "prev").is_none());
    // a beginning finds all
    let (_, lines) = audit(&["show", log.to_str().unwrap(), "shown"]).await;
    assert_eq!(lines.split(String::is_empty).count(), 5, "{lines:?}");
    let (code, lines) = audit(&["show", log.to_str().unwrap(), "none"]).await;
    assert_eq!((code, lines.len()), (1, 0));
    let (code, said) = audit(&["show", "/dev/null", "shown"]).await;
    assert!(code == 2 && said[0].contains("it is not a regular file"), "{said:?}");
}

/// As `head -n 1` does.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_reads_the_output_may_have_seen_enough() {
    let audit = Audit::new();
    let mut agent = audit.agent("").start();
    run(&agent.executor().await, Command::argv(["true"])).await.unwrap();
    agent.terminate().await;
    let (read, write) = std::io::pipe().unwrap();
    drop(read);
    let mut command = tokio::process::Command::new(program("telexecd"));
    command.args(["audit", "search"]).arg(audit.file()).stdout(write);
    let output = within(command.output()).await.unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}
