//! Output: while a command runs, and in its answer.

use std::path::Path;

use serde_json::json;
use telexec_tests::{Agent, Gate, McpClient, text};

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
    assert!(said.len() < 300_000 && said.trim_end().ends_with("(output truncated)"), "{} bytes", said.len());
    let reported = client.progress(id);
    assert!(reported.iter().all(|(_, message)| message.len() < 20_000));
    assert!(reported.iter().any(|(_, message)| message.contains(" bytes left out]\n")));
    assert_eq!(reported.last().unwrap().0, BYTES);

    let flood = json!({ "cmd": flood, "login": false, "yield_time_ms": 60_000 });
    let result = client.call("exec_command", flood).await;
    let artifact = &result["_meta"]["telexec/details"]["artifacts"][0];
    let path = Path::new(artifact["path"].as_str().unwrap());
    assert_eq!(std::fs::metadata(path).unwrap().len(), 64 << 20);
    client.close().await;
    assert!(!path.exists());
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
