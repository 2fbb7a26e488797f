//! What is asked for: who may have a receipt, and what it says of a request.

use std::time::Duration;

use telexec_engine::{LocalConfig, LocalExecutor};
use telexec_executor::{DuplicatePolicy, ExecutorError, ListQuery, OnDisconnect};
use telexec_receipt::{COMMAND, STDERR, STDIN, STDOUT};
use telexec_tests::{Certs, Grpcurl, Leaf, exit_of, until, until_output, within};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn it_says_who_asked_for_what_and_what_came_of_it() {
    let (key, certs) = (Key::new(), Certs::new());
    let agent = key
        .agent()
        .mtls(&certs)
        .policy("@id(\"all\") @environment(\"*\") permit(principal, action, resource);")
        .start();
    let pair = certs.ca.issue(Leaf::client("builder"));
    let executor = agent.connect_as(&pair).await.executor();
    let argv = ["sh", "-c", "cat; echo more; echo error >&2; exit 3"];
    let command = Command::argv(argv).stdin("given").env("SECRET", "hidden").working_directory("/usr").reason("a test");
    let command = command.timeout(Duration::from_secs(60)).no_new_privileges(true);
    let (outcome, statement) = key.statement(&executor, command).await;
    let receipt = &statement.predicate;
    assert_eq!((outcome.text(), &*outcome.stderr), ("givenmore\n", &b"error\n"[..]));
    assert_eq!(statement.sha256(COMMAND).unwrap(), sha256(argv.map(|word| format!("{word}\0")).concat()));
    assert_eq!(statement.sha256(STDIN).unwrap(), sha256("given"));
    assert_eq!(statement.sha256(STDOUT).unwrap(), sha256("givenmore\n"));
    assert_eq!(statement.sha256(STDERR).unwrap(), sha256("error\n"));
    assert_eq!((&*receipt.caller.identity, &*receipt.caller.transport), ("builder", "mtls"));
    assert_eq!(receipt.caller.certificate_sha256.as_ref().unwrap(), &sha256(pair.der()));
    assert_eq!(receipt.policy.as_ref().unwrap().rules, ["all"]);
    assert_eq!(receipt.execution_id, outcome.started.id.as_str());
    assert_eq!((&receipt.request.argv, &*receipt.request.reason), (&Some(argv.map(str::to_owned).to_vec()), "a test"));
    assert_eq!(receipt.request.environment.as_ref().unwrap(), &["SECRET"]);
    assert_eq!((receipt.request.timeout_milliseconds, receipt.request.no_new_privileges), (Some(60_000), true));
    assert_eq!((receipt.start.pid, receipt.start.working_directory.as_deref()), (outcome.started.pid, Some("/usr")));
    assert_eq!(receipt.start.user, String::from_utf8(user_name().await).unwrap().trim());
    assert_eq!((&*receipt.end.cause, receipt.end.exit_code, receipt.end.surviving_processes), ("exited", 3, 0));
    assert_eq!((receipt.end.stdout.bytes, receipt.end.stderr.bytes), (10, 6));
    assert!(receipt.start.time <= receipt.end.time && receipt.start.time.ends_with('Z'), "{receipt:?}");
    // never the value of a variable
    assert!(!serde_json::to_string(&statement).unwrap().contains("hidden"));
}

