//! The texts of `Style::sections`.

use std::sync::Arc;

use serde_json::json;
use telexec_tool::BashTool;
use telexec_tool::bash::Style;

use super::{Machine, answer, call, here, text};

here_and_there! {
    timeout_of_sections_is_minus_one_and_its_details_have_no_output,
    sections_hold_what_there_is,
    sections_details_are_structured,
}

#[tokio::test]
async fn default_timeout_of_sections_is_five_seconds() {
    let machine: Machine = Arc::new(here());
    assert_eq!(text(&machine, Style::sections(), "sleep 300").await, "Command timed out after 5 seconds");
}

async fn timeout_of_sections_is_minus_one_and_its_details_have_no_output(machine: Machine) {
    let tool = BashTool::new(machine).style(Style::sections());
    let command = "echo out; echo err >&2; sleep 300";
    let result = call(&tool, json!({ "command": command, "timeout": 2 })).await.unwrap();
    assert_eq!(result.as_text(), "stdout:\nout\nstderr:\nerr\nCommand timed out after 2 seconds");
    assert_eq!(result.details, json!({ "exitCode": -1, "stdout": "", "stderr": "" }));
}

async fn sections_hold_what_there_is(machine: Machine) {
    for (command, expected) in [
        ("echo out; echo err >&2; exit 2", "stdout:\nout\nstderr:\nerr\nexit code: 2"),
        ("printf 'total 24\\nfile\\n'", "stdout:\ntotal 24\nfile\nexit code: 0"),
        ("echo err >&2; false", "stderr:\nerr\nexit code: 1"),
        ("true", "exit code: 0"),
    ] {
        assert_eq!(text(&machine, Style::sections(), command).await, expected, "{command}");
    }
}

async fn sections_details_are_structured(machine: Machine) {
    let tool = BashTool::new(machine).style(Style::sections());
    let result = answer(&tool, "echo out; echo err >&2; exit 2").await;
    assert_eq!(result.details, json!({ "exitCode": 2, "stdout": "out\n", "stderr": "err\n" }));
    assert!(!result.is_error);
}
