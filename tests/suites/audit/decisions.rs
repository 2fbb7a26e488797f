//! What the policy decided, and by which rules.

use serde_json::json;
use telexec_client::Resume;
use telexec_executor::{Command, Executor, ExecutorError, OnDisconnect, Signal};
use telexec_proto::v1::{
    AttachRequest, ExecuteRequest, InteractRequest, WriteInputRequest, interact_request::Request as Step,
};
use telexec_tests::run;
use telexec_tests::{Certs, Leaf, Wire, follow, marker, within};

use super::{Audit, assert_whole};

const POLICY: &str = r#"
@id("true") permit(principal, action == Action::"Execute", resource) when { context.programs == ["true"] };
@id("look") permit(principal, action in [Action::"read", Action::"control"], resource);
@id("no-secrets") forbid(principal, action in Action::"start", resource) when { context.command like "*secret*" };
@id("no-agent") forbid(principal, action == Action::"GetAgent", resource);
@id("no-list") forbid(principal, action == Action::"ListExecutions", resource);
"#;

#[tokio::test(flavor = "multi_thread")]
async fn decisions_are_reported_with_their_rules() {
    let audit = Audit::new();
    let agent = audit.agent("").policy(POLICY).start();
    let client = agent.connect().await;
    let executor = client.executor();
    // it makes no call that needs another permission
    run(&executor.clone().resuming(Resume::default()), Command::argv(["true"])).await.unwrap();
    let start = audit.wait("start", 1).await.swap_remove(0);
    assert_eq!((&start["decision"], &start["rules"]), (&json!("allow"), &json!(["true"])));
    let digest = start["policy"].as_str().unwrap().to_owned();
    assert_eq!(digest.len(), 64);

    for (count, text, rules) in [(1, "id", json!(null)), (2, "true; echo secret", json!(["no-secrets"]))] {
        let command = Command::shell(text).execution_id(format!("denied-{}", text.len()).parse().unwrap());
        assert!(matches!(run(&executor, command).await, Err(ExecutorError::Denied { .. })));
        let denied = audit.wait("denied", count).await.pop().unwrap();
        assert_eq!((&denied["decision"], &denied["rules"], &denied["command"]), (&json!("deny"), &rules, &json!(text)));
        assert_eq!((&denied["policy"], &denied["error"]), (&json!(digest), &json!("denied")));
        assert_eq!(denied["execution_id"], format!("denied-{}", text.len()));
    }

    // calls that start nothing: those that have an effect, and those that are denied
    client.info().await.unwrap_err();
    executor.list(Default::default()).await.unwrap_err();
    let unknown = "unknown".parse().unwrap();
    executor.get(&unknown).await.unwrap_err();
    executor.signal(&unknown, Signal::TERM).await.unwrap_err();
    let calls: Vec<_> = audit.wait("call", 3).await;
    let reported: Vec<_> =
        calls.iter().map(|call| json!([call["rpc"], call["decision"], call["rules"], call["error"]])).collect();
    assert_eq!(
        reported,
        [
            json!(["GetAgent", "deny", ["no-agent"], "denied"]),
            json!(["ListExecutions", "deny", ["no-list"], "denied"]),
            json!(["SignalExecution", "allow", ["look"], "not_found"]),
        ]
    );
    drop(agent);
    assert_whole(&audit).await;
}