async fn user_name() -> Vec<u8> {
    tokio::process::Command::new("id").arg("-un").output().await.unwrap().stdout
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_runs_where_none_is_signed() {
    let agent = Agent::builder().start();
    let file = agent.directory().join("ran");
    let command = || Command::shell(format!("touch {}", file.display())).receipt(true);
    let local = LocalExecutor::new(LocalConfig::default()).unwrap();
    for error in [run(&agent.executor().await, command()).await, run(&local, command()).await] {
        match error.unwrap_err() {
            ExecutorError::Unsupported { field, reason } => {
                assert!(field == "receipt" && reason.starts_with("cannot be given here: "), "{field}: {reason}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(!file.exists());
    assert_eq!(agent.connect().await.info().await.unwrap().receipt_key, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_asks_has_one_and_the_agent_names_its_key() {
    let key = Key::new();
    let agent = key.agent().start();
    assert_eq!(run(&agent.executor().await, Command::shell("true")).await.unwrap().exited.receipt, None);
    assert_eq!(agent.connect().await.info().await.unwrap().receipt_key, key.public.to_pem());
}

#[tokio::test(flavor = "multi_thread")]
async fn all_ways_to_an_exit_have_the_same_receipt() {
    let key = Key::new();
    let agent = key.agent().start();
    let executor = agent.executor().await;
    let outcome = run(&executor, Command::shell("echo a").receipt(true)).await.unwrap();
    let id = &outcome.started.id;
    let attached = within(executor.attach(id, telexec_executor::Attach::start())).await.unwrap();
    assert_eq!(exit_of(attached).await, outcome.exited);
    assert_eq!(within(executor.get(id)).await.unwrap().exited.unwrap(), outcome.exited);
    let request = serde_json::json!({"command": "echo b", "receipt": true});
    let answer = Grpcurl::new(&agent).call("telexec.v1.ExecutionService/Run", &request).await.message();
    let receipt = answer["exited"]["receipt"].as_str().unwrap();
    let statement = verify(receipt.as_bytes(), std::slice::from_ref(&key.public)).unwrap().statement;
    assert_eq!(statement.sha256(STDOUT).unwrap(), sha256("b\n"));
}

/// What callers choose is left out where it is long, or would be longer in JSON.
#[tokio::test(flavor = "multi_thread")]
async fn no_request_makes_it_long() {
    let key = Key::new();
    let directory = directory();
    // nearly as long as a path may be
    let mut path = directory.path().to_owned();
    while path.as_os_str().len() < 3800 {
        path.push("\u{1}".repeat(200));
    }
    std::fs::create_dir_all(&path).unwrap();
    let agent = key.agent().start();
    let executor = agent.executor().await;
    let names = |count: usize| (0..count).map(|number| (format!("\u{1}{number:0200}"), String::new()));
    let text = |length: usize| format!(": {}", "\u{1}".repeat(length));
    for (length, variables, is_there) in [(2_600, 10, true), (2_800, 20, false), (100_000, 2_000, false)] {
        let command = Command::shell(text(length)).envs(names(variables)).reason("\u{1}".repeat(1024));
        let command = command.working_directory(path.to_str().unwrap()).stdin(vec![0; 100_000]);
        let (_, statement) = key.statement(&executor, command).await;
        let request = &statement.predicate.request;
        assert_eq!(request.command.is_some(), is_there);
        assert_eq!((request.environment.is_some(), request.environment_count), (is_there, variables));
        assert_eq!(statement.sha256(COMMAND).unwrap(), sha256(text(length)));
        assert_eq!((request.command_bytes, request.stdin_bytes), (length as u64 + 2, 100_000));
        assert_eq!(statement.predicate.start.working_directory, None);
    }
}

/// A command that has a receipt is not the same as one that has none.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_command_without_one_is_not_used_for_it() {
    let key = Key::new();
    let agent = key.agent().start();
    let executor = agent.executor().await;
    let same = || Command::shell("echo ready; sleep 600").duplicate_policy(DuplicatePolicy::ReuseRunning);
    let mut running = Vec::new();
    for receipt in [false, true] {
        let mut execution = within(executor.execute(same().receipt(receipt).build().unwrap())).await.unwrap();
        until_output(&mut execution, "ready\n").await;
        running.push(execution);
    }
    let again = executor.execute(same().receipt(true).build().unwrap()).await;
    match again.unwrap_err() {
        ExecutorError::AlreadyRunning(info) => assert_eq!(info.id, *running[1].id()),
        other => panic!("{other:?}"),
    }
    // nor is one of the same id
    let named = |receipt| {
        let command = Command::shell("true").execution_id("same".parse().unwrap()).on_disconnect(OnDisconnect::Detach);
        run(&executor, command.receipt(receipt))
    };
    let first = named(true).await.unwrap().exited;
    assert_eq!(named(true).await.unwrap().exited, first);
    assert!(matches!(named(false).await, Err(ExecutorError::AlreadyExists(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_named_command_it_says_what_ran() {
    let key = Key::new();
    let commands = "[commands.greet]\nargv = [\"echo\", \"hello {a,b}\"]\nenvironment = { TOKEN = \"hidden\" }";
    let agent = key.agent_with(commands).start();
    let (outcome, statement) = key.statement(&agent.executor().await, Command::argv(["@greet", "hello b"])).await;
    let request = &statement.predicate.request;
    assert_eq!((outcome.text(), request.named_command.as_deref()), ("hello b\n", Some("greet")));
    assert_eq!(request.argv.as_ref().unwrap(), &["echo", "hello b"]);
    assert_eq!(statement.sha256(COMMAND).unwrap(), sha256("echo\0hello b\0"));
    assert!(!serde_json::to_string(&statement).unwrap().contains("hidden"));
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_leave_it_out_and_the_audit_log_has_its_digest() {
    let (key, directory) = (Key::new(), directory());
    let log = directory.path().join("audit.log");
    let agent = key.agent_with(&format!("[audit]\nfile = {log:?}")).start();
    let executor = agent.executor().await;
    let (outcome, _) = key.statement(&executor, Command::shell("true")).await;
    let query = ListQuery { include_exited: true, ..ListQuery::default() };
    let listed = within(executor.list(query)).await.unwrap().executions;
    assert_eq!(listed[0].exited.as_ref().unwrap().receipt, None);
    let digest = sha256(outcome.exited.receipt.as_deref().unwrap());
    let is_there =
        async || std::fs::read_to_string(&log).unwrap().contains(&format!("\"receipt_sha256\":\"{digest}\""));
    until("the end is in the log", is_there).await;
}
