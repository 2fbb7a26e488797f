//! Named commands as tools: `telexec mcp --commands`.

use serde_json::{Value, json};
use telexec_tests::{Agent, McpClient, text};

use super::ends::{nothing_is_left, tree};

const WEB: &str = r#"
    [commands.restart]
    description = "Restarts a service"
    argv = ["echo", "restart", "{app,worker}"]
    [commands.version]
    argv = ["echo", "to {version}"]
    parameters = { version = 'v[0-9]+' }"#;
const CAT: &str = r#"
    [commands.cat]
    argv = ["cat"]
    stdin = true"#;
const DB: &str = r#"
    [commands.dump]
    argv = ["echo", "dump"]
    [commands.restart]
    argv = ["echo", "restart", "{app,worker}"]"#;

fn names(tools: &[Value]) -> Vec<&str> {
    tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_named_command_is_a_tool_and_there_are_no_others() {
    let policy =
        "permit(principal, action in Action::\"start\", resource) when { context.named_command == \"restart\" };
        permit(principal, action == Action::\"GetAgent\", resource);";
    let agent = Agent::builder().config(WEB).policy(policy).start();
    for mode in ["auto", "legacy"] {
        let mut client = McpClient::start_with(mode, &["--commands", agent.uri()], &[]).await;
        let tools = client.tools().await;
        assert_eq!(names(&tools), ["restart", "version"]);
        assert_eq!(tools[0]["description"], "Restarts a service. Runs: echo restart {app,worker}");
        let argument = &tools[0]["inputSchema"]["properties"]["argument_1"];
        assert_eq!(argument["enum"], json!(["app", "worker"]));
        let about = "In place of to {version}; matches ^(?:to (?:v[0-9]+))$";
        assert_eq!(tools[1]["inputSchema"]["properties"]["version"]["description"], about);
        let result = client.call("restart", json!({ "argument_1": "app" })).await;
        assert_eq!((text(&result), &result["structuredContent"]["exit_code"]), ("restart app\n", &json!(0)));
        for (tool, arguments, fault) in [
            ("restart", json!({ "argument_1": "db" }), "argument_1: does not match {app,worker}"),
            ("restart", json!({}), "argument_1: is missing"),
            ("restart", json!({ "argument_1": "app", "user": "root" }), "user: unknown parameter"),
            ("version", json!({ "version": "to v1" }), "no rule of the policy permits Execute"),
        ] {
            let said = client.error(tool, arguments).await;
            assert!(said.contains(fault), "{said}");
        }
        client.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_may_have_a_reason_and_input() {
    let policy = "permit(principal, action in Action::\"start\", resource)
        when { context.named_command == \"cat\" && context.reason like \"INC-*\" };
        permit(principal, action == Action::\"GetAgent\", resource);";
    let agent = Agent::builder().config(CAT).policy(policy).start();
    let mut client = McpClient::start(&["--commands", agent.uri()]).await;
    assert!(client.error("cat", json!({ "input": "x" })).await.contains("reason"));
    assert_eq!(client.text("cat", json!({ "input": "x", "reason": "INC-1" })).await, "x");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_without_any_or_out_of_reach_is_reported_at_the_start() {
    for (target, code, text) in [
        ("local", 2, "telexec: local: the agent has no named commands\n"),
        ("unix:///no/such.sock", 255, "unix:///no/such.sock is unreachable"),
    ] {
        let mut command = telexec_tests::telexec_mcp(&["--commands", target]);
        let output = telexec_tests::within(command.kill_on_drop(true).output()).await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && said.contains(text), "{:?} {said}", output.status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_cancelled_ends_its_command() {
    let mark = telexec_tests::marker();
    let config = format!("[commands.wait]\nargv = [\"bash\", \"-c\", {:?}]", tree(&mark));
    let agent = Agent::builder().config(config).start();
    let mut client = McpClient::start(&["--commands", agent.uri()]).await;
    let id = client.ask(json!({ "call": "wait", "arguments": {}, "progress": true })).await;
    client.event(|event| event["id"] == id && event["message"] == "ready\n").await;
    client.cancel(id).await;
    nothing_is_left(&mark).await;
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_targets_each_has_its_own() {
    let (web, db) = (Agent::builder().config(WEB).start(), Agent::builder().config(DB).start());
    let mut client = McpClient::start(&["--commands", web.uri(), db.uri()]).await;
    let tools = client.tools().await;
    assert_eq!(names(&tools), ["restart", "version", "dump"]);
    let targets = |tool: &Value| tool["inputSchema"]["properties"]["target"]["enum"].clone();
    let expected = [json!([web.uri(), db.uri()]), json!([web.uri()]), json!([db.uri()])];
    assert_eq!(tools.iter().map(targets).collect::<Vec<_>>(), expected);
    assert_eq!(client.text("dump", json!({ "target": db.uri() })).await, "dump\n");
    for target in [json!(web.uri()), json!("moon"), Value::Null] {
        let said = client.error("dump", json!({ "target": target })).await;
        assert!(said.contains(&format!("target: expected one of {}", db.uri())), "{said}");
    }
    client.close().await;
}
