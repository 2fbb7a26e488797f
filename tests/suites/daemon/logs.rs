//! What the agent writes down, and what it does not.

use serde_json::Value;
use telexec_executor::{Command, ExecutionId};
use telexec_tests::{Agent, AgentBuilder, MARK, marker, run, until};

/// The log of an agent that ran a command which failed and one which ran.
async fn log_of(agent: AgentBuilder, id: &ExecutionId) -> String {
    let agent = agent.start();
    let executor = agent.executor().await;
    let text = "echo s3cret-text\n# 2001-01-01 forged line";
    let command = Command::shell(text).env(MARK, "s3cret-value").stdin("s3cret-input").execution_id(id.clone());
    run(&executor, command.clone().shell("/no/such/shell")).await.unwrap_err();
    run(&executor, command).await.unwrap();
    let is_end = |line: &str| line.contains(id.as_str()) && line.contains("exit_code");
    until("the end is logged", async || agent.log().lines().any(is_end)).await;
    agent.log()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_line_of_an_execution_names_it_and_its_caller() {
    let id: ExecutionId = marker().parse().unwrap();
    let log = log_of(Agent::builder(), &id).await;
    for step in ["not started", "started", "ended"] {
        let message = format!("supervise: {step}");
        let line = log.lines().find(|line| line.contains(&message)).unwrap_or_else(|| panic!("no {step}: {log}"));
        assert!(line.contains(id.as_str()) && line.contains("unix:uid="), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_are_not_logged() {
    let log = log_of(Agent::builder(), &marker().parse().unwrap()).await;
    assert!(!log.contains("s3cret"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_are_logged_on_one_line_if_that_is_configured() {
    let log = log_of(Agent::builder().config("log_commands = true"), &marker().parse().unwrap()).await;
    assert!(log.contains("s3cret-text") && !log.contains("s3cret-value") && !log.contains("s3cret-input"), "{log}");
    assert!(!log.lines().any(|line| line.starts_with("# 2001-01-01")), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn json_has_one_object_a_line() {
    let id: ExecutionId = marker().parse().unwrap();
    let log = log_of(Agent::builder().args(["--log-format", "json"]), &id).await;
    let lines = log.lines().filter(|line| !line.starts_with("listening on "));
    let objects: Vec<Value> = lines.map(|line| serde_json::from_str(line).expect(line)).collect();
    let ended = objects.iter().find(|object| object["message"] == "ended").unwrap();
    assert_eq!((&ended["span"]["id"], &ended["level"]), (&Value::from(id.as_str()), &Value::from("INFO")));
}
