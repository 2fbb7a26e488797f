//! `telexec ping`, `telexec info` and `telexec tool`.

use std::process::Stdio;

use serde_json::{Value, json};
use telexec_tests::{NOBODY, is_root, until};
use tokio::io::AsyncWriteExt;

use super::{Said, Site, say, telexec};

pub(super) async fn ping_tells_that_it_serves(site: Site) {
    let said = Said::by(site.telexec("ping", &[])).await;
    let target = site.target.last().unwrap();
    let (shown, state) = said.answer().trim_end().split_once(": ").unwrap();
    assert!(shown.contains(target.as_str()) && state.starts_with("serving, ") && state.ends_with(" ms"), "{said:?}");
}

pub(super) async fn info_describes_the_agent(site: Site) {
    let said = Said::by(site.telexec("info", &["--json"])).await;
    let info: Value = serde_json::from_str(said.answer()).unwrap();
    assert_eq!((&info["version"], &info["os"]), (&json!(env!("CARGO_PKG_VERSION")), &json!("linux")));
    assert_eq!(info["architecture"], std::env::consts::ARCH);
    assert_eq!(info["running_executions"], 0);
    assert!(info["default_user"].is_string() && info["agent_user"].is_string(), "{info}");
    assert_eq!(info["has_keeper"], false);
    let own = format!("unix:uid={}", rustix::process::geteuid().as_raw());
    let identity = if site.target.len() > 1 { "alice" } else { &own };
    assert_eq!(info["identity"], identity);
    let text = Said::by(site.telexec("info", &[])).await;
    for (key, value) in [("version:", env!("CARGO_PKG_VERSION")), ("identity:", identity)] {
        let mut words = text.answer().lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        assert!(words.any(|words| words == [key, value]), "{text:?}");
    }
}

pub(super) async fn the_tool_answers(site: Site) {
    let call = async |args: &[&str]| Said::by(site.telexec("tool", &[&["bash"], args].concat())).await;
    assert_eq!(call(&["{\"command\": \"echo hello\"}"]).await.answer(), "hello\n");
    assert_eq!(call(&["{\"command\": \"exit 42\"}"]).await.answer(), "exit code: 42\n");
    let both = "{\"command\": \"echo out; echo err >&2\"}";
    let sections = "stdout:\nout\nstderr:\nerr\nexit code: 0\n";
    assert_eq!(call(&["--style", "sections", both]).await.answer(), sections);
    let code_first = "Exit code: 0\nSTDOUT:\nout\n\nSTDERR:\nerr\n";
    assert_eq!(call(&["--style", "code-first", both]).await.answer(), code_first);
    let result: Value = serde_json::from_str(call(&["--json", both]).await.answer()).unwrap();
    let details = json!({ "exit_code": 0, "success": true });
    assert_eq!(result, json!({ "text": "out\n\nstderr: err\n", "details": details, "is_error": false }));
}

pub(super) async fn exec_command_answers(site: Site) {
    let call = async |args: &[&str]| Said::by(site.telexec("tool", &[&["exec_command"], args].concat())).await;
    let both = "{\"cmd\": \"echo out; echo err >&2; exit 3\", \"login\": false}";
    assert_eq!(call(&[both]).await.answer(), "Process exited with code 3\n\nstdout:\nout\n\n\nstderr:\nerr\n");
    let result: Value = serde_json::from_str(call(&["--json", both]).await.answer()).unwrap();
    let details = &result["details"];
    assert_eq!((&details["outcome"], &details["exit_status"]), (&json!("completed"), &json!(3)));
    assert_eq!((&details["stdout_preview"], &details["stderr_preview"]), (&json!("out\n"), &json!("err\n")));
}

