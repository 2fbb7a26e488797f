//! What a record says, and what it does not.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Value, json};
use telexec_executor::{Command, CommandBuilder, Descendants, Executor, ResourceLimits, TerminalSize};
use telexec_proto::v1::ExecuteRequest;
use telexec_tests::{Agent, AgentBuilder, Certs, Wire, follow, run};
use tonic::Request;

use super::{Audit, assert_whole, digest_of};

/// The start of what one agent runs.
async fn started(audit: &Audit, more: &str, command: CommandBuilder) -> Value {
    let agent = audit.agent(more).start();
    let _ = run(&agent.executor().await, command).await;
    audit.wait("start", 1).await.swap_remove(0)
}

fn sha256(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_says_how_it_was_asked_for() {
    let audit = Audit::new();
    let limits = ResourceLimits { max_processes: Some(100), ..ResourceLimits::default() };
    let command = Command::shell("cat; exit 0").shell("sh").working_directory("/usr").user("root").limits(limits);
    let command = command.env("TOKEN", "s3cret-value").env("A", "s3cret").clear_environment(true);
    let command = command.timeout(Duration::from_secs(60)).deadline(Instant::now() + Duration::from_secs(600));
    let labels = [("job".to_owned(), "nightly".to_owned())];
    let command = command.stdin("s3cret input").reason("ticket 7").labels(labels).descendants(Descendants::Kill);
    let start = started(&audit, "", command).await;
    for (field, value) in [
        ("command", json!("cat; exit 0")),
        ("shell", json!("sh")),
        ("directory", json!("/usr")),
        ("user", json!("root")),
        ("environment", json!(["A", "TOKEN"])),
        ("clear_environment", json!(true)),
        ("timeout_ms", json!(60_000)),
        ("stdin_bytes", json!(12)),
        ("reason", json!("ticket 7")),
        ("labels", json!({"job": "nightly"})),
        ("kills_descendants", json!(true)),
        ("limits", json!({"max_processes": 100})),
        ("decision", json!("allow")),
        ("transport", json!("unix")),
        ("rpc", json!("Execute")),
        ("peer_pid", json!(std::process::id())),
        ("seq", json!(2)),
    ] {
        assert_eq!(start[field], value, "{field}");
    }
    let time = |field: &str| start[field].as_str().unwrap().to_owned();
    assert!(time("deadline") > time("time") && time("time").ends_with('Z') && time("time").len() == 27);
    assert!(!std::fs::read_to_string(audit.file()).unwrap().contains("s3cret"));
}

#[tokio::test(flavor = "multi_thread")]
async fn digests_are_of_what_was_written() {
    let audit = Audit::new();
    let agent = audit.agent("").start();
    let executor = agent.executor().await;
    let text = "head -c 3000000 /dev/urandom & head -c 2000000 /dev/urandom >&2; wait";
    let all = run(&executor, Command::shell(text)).await.unwrap();
    let seq = || Command::argv(["seq", "1", "100000"]);
    let numbers = run(&executor, seq()).await.unwrap().stdout;
    let some = run(&executor, seq().max_output_bytes(1000)).await.unwrap();
    assert_eq!(some.stdout.len(), 1000);
    let terminal = TerminalSize::new(80, 24).unwrap();
    let typed = run(&executor, Command::shell("seq 1 10000; echo é >&2").terminal(terminal)).await.unwrap();
    let ends = audit.wait("end", 4).await;
    let expected = [(&all.stdout, &all.stderr), (&numbers, &vec![]), (&numbers, &vec![]), (&typed.stdout, &vec![])];
    for (end, (stdout, stderr)) in ends.iter().zip(expected) {
        for (stream, bytes) in [("stdout", stdout), ("stderr", stderr)] {
            assert_eq!(end[stream]["sha256"], sha256(bytes), "{end}");
            assert_eq!(end[stream]["bytes"], bytes.len());
        }
    }
    assert_eq!(ends[2]["stdout"]["dropped_bytes"], numbers.len() - 1000);
}

/// Newlines, escapes of terminals, invisible and bidirectional characters, forged lines.
#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_command_is_one_line_of_printable_ascii() {
    let audit = Audit::new();
    let odd: String = (1..=0x2100).chain([0xfeff, 0x1f980, 0xe0041]).filter_map(char::from_u32).collect();
    let forged = "\"}\n{\"seq\":9,\"event\":\"end\",\"hash\":\"0\"}\r\n\x1b[2J\x1b]0;title\x07";
    let text = format!(": '{forged}{}'", odd.replace('\'', ""));
    let command = Command::shell(&text).env("A\nB\x1b", "").reason("é\u{202e}\n").working_directory("/\x1b[31m\n");
    let start = started(&audit, "", command.clone()).await;
    assert_eq!((&start["command"], &start["reason"]), (&json!(text), &json!("é\u{202e}\n")));
    assert_eq!((&start["environment"], &start["directory"]), (&json!(["A\nB\x1b"]), &json!("/\x1b[31m\n")));
    audit.wait("not_started", 1).await;
    let bytes = std::fs::read(audit.file()).unwrap();
    assert!(bytes.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\n')));
    assert_eq!(bytes.iter().filter(|byte| **byte == b'\n').count(), audit.records().len());
    assert_whole(&audit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_redacted_is_not_there() {
    let audit = Audit::new();
    let more = r#"redact = ['(?i)password[ =]\S+', 'AKIA[A-Z0-9]{16}']"#;
    let agent = audit.agent(more).start();
    let executor = agent.executor().await;
    let text = "echo PASSWORD=s3cret AKIA0123456789ABCDEF shown";
    run(&executor, Command::shell(text).reason("password s3cret, shown")).await.unwrap();
    run(&executor, Command::argv(["echo", "--password", "s3cret", "shown"])).await.unwrap();
    let starts = audit.wait("start", 2).await;
    assert_eq!(starts[0]["command"], "echo [redacted] [redacted] shown");
    assert_eq!(starts[0]["reason"], "[redacted] shown");
    assert_eq!(starts[1]["argv"], json!(["echo", "--[redacted]", "[redacted]", "shown"]));
    // what is not recorded in full is identified by its programs, and by a digest that is nothing without its key
    run(&executor, Command::shell("echo PASSWORD=s3cret | $x")).await.unwrap();
    let unknown = audit.wait("start", 3).await.swap_remove(2);
    assert_eq!((&starts[0]["programs"], &starts[0]["more_programs"]), (&json!(["echo"]), &Value::Null));
    assert_eq!((&unknown["programs"], &unknown["more_programs"]), (&json!(["echo"]), &json!(true)));
    let argv = ["--", "echo", "--password", "s3cret", "shown"];
    for (start, argv, text) in [(&starts[0], &argv[..0], text), (&starts[1], &argv[..], "")] {
        let (key, digest) = digest_of(&audit.file(), argv, text).await;
        assert_eq!((&start["hmac_key"], &start["command_hmac_sha256"]), (&json!(key), &json!(digest)));
    }
    let other = Audit::new();
    let _other = other.agent("").start();
    assert_ne!(digest_of(&other.file(), &[], text).await, digest_of(&audit.file(), &[], text).await);
    let key = std::fs::metadata(audit.file().with_file_name("audit.log.key")).unwrap();
    assert_eq!(key.mode() & 0o777, 0o600);
    assert!(!std::fs::read_to_string(audit.file()).unwrap().contains("s3cret"));
}

#[tokio::test(flavor = "multi_thread")]
async fn less_can_be_recorded() {
    let text = || Command::shell("echo s3cret | grep -c s; $x").reason("why");
    for (more, programs, unknown) in [
        ("commands = \"programs\"\noutput_digest = false", json!(["echo", "grep"]), json!(true)),
        ("commands = \"none\"\noutput_digest = false", Value::Null, Value::Null),
    ] {
        let audit = Audit::new();
        let start = started(&audit, more, text()).await;
        assert_eq!((&start["programs"], &start["more_programs"]), (&programs, &unknown));
        assert_eq!((&start["command_bytes"], &start["reason"]), (&json!(27), &json!("why")));
        let end = audit.wait("end", 1).await;
        assert_eq!(end[0]["stdout"], json!({"bytes": 2}));
        assert!(!std::fs::read_to_string(audit.file()).unwrap().contains("s3cret"));
    }
}

/// What each shell would run of one text, as the policy sees it and as it is recorded, whether or not there is a policy.
#[tokio::test(flavor = "multi_thread")]
async fn the_programs_recorded_are_those_that_the_policy_saw() {
    const PERMIT: &str = r#"@environment("*") permit(principal, action, resource);"#;
    const DENY: &str = r#"permit(principal, action == Action::"CheckCommand", resource);"#;
    let commands = [
        (Command::shell("[[ -d / ]] && true"), false),
        (Command::shell("[[ -d / ]] && true").shell("dash"), true),
        (Command::shell("true").shell("/bin/dash"), false),
        (Command::shell("true").shell("busybox"), true),
        (Command::shell("true").env("PATH", "/bin"), true),
        (Command::shell(format!("[[ -d / ]] && {}true", "true; ".repeat(200))).shell("dash"), true),
    ];
    for (policy, event) in [(None, "start"), (Some(PERMIT), "start"), (Some(DENY), "denied")] {
        let audit = Audit::new();
        let agent = audit.agent("commands = \"programs\"");
        let agent = policy.into_iter().fold(agent, AgentBuilder::policy).start();
        let (client, executor) = (agent.connect().await, agent.executor().await);
        for (count, (command, more)) in (1..).zip(&commands) {
            let seen = client.check(&command.clone().build().unwrap()).await.unwrap();
            let _ = run(&executor, command.clone()).await;
            let record = audit.wait(event, count).await.swap_remove(count - 1);
            assert_eq!(record["programs"], json!(seen.programs), "{policy:?} {record}");
            assert_eq!(record["more_programs"] == json!(true), *more, "{policy:?} {record}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_too_long_for_a_line_is_cut_and_known_by_its_digest() {
    let audit = Audit::new();
    let agent = audit.agent("").start();
    let executor = agent.executor().await;
    let text = format!(": '{}'", "\u{7f}".repeat(1_000_000));
    run(&executor, Command::shell(&text)).await.unwrap_err();
    let argv: Vec<String> = (0..100_000).map(|number| format!("{number:08}")).collect();
    run(&executor, Command::argv(["true"].into_iter().chain(argv.iter().map(String::as_str)))).await.unwrap();
    let names = (0..10_000).map(|number| (format!("N{number}"), "v".to_owned()));
    run(&executor, Command::argv(["true"]).envs(names)).await.unwrap();
    let starts = audit.wait("start", 3).await;
    let (_, digest) = digest_of(&audit.file(), &[], &text).await;
    assert_eq!((&starts[0]["command_bytes"], &starts[0]["command_hmac_sha256"]), (&json!(text.len()), &json!(digest)));
    assert_eq!((&starts[0]["programs"], &starts[0]["more_programs"]), (&json!([]), &json!(true)));
    assert!(text.starts_with(starts[0]["command"].as_str().unwrap()));
    let reported = starts[1]["argv"].as_array().unwrap();
    assert!(reported.len() > 5000 && reported.len() < 100_000 && reported[1] == "00000000");
    assert_eq!((&starts[1]["command_bytes"], &starts[2]["more_environment"]), (&json!(800_004), &json!(true)));
    audit.wait("end", 2).await;
    assert_whole(&audit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_are_reported_by_their_certificates_and_calls_by_their_traces() {
    let (audit, certs) = (Audit::new(), Certs::new());
    let agent = Agent::builder().mtls(&certs).config(audit.config("")).start();
    let wire = Wire::connect_tls(&agent, certs.config(Some(&certs.client))).await.unwrap();
    let mut request = Request::new(ExecuteRequest { command: "exit 0".into(), ..Default::default() });
    let trace = "0af7651916cd43dd8448eb211c80319c";
    request.metadata_mut().insert("traceparent", format!("00-{trace}-b7ad6b7169203331-01").parse().unwrap());
    follow(wire.executions().execute(request).await.unwrap().into_inner()).await;
    let end = audit.wait("end", 1).await.swap_remove(0);
    let start = audit.events("start").swap_remove(0);
    for record in [start, end] {
        assert_eq!((&record["transport"], &record["trace_id"]), (&json!("mtls"), &json!(trace)));
        assert_eq!(record["certificate_fingerprint"].as_str().unwrap().len(), 64);
        assert!(record["certificate_serial"].as_str().unwrap().contains(':'), "{record}");
        assert!(record["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{record}");
        assert_eq!(record["peer_uid"], Value::Null);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_for_its_pace_is_reported() {
    let audit = Audit::new();
    let agent = Agent::builder().config(format!("max_starts_per_second = 1\n{}", audit.config(""))).start();
    let executor = agent.executor().await;
    let command = || Command::shell("echo ran").build().unwrap();
    let _runs = executor.execute(command()).await.unwrap();
    executor.execute(command()).await.unwrap_err();
    let refused = audit.wait("refused", 1).await.swap_remove(0);
    assert_eq!((&refused["error"], &refused["command"]), (&json!("exhausted"), &json!("echo ran")));
    assert_eq!(audit.events("start").len(), 1);
}
