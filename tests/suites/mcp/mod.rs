//! `telexec mcp`, as the official client of the Model Context Protocol uses it.

use serde_json::{Value, json};
use telexec_tests::{
    Agent, Gate, McpClient, NOBODY, Proxy, directory, is_root, lines, program, telexec_mcp, text, until,
};
use tokio::process::Command;

mod ends;
mod faults;
mod http;
mod named_commands;
mod output;
mod ruled;

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[tokio::test(flavor = "multi_thread")]
async fn it_says_who_it_is_in_both_lifecycles() {
    let mut versions = Vec::new();
    for mode in ["auto", "legacy"] {
        let mut client = McpClient::start_with(mode, &["local"], &[]).await;
        let server = &client.ready["server"];
        assert_eq!((&server["name"], &server["version"]), (&json!("telexec"), &json!(env!("CARGO_PKG_VERSION"))));
        let instructions = client.ready["instructions"].as_str().unwrap().to_owned();
        let about = "Commands run on: local.\nlocal: this machine; its tasks end with this server.\nbash: ";
        assert!(instructions.starts_with(about), "{instructions}");
        for tool in client.tools().await {
            assert!(instructions.contains(&format!("{}: ", tool["name"].as_str().unwrap())), "{instructions}");
        }
        versions.push(client.ready["protocol"].clone());
        assert_eq!(client.text("bash", json!({ "command": "echo hello" })).await, "hello\n");
        client.close().await;
    }
    assert_ne!(versions[0], versions[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tools_are_those_of_telexec_tool() {
    let mut client = McpClient::start(&["local"]).await;
    let mut tools = client.tools().await;
    let hints: Vec<_> =
        tools.iter_mut().map(|tool| tool.as_object_mut().unwrap().remove("annotations").unwrap()).collect();
    let said = Command::new(program("telexec")).args(["tool", "--json", "local"]).output().await.unwrap();
    assert_eq!(Value::from(tools), serde_json::from_slice::<Value>(&said.stdout).unwrap());
    let hints = hints.iter().map(|hints| {
        ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"]
            .map(|hint| hints[hint].as_bool().unwrap())
    });
    let runs = [false, true, false, true];
    let looks = [true, false, true, false];
    let [stops, writes] = [[false, true, true, false]; 2];
    let edits = [false, true, false, false];
    let commands = [runs, runs, looks, runs, stops, looks];
    let files = [looks, writes, edits, looks, looks, looks];
    assert_eq!(hints.collect::<Vec<_>>(), [commands, files].concat());
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bash_answers_and_keeps_its_directory() {
    let agent = Agent::start();
    let mut client = McpClient::start(&[agent.uri()]).await;
    let result = client.call("bash", json!({ "command": "cd /usr; echo out; echo err >&2; exit 3" })).await;
    assert_eq!((text(&result), &result["isError"]), ("out\n\nstderr: err\n\nexit code: 3", &json!(false)));
    assert_eq!(result["structuredContent"]["exit_code"], 3);
    assert_eq!(client.text("bash", json!({ "command": "pwd; echo $PPID" })).await, format!("/usr\n{}\n", agent.pid()));
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_read_and_edited() {
    let (agent, here) = (Agent::start(), directory());
    let path = here.path().join("file");
    let mut client = McpClient::start(&[agent.uri()]).await;
    client.text("write_file", json!({ "path": path, "content": "one\n" })).await;
    std::fs::write(&path, "two\n").unwrap();
    let edit = json!({ "path": path, "old_string": "two", "new_string": "three" });
    let refused = client.error("edit_file", edit.clone()).await;
    assert!(refused.contains("has changed since it was read"), "{refused}");
    assert_eq!(client.text("read_file", json!({ "path": path })).await, "     1\ttwo");
    client.text("edit_file", edit).await;
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\n");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn styles_rules_and_users_are_the_operators() {
    let mut client = McpClient::start(&["--style", "sections", "--deny", "rm -rf", "--deny", "mkfs", "local"]).await;
    let sections = "stdout:\nout\nexit code: 0";
    assert_eq!(client.text("bash", json!({ "command": "echo out" })).await, sections);
    let denied = client.error("bash", json!({ "command": "echo rm -rf /" })).await;
    assert_eq!(denied, "Command blocked by safety policy: contains 'rm -rf'");
    let denied = client.error("exec_command", json!({ "cmd": "mkfs" })).await;
    assert!(denied.contains("contains 'mkfs'"), "{denied}");
    client.close().await;

    if !is_root() {
        return eprintln!("skipped: only root can run commands as another user");
    }
    let mut client = McpClient::start(&["--user", "nobody", "local"]).await;
    let instructions = client.ready["instructions"].as_str().unwrap();
    assert!(instructions.contains("; commands run as nobody.\n"), "{instructions}");
    let (uid, id) = (format!("{NOBODY}\n"), json!({ "command": "cd /; id -u" }));
    assert_eq!(client.text("bash", id).await, uid);
    let said = client.text("exec_command", json!({ "cmd": "id -u", "workdir": "/" })).await;
    assert!(said.contains(&uid), "{said}");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_goes_on_and_outlives_the_client() {
    let agent = Agent::start();
    let mut client = McpClient::start(&[agent.uri()]).await;
    let start = json!({ "cmd": "cat", "login": false, "accepts_input": true, "yield_time_ms": 0 });
    let result = client.call("exec_command", start).await;
    let id = result["structuredContent"]["task_handle"]["task_id"].clone();
    assert!(text(&result).starts_with("Command promoted to background task\nTask: "), "{result}");
    let listed = client.text("task_list", json!({})).await;
    assert!(listed.contains(id.as_str().unwrap()), "{listed}");
    client.close().await;

    let mut client = McpClient::start(&[agent.uri()]).await;
    let reported = client.text("task_input", json!({ "task_id": id, "text": "hello\n", "close": true })).await;
    assert!(reported.contains("hello\n") && reported.contains("Process exited with code 0\n"), "{reported}");
    let reported = client.text("task_output", json!({ "task_id": id, "position": 0 })).await;
    assert!(reported.contains("hello\n"), "{reported}");
    let stopped = client.text("task_stop", json!({ "task_id": id })).await;
    assert!(stopped.starts_with("Task had ended already"), "{stopped}");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_targets_are_kept_apart() {
    let (one, two) = (Agent::start(), Agent::builder().tcp().start());
    let config = directory();
    let toml = format!("[targets.build]\naddress = '{}'\n", two.uri());
    std::fs::write(config.path().join("config.toml"), toml).unwrap();
    let config = config.path().join("config.toml");
    let variables = [("TELEXEC_CONFIG", config.to_str().unwrap())];
    // as they were typed
    let names = [one.uri(), "build", two.address(), "local"];
    let mut client = McpClient::start_with("auto", &names, &variables).await;
    let instructions = client.ready["instructions"].as_str().unwrap();
    let about = format!("Commands run on: {}.\nlocal: this machine; ", names.join(", "));
    assert!(instructions.starts_with(&about) && instructions.contains("`target` selects it"), "{instructions}");
    for tool in client.tools().await {
        let schema = &tool["inputSchema"];
        assert_eq!(schema["properties"]["target"]["enum"], json!(names), "{tool}");
        assert!(schema["required"].as_array().unwrap().contains(&json!("target")), "{tool}");
    }
    let parent = "cd /usr; echo $PPID";
    for (name, agent) in [(one.uri(), &one), ("build", &two)] {
        let said = client.text("bash", json!({ "command": parent, "target": name })).await;
        assert_eq!(said, format!("{}\n", agent.pid()));
        let said = client.text("exec_command", json!({ "cmd": parent, "login": false, "target": name })).await;
        assert!(said.contains(&format!("\n{}\n", agent.pid())), "{said}");
    }
    // each has a directory of its own
    assert_ne!(client.text("bash", json!({ "command": "pwd", "target": "local" })).await, "/usr\n");
    for arguments in [json!({ "command": "ls" }), json!({ "command": "ls", "target": "moon" }), json!({ "target": 1 })]
    {
        let said = client.error("bash", arguments).await;
        assert!(said.contains(&format!("target: expected one of {}", names.join(", "))), "{said}");
    }
    let said = client.error("bash", json!({ "command": "ls", "target": "local", "cwd": "/" })).await;
    assert!(said.contains("cwd: unknown parameter; bash has target, command, timeout"), "{said}");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_run_at_once() {
    const CALLS: usize = 8;
    let (gate, marks) = (Gate::new(), directory());
    let begun = marks.path().join("begun");
    let mut client = McpClient::start(&["local"]).await;
    let mut ids = Vec::new();
    for call in 0..CALLS {
        let command = format!("echo {call} >> {}; {}; echo {call}", begun.display(), gate.wait());
        ids.push(client.ask(json!({ "call": "bash", "arguments": { "command": command } })).await);
    }
    until("all have begun", async || lines(&begun).len() == CALLS).await;
    let _open = gate.open();
    for (call, id) in ids.into_iter().enumerate() {
        assert_eq!(text(&client.answer(id).await["result"]), format!("{call}\n"));
    }
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_belongs_to_the_trace_that_it_names_or_the_servers() {
    let command = json!({ "command": "echo ${TRACEPARENT-none}" });
    let mut client = McpClient::start_with("auto", &["local"], &[("TRACEPARENT", TRACEPARENT)]).await;
    let said = client.text("bash", command.clone()).await;
    assert!(said.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && said.trim() != TRACEPARENT, "{said}");
    let other = TRACEPARENT.replace("0af765", "111111");
    for (parent, trace) in [(other.as_str(), "00-111111"), ("odd", "00-0af765")] {
        let request = json!({ "call": "bash", "arguments": command, "meta": { "traceparent": parent } });
        let id = client.ask(request).await;
        let answer = client.answer(id).await;
        assert!(text(&answer["result"]).starts_with(trace), "{answer}");
    }
    client.close().await;
    let mut client = McpClient::start(&["local"]).await;
    assert_eq!(client.text("bash", command).await, "none\n");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_survives_a_lost_connection() {
    let agent = Agent::builder().tcp().start();
    let proxy = Proxy::before(&agent).await;
    let gate = Gate::new();
    let mut client = McpClient::start(&[proxy.uri()]).await;
    let command = format!("echo ready; {}; echo done", gate.wait());
    let id = client.ask(json!({ "call": "bash", "arguments": { "command": command }, "progress": true })).await;
    client.event(|event| event["message"] == "ready\n").await;
    proxy.cut();
    let _open = gate.open();
    assert_eq!(text(&client.answer(id).await["result"]), "ready\ndone\n");
    client.close().await;
}

#[tokio::test]
async fn odd_command_lines_are_2() {
    for (args, named) in [
        (&[][..], "<TARGET>"),
        (&["local", "local"], "local: given twice"),
        (&["local", "no such name"], "no such name"),
        (&["--deny", "", "local"], "--deny"),
        (&["--cert", "x", "h:1"], "--cert, --key and --ca"),
    ] {
        let output = telexec_mcp(args).stderr(std::process::Stdio::piped()).output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{args:?}: {said}");
        assert!(said.contains(named), "{args:?}: {said}");
    }
}