/// Unlike CheckCommand for oneself: it tells of others.
#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_others_is_reported() {
    let audit = Audit::new();
    let policy = r#"@id("as") permit(principal, action == Action::"CheckAs", resource)
                    when { context.identity == Identity::"anna" };"#;
    let agent = audit.agent("").policy(policy).start();
    let (client, command) = (agent.connect().await, Command::argv(["true"]).build().unwrap());
    client.check_as(&command, "anna").await.unwrap();
    client.check_as(&command, "bob").await.unwrap_err();
    let calls = audit.wait("call", 2).await;
    let reported: Vec<_> =
        calls.iter().map(|call| json!([call["rpc"], call["about"], call["decision"], call["rules"]])).collect();
    let expected = [json!(["CheckCommand", "anna", "allow", ["as"]]), json!(["CheckCommand", "bob", "deny", null])];
    assert_eq!(reported, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_typed_to_others_is_reported_once() {
    let audit = Audit::new();
    let certs = Certs::new();
    let policy = "@any_owner permit(principal, action, resource);";
    let agent = audit.agent("").mtls(&certs).policy(policy).start();
    let (anna, eve) = (certs.ca.issue(Leaf::client("anna")), certs.ca.issue(Leaf::client("eve")));
    let id: telexec_executor::ExecutionId = marker().parse().unwrap();
    let command =
        Command::shell("cat").accepts_input(true).execution_id(id.clone()).on_disconnect(OnDisconnect::Detach);
    let annas = agent.connect_as(&anna).await.executor().execute(command.build().unwrap()).await.unwrap();
    let wire = Wire::connect_tls(&agent, certs.config(Some(&eve))).await.unwrap();
    let typed = WriteInputRequest { execution_id: id.to_string(), data: "a".into(), ..Default::default() };
    for offset in 0..2 {
        wire.executions().write_input(WriteInputRequest { offset, ..typed.clone() }).await.unwrap();
    }
    let call = audit.wait("call", 1).await.swap_remove(0);
    assert_eq!(
        (&call["rpc"], &call["identity"], &call["execution_id"]),
        (&json!("WriteInput"), &json!("eve"), &json!(id.as_str()))
    );

    // in the course of a call: once, under the name of what it does
    let attach = AttachRequest { execution_id: id.to_string(), ..Default::default() };
    let steps = [Step::Attach(attach), Step::Stdin("b".into()), Step::Stdin("c".into()), Step::CloseStdin(true)];
    let steps = steps.map(|step| InteractRequest { request: Some(step) });
    let stream = within(wire.executions().interact(futures_util::stream::iter(steps))).await.unwrap();
    assert_eq!(follow(stream.into_inner()).await.stdout(), b"aabc");
    let calls = audit.wait("call", 3).await;
    let reported: Vec<_> = calls.iter().map(|call| json!([call["rpc"], call["action"]])).collect();
    assert_eq!(
        reported,
        [json!(["WriteInput", null]), json!(["Interact", "Attach"]), json!(["Interact", "WriteInput"])]
    );
    drop(annas);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_starts_a_command_goes_on_without_further_rules() {
    let audit = Audit::new();
    let agent = audit.agent("").policy("permit(principal, action == Action::\"Interact\", resource);").start();
    let wire = Wire::connect(&agent).await.unwrap();
    let request = ExecuteRequest { command: "cat".into(), accepts_input: true, ..Default::default() };
    let steps = [Step::Start(request), Step::Stdin("a".into())].map(|step| InteractRequest { request: Some(step) });
    let stream = within(wire.executions().interact(futures_util::stream::iter(steps))).await.unwrap();
    assert_eq!(follow(stream.into_inner()).await.stdout(), b"a");
    audit.wait("end", 1).await;
    assert!(audit.events("call").iter().all(|call| call["decision"] == "allow"), "{:?}", audit.events("call"));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_denied_does_not_push_out_the_records_of_others() {
    let audit = Audit::new();
    let mut agent = audit.agent("max_bytes = 2000000\nkeep = 1").policy("").start();
    let executor = agent.executor().await;
    for _ in 0..400 {
        let command = Command::shell(format!("echo {}", "\u{1}".repeat(100_000)));
        assert!(matches!(run(&executor, command).await, Err(ExecutorError::Denied { .. })));
    }
    let records = audit.records();
    assert_eq!(records[0]["seq"], 1, "nothing was rotated away");
    let denied = audit.events("denied");
    assert!((50..200).contains(&denied.len()), "{}", denied.len());
    assert!(agent.terminate().await.success());
    assert_whole(&audit).await;
    // what was left out is counted, by who it was
    let more = audit.events("more");
    let left_out: u64 = more.iter().filter_map(|record| record["denied"].as_u64()).sum();
    assert_eq!(left_out + audit.events("denied").len() as u64, 400);
    assert!(more.iter().all(|record| record["identity"] == denied[0]["identity"]), "{more:?}");
}
