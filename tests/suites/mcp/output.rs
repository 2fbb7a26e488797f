//! Output: while a command runs, and in its answer.

use serde_json::json;
use telexec_tests::{Agent, Gate, McpClient, is_root, text};

#[tokio::test(flavor = "multi_thread")]
async fn output_is_reported_before_the_end() {
    let agent = Agent::start();
    let mut client = McpClient::start(&[agent.uri()]).await;
    for tool in ["bash", "exec_command"] {
        let gate = Gate::new();
        let command = format!("echo ready; echo oops >&2; {}; echo done", gate.wait());
        let arguments = match tool {
            "bash" => json!({ "command": command }),
            _ => json!({ "cmd": command, "login": false }),
        };
        let id = client.ask(json!({ "call": tool, "arguments": arguments, "progress": true })).await;
        client.event(|event| event["id"] == id && event["message"].to_string().contains("oops")).await;
        let reported: String = client.progress(id).iter().map(|(_, message)| *message).collect();
        assert!(reported == "ready\noops\n" || reported == "oops\nready\n", "{reported}");
        let _open = gate.open();
        let answer = client.answer(id).await;
        assert!(text(&answer["result"]).contains("done\n"), "{answer}");
        let reported = client.progress(id);
        assert!(reported.is_sorted_by(|one, next| one.0 < next.0), "{reported:?}");
        assert_eq!(reported.last().unwrap().0, 16.0);
        assert!(reported.iter().map(|(_, message)| *message).collect::<String>().ends_with("done\n"), "{reported:?}");
    }
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_nothing_is_reported() {
    let mut client = McpClient::start(&["local"]).await;
    let id = client.ask(json!({ "call": "bash", "arguments": { "command": "seq 1000" } })).await;
    client.answer(id).await;
    assert_eq!(client.progress(id), []);
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_output_is_cut_and_told_in_part() {
    const BYTES: f64 = 100e6;
    let mut client = McpClient::start(&["local"]).await;
    let flood = "yes 0123456789abcdef | head -c 100000000";
    let id = client.ask(json!({ "call": "bash", "arguments": { "command": flood }, "progress": true })).await;
    let answer = client.answer(id).await;
    let said = text(&answer["result"]);
    assert!(said.len() <= 30_000 && said.contains("\n... (output truncated: "), "{} bytes", said.len());
    let reported = client.progress(id);
    assert!(reported.iter().all(|(_, message)| message.len() < 20_000));
    assert!(reported.iter().any(|(_, message)| message.contains(" bytes left out]\n")));
    assert_eq!(reported.last().unwrap().0, BYTES);

    let flood = json!({ "cmd": flood, "login": false, "yield_time_ms": 60_000 });
    let result = client.call("exec_command", flood).await;
    let artifact = &result["structuredContent"]["artifacts"][0];
    assert_eq!((&artifact["bytes"], &artifact["complete"]), (&json!(64 << 20), &json!(false)));
    let path = artifact["path"].as_str().unwrap();
    assert!(text(&result).ends_with(&format!("\n\nArtifacts:\n{path}")), "{path}");
    let read = json!({ "command": format!("wc -c < {path}; stat -c %a {path} $(dirname {path})") });
    assert_eq!(client.text("bash", read).await, "67108864\n600\n700\n");
    client.close().await;
    // it outlives the client
    std::fs::remove_file(path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_belongs_to_the_user_that_commands_run_as() {
    if !is_root() {
        return eprintln!("skipped: only root can run commands as another user");
    }
    let agent = Agent::start();
    let mut client = McpClient::start(&["--user", "nobody", "--deny", "rm -f", agent.uri()]).await;
    let flood = json!({ "cmd": "cd /; seq 1000", "login": false, "max_output_tokens": 10 });
    let result = client.call("exec_command", flood).await;
    let path = result["structuredContent"]["artifacts"][0]["path"].as_str().unwrap();
    let read = format!("cd /; wc -l < {path}; stat -c '%U %a' {path} $(dirname {path}); unlink {path}");
    let said = client.text("bash", json!({ "command": read })).await;
    assert_eq!(said, "1000\nnobody 600\nnobody 700\n");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn results_are_structured_and_fit_their_schemas() {
    let mut client = McpClient::start(&["local"]).await;
    for tool in client.tools().await {
        assert_eq!(tool["outputSchema"]["type"], "object", "{tool}");
    }
    // the client compares results with the schemas
    let ended = client.call("bash", json!({ "command": "echo out; echo err >&2; exit 3" })).await;
    let streams = json!({
        "exit_code": 3, "cause": "exited", "signal": null, "stdout": "out\n", "stderr": "err\n",
        "stdout_truncated": false, "stderr_truncated": false,
    });
    assert_eq!(ended["structuredContent"], streams);
    let late = client.call("bash", json!({ "command": "echo out; sleep 300", "timeout": 1 })).await;
    let late = &late["structuredContent"];
    assert_eq!(
        (&late["exit_code"], &late["cause"], &late["stdout"]),
        (&json!(null), &json!("timed_out"), &json!("out\n"))
    );
    let long = client.call("bash", json!({ "command": "seq 1 100000" })).await;
    assert_eq!(long["structuredContent"]["stdout_truncated"], true);

    let start = json!({ "cmd": "cat", "login": false, "accepts_input": true, "yield_time_ms": 0 });
    let task = client.call("exec_command", start.clone()).await;
    assert_eq!(task["structuredContent"]["outcome"], "promoted_to_task");
    assert_eq!(client.call("exec_command", start).await["structuredContent"]["outcome"], "already_running");
    let id = &task["structuredContent"]["task_handle"]["task_id"];
    let listed = client.call("task_list", json!({})).await;
    assert_eq!(&listed["structuredContent"]["tasks"][0]["task_id"], id);
    let step = client.call("task_input", json!({ "task_id": id, "text": "hello\n" })).await;
    assert_eq!(step["structuredContent"]["output"]["stdout"], "hello\n");
    let read = client.call("task_output", json!({ "task_id": id, "position": 0 })).await;
    assert_eq!(read["structuredContent"]["next_position"], 6);
    let stopped = client.call("task_stop", json!({ "task_id": id })).await;
    assert_eq!(stopped["structuredContent"]["status"], "exited");
    let gone = client.call("exec_command", json!({ "cmd": "kill -9 $$", "login": false })).await;
    assert_eq!(gone["structuredContent"]["command_diagnostics"]["signal"], "SIGKILL");

    let failed = client.call("task_output", json!({ "task_id": "nothing" })).await;
    assert_eq!(failed["structuredContent"], json!(null));
    assert_eq!(failed["_meta"]["telexec/details"]["error"]["kind"], "task_not_found");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_utf_8_is_replaced() {
    let gate = Gate::new();
    let mut client = McpClient::start(&["local"]).await;
    let command = format!("printf 'a\\377\\350\\252'; printf x >&2; {}; printf '\\236\\000z'", gate.wait());
    let id = client.ask(json!({ "call": "bash", "arguments": { "command": command }, "progress": true })).await;
    client.event(|event| event["id"] == id && event["message"].to_string().contains('\u{fffd}')).await;
    let _open = gate.open();
    let answer = client.answer(id).await;
    assert_eq!(text(&answer["result"]), "a\u{fffd}語\0z\nstderr: x");
    client.close().await;
}