#[tokio::test]
async fn an_artifact_outlives_the_call() {
    let params = "{\"cmd\": \"seq 1000\", \"login\": false, \"max_output_tokens\": 5}";
    let said = say(&["tool", "--json", "local", "exec_command", params]).await;
    let result: Value = serde_json::from_str(said.answer()).unwrap();
    let path = result["details"]["artifacts"][0]["path"].as_str().unwrap();
    let kept = std::fs::read_to_string(path).unwrap();
    std::fs::remove_file(path).unwrap();
    assert_eq!((kept.lines().count(), kept.lines().last()), (1000, Some("1000")));
}

#[tokio::test]
async fn odd_parameters_of_exec_command_are_reported_to_programs() {
    let said = say(&["tool", "--json", "local", "exec_command", "{\"command\": \"ls\"}"]).await;
    let result: Value = serde_json::from_str(said.stdout()).unwrap();
    assert_eq!((said.code, &result["is_error"]), (1, &json!(true)));
    assert_eq!(result["details"]["error"]["kind"], "invalid_tool_input");
    assert!(result["text"].as_str().unwrap().starts_with("Command failed\n"), "{result}");
}

#[tokio::test]
async fn an_error_result_of_the_tool_is_1() {
    let said = say(&["tool", "local", "bash", "{\"command\": \"sleep 300\", \"timeout\": 0.3}"]).await;
    assert_eq!((said.code, said.stdout(), said.stderr()), (1, "command timed out after 0.3s\n", ""));
}

#[tokio::test]
async fn a_failed_call_of_the_tool_is_1() {
    say(&["tool", "local", "bash"]).await.failure(1);
    let line = ["tool", "--style", "code-first", "local", "bash", "{\"command\": \"sleep 300\", \"timeout\": 0.3}"];
    assert!(say(&line).await.failure(1).contains("Command timed out after 0.3s"));
}

#[tokio::test]
async fn an_agent_that_is_killed_during_a_call_of_the_tool_is_255() {
    let mut site = Site::unix().await;
    let path = site.path().display();
    let params = json!({ "command": format!("touch {path}/begun; while [ -d {path} ]; do sleep 0.05; done") });
    let child = site.telexec("tool", &["bash", &params.to_string()]).spawn().unwrap();
    until("the command runs", async || site.path().join("begun").exists()).await;
    site.agent.as_mut().unwrap().kill();
    Said::by_child(child).await.failure(255);
}

