//! The texts of `Style::plain`.

use serde_json::json;
use telexec_tool::BashTool;
use telexec_tool::bash::Style;

use super::{Machine, answer, call, text};

here_and_there! {
    echo_is_answered_as_it_is,
    non_zero_exit_code_is_the_last_line,
    standard_error_is_labelled,
    both_streams_are_a_line_apart,
    silence_is_reported,
    timeout_is_an_error_result,
    spawn_failure_is_an_error_result,
}

async fn echo_is_answered_as_it_is(machine: Machine) {
    assert_eq!(text(&machine, Style::plain(), "echo hello").await, "hello\n");
}

async fn non_zero_exit_code_is_the_last_line(machine: Machine) {
    assert_eq!(text(&machine, Style::plain(), "exit 42").await, "exit code: 42");
    assert_eq!(text(&machine, Style::plain(), "printf out; exit 42").await, "out\nexit code: 42");
    assert_eq!(text(&machine, Style::plain(), "printf out; kill -KILL $$").await, "out\nexit code: -1");
}

async fn standard_error_is_labelled(machine: Machine) {
    assert_eq!(text(&machine, Style::plain(), "echo oops >&2").await, "stderr: oops\n");
}

async fn both_streams_are_a_line_apart(machine: Machine) {
    assert_eq!(text(&machine, Style::plain(), "echo out; echo err >&2").await, "out\n\nstderr: err\n");
    assert_eq!(text(&machine, Style::plain(), "echo err >&2; false").await, "stderr: err\n\nexit code: 1");
}

async fn silence_is_reported(machine: Machine) {
    assert_eq!(text(&machine, Style::plain(), "true").await, "(no output)");
}

async fn timeout_is_an_error_result(machine: Machine) {
    let result = call(&BashTool::new(machine), json!({ "command": "echo out; sleep 300", "timeout": 1 })).await;
    let result = result.unwrap();
    assert_eq!((result.as_text().as_str(), result.is_error), ("out\ncommand timed out after 1s", true));
}

async fn spawn_failure_is_an_error_result(machine: Machine) {
    let result = answer(&BashTool::new(machine).shell("/no/such/shell"), "true").await;
    let text = result.as_text();
    let cause = text.strip_prefix("failed to run command: ").unwrap_or_else(|| panic!("{text}"));
    assert!(result.is_error && cause.contains("/no/such/shell"), "{result:?}");
}
