//! The texts of `Style::code_first`.

use std::time::Duration;

use serde_json::json;
use telexec_tool::bash::Style;
use telexec_tool::{BashTool, ToolError};

use super::{Machine, Trace, answer, call, failed, text, tool};

here_and_there! {
    cwd_is_used,
    configured_timeout_fails_with_seconds,
    spawn_failure_fails_to_execute,
    invalid_utf8_is_replaced,
    output_is_cut_at_the_limit_between_characters,
    output_at_the_limit_is_whole,
    output_far_beyond_the_limit_is_cut,
    killed_by_signal_is_minus_one,
    code_first_without_standard_error_has_no_headings,
    code_first_with_standard_error_has_headings,
}

async fn cwd_is_used(machine: Machine) {
    let trace = Trace::new();
    let tool = tool(&machine, Style::code_first(), &trace);
    assert_eq!(answer(&tool, "pwd").await.as_text(), format!("Exit code: 0\n{}\n", trace.path()));
}

async fn configured_timeout_fails_with_seconds(machine: Machine) {
    let tool = BashTool::new(machine).style(Style::code_first()).timeout(Duration::from_secs(1));
    let result = call(&tool, json!({ "command": "echo out; sleep 300" })).await;
    assert_eq!(failed(result), "out\nCommand timed out after 1s");
}

async fn spawn_failure_fails_to_execute(machine: Machine) {
    let tool = BashTool::new(machine).style(Style::code_first()).shell("/no/such/shell");
    let error = call(&tool, json!({ "command": "true" })).await.unwrap_err();
    let ToolError::Failed { message, source: Some(source) } = &error else { panic!("{error:?}") };
    assert_eq!(*message, format!("Failed to execute: {source}"));
    assert!(message.contains("/no/such/shell"), "{message}");
}

async fn invalid_utf8_is_replaced(machine: Machine) {
    let text = text(&machine, Style::code_first(), r"printf 'a\377\303b'; printf '\360\237' >&2").await;
    assert_eq!(text, "Exit code: 0\nSTDOUT:\na\u{fffd}\u{fffd}b\nSTDERR:\n\u{fffd}");
}

async fn output_is_cut_at_the_limit_between_characters(machine: Machine) {
    let tool = BashTool::new(machine).style(Style::code_first()).max_output_characters(1_000);
    let text = answer(&tool, "printf '🦀%.0s' $(seq 400); printf 'é%.0s' $(seq 400) >&2").await.as_text();
    let cut = |letter: &str, bytes: usize| {
        let part = letter.repeat(125);
        format!("{part}\n... (output truncated: {bytes} bytes left out, line 1) ...\n{part}")
    };
    assert_eq!(text, format!("Exit code: 0\nSTDOUT:\n{}\nSTDERR:\n{}", cut("🦀", 600), cut("é", 300)));
}

async fn output_at_the_limit_is_whole(machine: Machine) {
    let tool = BashTool::new(machine).style(Style::code_first()).max_output_characters(1_000);
    let text = answer(&tool, "printf '語%.0s' $(seq 500)").await.as_text();
    assert_eq!(text, format!("Exit code: 0\n{}", "語".repeat(500)));
}

async fn output_far_beyond_the_limit_is_cut(machine: Machine) {
    let tool = BashTool::new(machine).style(Style::code_first()).max_output_characters(1_000);
    let text = answer(&tool, "head -c 5000000 /dev/zero | tr '\\0' x").await.as_text();
    let part = "x".repeat(250);
    let cut = format!("{part}\n... (output truncated: 4999500 bytes left out, line 1) ...\n{part}");
    assert_eq!(text, format!("Exit code: 0\n{cut}"));
}

async fn killed_by_signal_is_minus_one(machine: Machine) {
    let result = answer(&BashTool::new(machine).style(Style::code_first()), "echo out; kill -KILL $$").await;
    assert_eq!(result.as_text(), "Exit code: -1\nout\n");
    assert_eq!(result.details, json!({ "exit_code": -1, "success": false }));
}

async fn code_first_without_standard_error_has_no_headings(machine: Machine) {
    assert_eq!(text(&machine, Style::code_first(), "echo out; exit 3").await, "Exit code: 3\nout\n");
    assert_eq!(text(&machine, Style::code_first(), "true").await, "Exit code: 0\n");
}

async fn code_first_with_standard_error_has_headings(machine: Machine) {
    let both = text(&machine, Style::code_first(), "echo out; echo err >&2").await;
    assert_eq!(both, "Exit code: 0\nSTDOUT:\nout\n\nSTDERR:\nerr\n");
    let one = text(&machine, Style::code_first(), "printf err >&2").await;
    assert_eq!(one, "Exit code: 0\nSTDOUT:\n\nSTDERR:\nerr");
}