#[tokio::test]
async fn parameters_of_the_tool_come_from_standard_input_too() {
    let mut child = telexec(["tool", "local", "bash", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"{\"command\":\n\"echo hello\"}\n").await.unwrap();
    assert_eq!(Said::by_child(child).await.answer(), "hello\n");
}

#[tokio::test]
async fn odd_parameters_of_the_tool_are_2() {
    for args in [&["bash", "{"][..], &["bash", "[]"], &["no-such-tool"]] {
        Said::by(telexec([&["tool", "local"], args].concat())).await.failure(2);
    }
}

#[tokio::test]
async fn the_tool_streams_to_standard_error_when_asked_to() {
    let line = ["tool", "--stream", "local", "bash", "{\"command\": \"echo out; exit 3\"}"];
    let said = say(&line).await;
    assert_eq!((said.code, said.stdout(), said.stderr()), (0, "out\n\nexit code: 3\n", "out\n"));
}

#[tokio::test]
async fn the_tool_hands_its_own_trace_on() {
    for (tool, params) in
        [("bash", json!({ "command": "env" })), ("exec_command", json!({ "cmd": "env", "login": false }))]
    {
        let mut command = telexec(["tool", "local", tool, &params.to_string()]);
        command.env("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").env("TRACESTATE", "a=1");
        let said = Said::by(command).await;
        let handed = |line: &str| said.answer().lines().any(|reported| reported.starts_with(line));
        assert!(handed("TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-") && handed("TRACESTATE=a=1"), "{said:?}");
    }
}

#[tokio::test]
async fn the_tool_runs_as_whom_the_flag_says_or_the_configuration() {
    if !is_root() {
        return eprintln!("skipped: only root can run commands as another user");
    }
    let site = Site::unix().await;
    let config = site.path().join("config.toml");
    let toml = format!("[targets.here]\naddress = '{}'\nuser = 'nobody'\n", site.target[0]);
    std::fs::write(&config, toml).unwrap();
    for (tool, params) in [("bash", "{\"command\": \"id -u\"}"), ("exec_command", "{\"cmd\": \"id -u\"}")] {
        for (flags, uid) in [(&[][..], NOBODY), (&["--user", "root"], 0)] {
            let mut command = telexec([&["tool"], flags, &["here", tool, params]].concat());
            command.env("TELEXEC_CONFIG", &config);
            let said = Said::by(command).await;
            assert!(said.answer().contains(&format!("{uid}\n")), "{said:?}");
        }
    }
}

#[tokio::test]
async fn the_tool_refuses_what_is_denied() {
    let params = "{\"command\": \"echo rm -rf /\"}";
    let said = say(&["tool", "--deny", "mkfs", "--deny", "rm -rf", "local", "bash", params]).await;
    assert!(said.failure(1).contains("contains 'rm -rf'"), "{said:?}");
}

#[tokio::test]
async fn what_the_agents_policy_denies_is_125() {
    let policy = "permit(principal, action in Action::\"read\", resource);";
    let agent = telexec_tests::Agent::builder().policy(policy).start();
    let said = say(&["tool", agent.uri(), "bash", "{\"command\": \"true\"}"]).await;
    assert!(said.failure(125).contains("no rule of the policy permits Execute"), "{said:?}");
    let said = say(&["tool", "--json", agent.uri(), "exec_command", "{\"cmd\": \"true\"}"]).await;
    let result: Value = serde_json::from_str(said.stdout()).unwrap();
    assert_eq!((said.code, &result["details"]["error"]["kind"]), (125, &json!("denied")));
    assert_eq!(result["details"]["error"]["details"]["rule"], "default");
}

#[tokio::test]
async fn what_has_to_be_approved_says_so() {
    let policy = r#"@id("a") @approval("5m") permit(principal, action in Action::"start", resource);"#;
    let agent = telexec_tests::Agent::builder().policy(policy).start();
    let advice = "once it is approved, make the same call again";
    let said = say(&["tool", agent.uri(), "bash", "{\"command\": \"true\"}"]).await;
    assert!(said.failure(125).contains("requires another identity's approval"), "{said:?}");
    let said = say(&["tool", "--json", agent.uri(), "exec_command", "{\"cmd\": \"true\"}"]).await;
    let error = &serde_json::from_str::<Value>(said.stdout()).unwrap()["details"]["error"];
    assert_eq!((said.code, &error["kind"], &error["recovery_hint"]), (125, &json!("denied"), &json!(advice)));
    assert_eq!(error["details"]["approval_id"].as_str().map(str::len), Some(10), "{error}");
    let mut mcp = telexec_tests::McpClient::start(&[agent.uri()]).await;
    let answer = mcp.error("bash", json!({ "command": "true" })).await;
    assert!(answer.contains("is pending") && answer.contains(advice), "{answer}");
    mcp.close().await;
}

#[tokio::test]
async fn tools_are_listed() {
    let said = say(&["tool", "local"]).await;
    let names: Vec<_> = said.answer().lines().filter_map(|line| line.split_once("  ")).map(|(name, _)| name).collect();
    let commands = ["bash", "exec_command", "task_output", "task_input", "task_stop", "task_list"];
    let files = ["read_file", "write_file", "edit_file", "list_directory", "glob", "grep"];
    assert_eq!(names, [commands, files].concat());
    let tools: Value = serde_json::from_str(say(&["tool", "--json", "local"]).await.answer()).unwrap();
    assert_eq!(tools.as_array().unwrap().len(), names.len());
    assert_eq!(tools[0]["name"], "bash");
    assert_eq!(tools[0]["inputSchema"]["required"], json!(["command"]));
}
