//! What goes wrong, and how it is reported.

use std::process::Stdio;

use serde_json::{Value, json};
use telexec_tests::{Agent, Gate, McpClient, directory, telexec_mcp, text, within};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::ends::Bare;

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_target_is_named_and_may_come_later() {
    let place = directory();
    let uri = format!("unix://{}/agent.sock", place.path().display());
    let config = place.path().join("config.toml");
    std::fs::write(&config, format!("[targets.build]\naddress = '{uri}'\n")).unwrap();
    let variables = [("TELEXEC_CONFIG", config.to_str().unwrap())];
    let mut client = McpClient::start_with("auto", &["build", "local"], &variables).await;
    let hello = json!({ "command": "echo hello", "target": "build" });
    for (tool, parameter) in [("bash", "command"), ("exec_command", "cmd")] {
        let said = client.error(tool, json!({ parameter: "echo hello", "target": "build" })).await;
        assert!(said.starts_with(&format!("build: {uri} is unreachable: ")), "{said}");
    }
    assert_eq!(client.text("bash", json!({ "command": "echo here", "target": "local" })).await, "here\n");
    let _agent = Agent::builder().listen(&uri).start();
    assert_eq!(client.text("bash", hello).await, "hello\n");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_says_nothing_holds_up_only_its_own_calls() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("tcp://{}", silent.local_addr().unwrap());
    let mut client = McpClient::start(&["--connect-timeout", "1h", &uri, "local"]).await;
    let arguments = json!({ "command": "echo hello", "target": uri });
    let id = client.ask(json!({ "call": "bash", "arguments": arguments })).await;
    let _connection = within(silent.accept()).await.unwrap();
    assert_eq!(client.text("bash", json!({ "command": "echo here", "target": "local" })).await, "here\n");
    client.cancel(id).await;
    client.close().await;
    let mut client = McpClient::start(&["--connect-timeout", "0.1", &uri]).await;
    let said = client.error("bash", json!({ "command": "echo hello" })).await;
    assert!(said.contains(&uri), "{said}");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_killed_and_comes_back_is_reported_and_used_again() {
    let (place, gate) = (directory(), Gate::new());
    let uri = format!("unix://{}/agent.sock", place.path().display());
    let mut agent = Agent::builder().listen(&uri).start();
    let mut client = McpClient::start(&[&uri]).await;
    let command = format!("echo ready; {}", gate.wait());
    let id = client.ask(json!({ "call": "bash", "arguments": { "command": command }, "progress": true })).await;
    client.event(|event| event["message"] == "ready\n").await;
    agent.kill();
    let _agent = Agent::builder().listen(&uri).start();
    let answer = client.answer(id).await;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    assert!(text(&answer["result"]).contains(&uri), "{answer}");
    assert_eq!(client.text("bash", json!({ "command": "echo hello" })).await, "hello\n");
    let _open = gate.open();
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_arguments_are_for_the_model_and_unknown_tools_are_not() {
    let mut client = McpClient::start(&["local"]).await;
    for (tool, arguments, named) in [
        ("bash", json!({}), "command: "),
        ("bash", json!({ "command": 1 }), "command: "),
        ("bash", json!({ "command": "ls\u{0}" }), "command: "),
        ("exec_command", Value::Null, "cmd"),
        ("exec_command", json!({ "cmd": "ls", "target": "local" }), "target"),
        ("exec_command", json!({ "cmd": "ls", "workdir": "x" }), "workdir: "),
        ("task_output", json!({ "task_id": "nothing" }), "unknown task id \"nothing\""),
    ] {
        let said = client.error(tool, arguments).await;
        assert!(said.contains(named), "{said}");
    }
    let id = client.ask(json!({ "call": "no_such_tool", "arguments": {} })).await;
    let error = client.answer(id).await["error"].clone();
    assert_eq!(error, json!({ "code": -32602, "message": "unknown tool \"no_such_tool\"" }));
    assert_eq!(client.text("bash", json!({ "command": "echo hello" })).await, "hello\n");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_talks_nonsense_gets_protocol_and_nothing_else() {
    let mut bare = Bare::start(&["--log-level", "trace", "local"]).await;
    for nonsense in
        ["", "{", "null", "[]", "hello", "{\"jsonrpc\": \"2.0\", \"id\": 7, \"method\": \"no/such/method\"}"]
    {
        bare.send(nonsense).await;
    }
    let call = json!({ "name": "bash", "arguments": "ls" });
    bare.send(&json!({ "jsonrpc": "2.0", "id": 8, "method": "tools/call", "params": call }).to_string()).await;
    bare.send(&format!("{{\"jsonrpc\": \"2.0\", \"id\": \"{}\"}}", "x".repeat(17 << 20))).await;
    bare.call(9, json!({ "command": "echo hello" })).await;
    let answer = bare.until(|message| message["id"] == 9).await;
    assert_eq!(text(&answer["result"]), "hello\n");
    let (status, errors) = bare.close().await;
    let codes: Vec<_> = errors.iter().filter_map(|message| message["error"]["code"].as_i64()).collect();
    for code in [-32700, -32600] {
        assert!(codes.contains(&code), "{codes:?}");
    }
    assert!(errors.iter().all(|message| message["jsonrpc"] == "2.0"), "{errors:?}");
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn nonsense_from_the_start_is_refused_and_1() {
    for (nonsense, code) in
        [("hello\n", -32700), ("hello", -32700), ("{\n", -32700), ("[]\n", -32600), ("{\"id\": 7}\n", -32600)]
    {
        let mut child = telexec_mcp(&["local"]).stderr(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        within(input.write_all(nonsense.as_bytes())).await.unwrap();
        drop(input);
        let output = within(child.wait_with_output()).await.unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&answer["jsonrpc"], &answer["error"]["code"]), (&json!("2.0"), &json!(code)), "{answer}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("does not speak MCP"), "{nonsense:?}: {said}");
        assert_eq!(output.status.code(), Some(1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_mcp_from_the_start_is_1() {
    let mut bare = Bare::uninitialized(&["local"]);
    bare.send("{\"jsonrpc\": \"2.0\", \"method\": \"notifications/initialized\"}").await;
    let (status, messages) = bare.ended().await;
    assert_eq!((status.code(), messages), (Some(1), vec![]));
}
