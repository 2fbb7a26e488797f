//! Agents whose policy does not let a caller do everything.

use serde_json::json;
use telexec_tests::{Agent, McpClient, marker, text};

use super::ends::{nothing_is_left, tree};

/// Whatever else is not permitted, a call works, and cancelling it leaves nothing.
async fn works_and_is_cancelled(policy: &str) {
    let agent = Agent::builder().policy(policy).start();
    let mut client = McpClient::start(&[agent.uri()]).await;
    assert_eq!(client.text("bash", json!({ "command": "echo hello" })).await, "hello\n");
    let mark = marker();
    let arguments = json!({ "command": tree(&mark) });
    let id = client.ask(json!({ "call": "bash", "arguments": arguments, "progress": true })).await;
    client.event(|event| event["id"] == id && event["message"] == "ready\n").await;
    client.cancel(id).await;
    nothing_is_left(&mark).await;
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_start_and_nothing_else_can_cancel() {
    works_and_is_cancelled("@environment(\"*\") permit(principal, action in Action::\"start\", resource);").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_leave_nothing_in_the_background_can_call_and_cancel() {
    works_and_is_cancelled(
        "@environment(\"*\") permit(principal, action in Action::\"start\", resource) when { !context.background };
         permit(principal, action in [Action::\"read\", Action::\"control\"], resource);",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_denied_is_reported_with_its_rule() {
    let policy = "permit(principal, action, resource);
        @id(\"no-shutdown\") forbid(principal, action in Action::\"start\", resource)
        when { context.programs.contains(\"shutdown\") };";
    let agent = Agent::builder().policy(policy).start();
    let mut client = McpClient::start(&[agent.uri()]).await;
    for (tool, parameter) in [("bash", "command"), ("exec_command", "cmd")] {
        let result = client.call(tool, json!({ parameter: "shutdown now" })).await;
        assert_eq!(result["isError"], true, "{result}");
        assert!(text(&result).contains("no-shutdown"), "{result}");
    }
    assert_eq!(client.text("bash", json!({ "command": "echo hello" })).await, "hello\n");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_write_files_gets_no_artifact_and_all_else() {
    let policy = "permit(principal, action, resource);
        @id(\"no-files\") forbid(principal, action in Action::\"start\", resource)
        when { context.programs.contains(\"mktemp\") };";
    let agent = Agent::builder().policy(policy).start();
    let mut client = McpClient::start(&[agent.uri()]).await;
    let result =
        client.call("exec_command", json!({ "cmd": "seq 1000", "login": false, "max_output_tokens": 10 })).await;
    assert_eq!((&result["isError"], &result["structuredContent"]["artifacts"]), (&json!(false), &json!([])));
    let said = text(&result);
    assert!(said.contains("There is no artifact with the whole of stdout: ") && said.contains("no-files"), "{said}");
    assert!(said.contains("stdout:\n1\n2\n"), "{said}");
    client.close().await;
}
