//! What the policy decided, and by which rules.

use serde_json::json;
use telexec_tests::run;
use telexec_tool::{Command, Executor, ExecutorError, Signal};

use super::{Audit, assert_whole};

const POLICY: &str = r#"
@id("true") permit(principal, action == Action::"Execute", resource) when { context.programs == ["true"] };
@id("look") permit(principal, action in [Action::"read", Action::"control"], resource);
@id("no-secrets") forbid(principal, action in Action::"start", resource) when { context.command like "*secret*" };
@id("no-agent") forbid(principal, action == Action::"GetAgent", resource);
@id("no-list") forbid(principal, action == Action::"ListExecutions", resource);
"#;

#[tokio::test(flavor = "multi_thread")]
async fn decisions_are_told_with_their_rules() {
    let audit = Audit::new();
    let agent = audit.agent("").policy(POLICY).start();
    let client = agent.connect().await;
    let executor = client.executor();
    run(&executor, Command::argv(["true"])).await.unwrap();
    let start = audit.wait("start", 1).await.swap_remove(0);
    assert_eq!((&start["decision"], &start["rules"]), (&json!("allow"), &json!(["true"])));
    let digest = start["policy"].as_str().unwrap().to_owned();
    assert_eq!(digest.len(), 64);

    for (text, rules) in [("id", json!(null)), ("true; echo secret", json!(["no-secrets"]))] {
        let command = Command::shell(text).execution_id(format!("denied-{}", text.len()).parse().unwrap());
        assert!(matches!(run(&executor, command).await, Err(ExecutorError::Denied { .. })));
        let denied = audit.events("denied").pop().unwrap();
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
    let told: Vec<_> =
        calls.iter().map(|call| json!([call["rpc"], call["decision"], call["rules"], call["error"]])).collect();
    assert_eq!(
        told,
        [
            json!(["GetAgent", "deny", ["no-agent"], "denied"]),
            json!(["ListExecutions", "deny", ["no-list"], "denied"]),
            json!(["SignalExecution", "allow", ["look"], "not_found"]),
        ]
    );
    drop(agent);
    assert_whole(&audit).await;
}
