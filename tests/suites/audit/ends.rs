//! Each start has one end.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::{Value, json};
use telexec_executor::{
    Attach, Command, CommandBuilder, DuplicatePolicy, Event, Execution, ExecutionId, Executor, ExecutorError,
    OnDisconnect, Signal,
};
use telexec_tests::{Agent, Gate, marker, run, until, until_output, within};

use super::{Audit, assert_whole};

async fn start(executor: &impl Executor, command: CommandBuilder) -> Execution {
    within(executor.execute(command.build().unwrap())).await.unwrap()
}

/// Both records of one execution, once they are there.
async fn both(audit: &Audit, id: &ExecutionId) -> (Value, Value) {
    let mut found = Vec::new();
    until("start and end are written", async || {
        found = audit.records();
        found.retain(|record| record["execution_id"] == id.as_str() && record["event"] != "call");
        found.len() >= 2
    })
    .await;
    let [start, end] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&start["event"], &start["seq"]), (&json!("start"), &end["start"]), "{end}");
    for field in ["identity", "transport", "peer", "peer_uid", "rpc", "agent"] {
        assert_eq!(start[field], end[field]);
    }
    (start.clone(), end.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn however_a_command_ends() {
    let (audit, second) = (Audit::new(), Duration::from_millis(300));
    let agent = audit.agent("").start();
    let executor = agent.executor().await;
    let sleep = || Command::argv(["sleep", "300"]);
    let soon = |command: CommandBuilder| command.deadline(Instant::now() + Duration::from_secs(1));
    for (command, cause, code, signal) in [
        // the first: its time runs already
        (soon(sleep()), "deadline_exceeded", -1, json!("SIGTERM")),
        (Command::shell("exit 3"), "exited", 3, Value::Null),
        (Command::shell("kill -KILL $$"), "signaled", -1, json!("SIGKILL")),
        (sleep().timeout(second), "timed_out", -1, json!("SIGTERM")),
        (sleep().timeout(second).yield_after(Duration::ZERO), "timed_out", -1, json!("SIGTERM")),
    ] {
        let mut execution = start(&executor, command).await;
        let id = execution.id().clone();
        while within(execution.next()).await.is_some() {}
        let (_, end) = both(&audit, &id).await;
        assert_eq!((&end["cause"], &end["exit_code"], &end["signal"]), (&json!(cause), &json!(code), &signal), "{end}");
        assert_eq!((&end["user"], &end["survivors"]), (&json!("root"), &json!(0)));
    }
    let execution = start(&executor, sleep()).await;
    let id = execution.id().clone();
    drop(execution);
    assert_eq!(both(&audit, &id).await.1["cause"], "cancelled");
    let gate = Gate::new();
    let detached = Command::shell(format!("{}; exit 5", gate.wait())).on_disconnect(OnDisconnect::Detach);
    let execution = start(&executor, detached).await;
    let id = execution.id().clone();
    drop(execution);
    let _open = gate.open();
    let (start, end) = both(&audit, &id).await;
    assert_eq!((&start["may_outlive_its_call"], &end["exit_code"]), (&json!(true), &json!(5)));
    assert_whole(&audit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn survivors_are_counted_at_the_end_of_the_main_process() {
    let audit = Audit::new();
    let agent = audit.agent("").start();
    let outcome = run(&agent.executor().await, Command::shell("sleep 300 >/dev/null 2>&1 &")).await.unwrap();
    let (_, end) = both(&audit, &outcome.started.id).await;
    assert_eq!((&end["survivors"], &end["containment"]), (&json!(1), &json!(agent_containment(&agent).await)));
    let executor = agent.executor().await;
    executor.signal(&outcome.started.id, Signal::KILL).await.unwrap();
}

async fn agent_containment(agent: &Agent) -> String {
    let wire = telexec_tests::Wire::connect(agent).await.unwrap();
    wire.agent().get_agent(telexec_proto::v1::GetAgentRequest {}).await.unwrap().into_inner().containment
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_agent_is_asked_to_end() {
    let audit = Audit::new();
    let mut agent = Agent::builder().config(format!("shutdown_grace = \"0s\"\n{}", audit.config(""))).start();
    let executor = agent.executor().await;
    let mut executions = Vec::new();
    for on_disconnect in [OnDisconnect::Kill, OnDisconnect::Detach] {
        executions.push(start(&executor, Command::argv(["sleep", "300"]).on_disconnect(on_disconnect)).await);
    }
    assert!(agent.terminate().await.success());
    for execution in &executions {
        assert_eq!(both(&audit, execution.id()).await.1["cause"], "agent_shutdown");
    }
    assert_eq!(audit.records().last().unwrap()["event"], "closed");
    assert_whole(&audit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_start_says_why() {
    let audit = Audit::new();
    let agent = Agent::builder().config(format!("max_executions = 2\n{}", audit.config(""))).start();
    let executor = agent.executor().await;
    run(&executor, Command::argv(["/no/such/s3cret"])).await.unwrap_err();
    let reported = audit.wait("not_started", 1).await;
    assert_eq!(
        [&reported[0]["error"], &reported[0]["stage"], &reported[0]["errno"]],
        ["spawn_failed", "exec", "ENOENT"]
    );
    assert!(!reported[0].to_string().contains("s3cret"), "{}", reported[0]);

    let id: ExecutionId = marker().parse().unwrap();
    let sleep = || Command::argv(["sleep", "300"]);
    let first = start(&executor, sleep().execution_id(id.clone())).await;
    let again = start(&executor, sleep().execution_id(id.clone())).await;
    assert_eq!(first.started().pid, again.started().pid);
    run(&executor, Command::argv(["true"]).execution_id(id.clone())).await.unwrap_err();
    let _other = start(&executor, Command::argv(["sleep", "301"])).await;
    let reuse = sleep().duplicate_policy(DuplicatePolicy::ReuseRunning);
    assert!(matches!(run(&executor, reuse).await, Err(ExecutorError::AlreadyRunning(_))));
    run(&executor, Command::argv(["true"])).await.unwrap_err();
    let reported = audit.wait("not_started", 5).await;
    let errors: Vec<_> = reported.iter().map(|record| record["error"].as_str().unwrap()).collect();
    assert_eq!(errors, ["spawn_failed", "repeated", "already_exists", "already_running", "exhausted"]);
    drop((first, again, _other));
    audit.wait("end", 2).await;
    assert_whole(&audit).await;
}

/// Each call is dropped a little later on its way than the one before.
#[tokio::test(flavor = "multi_thread")]
async fn of_calls_that_were_given_up_on_their_way() {
    let audit = Audit::new();
    let mut agent = audit.agent("").start();
    let executor = agent.executor().await;
    let command = Command::argv(["sleep", "300"]).build().unwrap();
    for round in 0..200 {
        let _ = tokio::time::timeout(Duration::from_micros(20 * round), executor.execute(command.clone())).await;
    }
    let begun = start(&executor, Command::argv(["true"])).await;
    both(&audit, begun.id()).await;
    assert!(agent.terminate().await.success());
    assert!(audit.events("start").len() > 1);
    assert_whole(&audit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_was_killed_leaves_starts_that_are_reported() {
    let audit = Audit::new();
    let mut agent = audit.agent("").start();
    let executor = agent.executor().await;
    let mut left = start(&executor, Command::shell("echo ready; exec sleep 2")).await;
    until_output(&mut left, "ready\n").await;
    agent.kill();
    let (code, said) = audit.verify().await;
    assert!(code == 0 && said.contains("1 start without an end"), "{said}");
    assert!(said.contains(&format!("seq 2: execution {}", left.id())), "{said}");
    let next = audit.agent("").start();
    run(&next.executor().await, Command::argv(["true"])).await.unwrap();
    audit.wait("end", 1).await;
    let events: Vec<_> = audit.records().iter().map(|record| record["event"].to_string()).collect();
    assert_eq!(events, ["\"opened\"", "\"start\"", "\"opened\"", "\"start\"", "\"end\""]);
    assert_eq!(audit.verify().await.0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_follows_or_signals_is_reported_too() {
    let audit = Audit::new();
    let agent = audit.agent("").start();
    let executor = agent.executor().await;
    let mut execution = start(&executor, Command::shell("echo ready; sleep 300")).await;
    until_output(&mut execution, "ready\n").await;
    let id = execution.id().clone();
    let mut follower = executor.attach(&id, Attach::position(3)).await.unwrap();
    assert!(matches!(within(follower.next()).await, Some(Ok(Event::Started(_)))));
    executor.signal(&id, Signal::TERM).await.unwrap();
    let stranger: ExecutionId = marker().parse().unwrap();
    executor.signal(&stranger, Signal::KILL).await.unwrap_err();
    let calls = audit.wait("call", 3).await;
    let reported = |call: &Value| {
        ["rpc", "execution_id", "position", "signal", "error", "decision"].map(|field| call[field].clone())
    };
    let (id, stranger) = (json!(id.as_str()), json!(stranger.as_str()));
    let null = Value::Null;
    assert_eq!(
        reported(&calls[0]),
        [json!("Attach"), id.clone(), json!(3), null.clone(), null.clone(), json!("allow")]
    );
    let signal = json!("SignalExecution");
    assert_eq!(reported(&calls[1]), [signal.clone(), id, null.clone(), json!("SIGTERM"), null.clone(), json!("allow")]);
    assert_eq!(reported(&calls[2]), [signal, stranger, null, json!("SIGKILL"), json!("not_found"), json!("allow")]);
}
