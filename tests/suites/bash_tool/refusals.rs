//! Calls that are invalid, denied, not confirmed or cancelled.

use serde_json::json;
use telexec_tests::{MARK, marker, processes_with, until, within};
use telexec_tool::bash::Style;
use telexec_tool::{BashTool, Tool, ToolContext, ToolError};

use super::{Machine, Trace, answer, call, failed, listening, next, tool};

here_and_there! {
    missing_command_is_invalid_args,
    unknown_parameter_is_refused_by_name_and_nothing_runs,
    malformed_command_is_invalid_args,
    deny_pattern_blocks_and_nothing_runs,
    refused_confirmation_fails_and_nothing_runs,
    confirmation_is_asked_with_the_whole_command,
    denied_command_is_not_confirmed,
    cancel_is_cancelled_and_leaves_no_process,
    cancel_before_the_start_is_cancelled_and_nothing_runs,
    timeout_that_is_not_positive_is_refused_and_nothing_runs,
    sudo_is_refused_and_nothing_runs,
}

async fn missing_command_is_invalid_args(machine: Machine) {
    let tool = BashTool::new(machine);
    for params in [json!({}), json!({ "timeout": 1 }), json!({ "command": 1 }), json!({ "command": null }), json!(null)]
    {
        let result = call(&tool, params.clone()).await;
        assert!(matches!(result, Err(ToolError::InvalidArgs(_))), "{params}: {result:?}");
    }
}

async fn unknown_parameter_is_refused_by_name_and_nothing_runs(machine: Machine) {
    let trace = Trace::new();
    let tool = tool(&machine, Style::plain(), &trace);
    let result = call(&tool, json!({ "command": Trace::WRITE, "workdir": "/" })).await;
    assert!(matches!(&result, Err(ToolError::InvalidArgs(text)) if text.starts_with("workdir: ")), "{result:?}");
    assert!(!trace.has_run());
}

async fn malformed_command_is_invalid_args(machine: Machine) {
    let tool = BashTool::new(machine);
    for command in ["", "echo \0"] {
        let result = call(&tool, json!({ "command": command })).await;
        assert!(matches!(result, Err(ToolError::InvalidArgs(_))), "{command:?}: {result:?}");
    }
}

async fn deny_pattern_blocks_and_nothing_runs(machine: Machine) {
    let trace = Trace::new();
    let tool = tool(&machine, Style::code_first(), &trace).deny(["mkfs", "rm -rf"]);
    let result = call(&tool, json!({ "command": format!("{}; rm -rf nothing", Trace::WRITE) })).await;
    assert_eq!(failed(result), "Command blocked by safety policy: contains 'rm -rf'");
    assert!(!trace.has_run());
}

async fn refused_confirmation_fails_and_nothing_runs(machine: Machine) {
    let trace = Trace::new();
    let tool = tool(&machine, Style::code_first(), &trace).confirm(async |_| false);
    let result = call(&tool, json!({ "command": Trace::WRITE })).await;
    assert_eq!(failed(result), "Command was not confirmed by the user.");
    assert!(!trace.has_run());
}

async fn confirmation_is_asked_with_the_whole_command(machine: Machine) {
    let tool = BashTool::new(machine).confirm(async |command| command == "echo 'a  b'; echo c");
    assert_eq!(answer(&tool, "echo 'a  b'; echo c").await.as_text(), "a  b\nc\n");
}

async fn denied_command_is_not_confirmed(machine: Machine) {
    let ask = async |command| panic!("asked for {command}");
    let tool = BashTool::new(machine).deny(["reboot"]).confirm(ask);
    let result = call(&tool, json!({ "command": "reboot" })).await;
    assert_eq!(failed(result), "Command blocked by safety policy: contains 'reboot'");
}

async fn cancel_is_cancelled_and_leaves_no_process(machine: Machine) {
    let mark = marker();
    let tool = BashTool::new(machine).env(MARK, &mark);
    let (context, mut reported) = listening();
    let cancel = context.cancel.clone();
    let call = tool.execute(json!({ "command": "echo ready; setsid sleep 300 & sleep 300" }), context);
    let cancelled = async {
        assert_eq!(next(&mut reported).await.1, "ready\n");
        cancel.cancel();
    };
    let (result, ()) = within(async { tokio::join!(call, cancelled) }).await;
    assert!(matches!(result, Err(ToolError::Cancelled)), "{result:?}");
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

async fn cancel_before_the_start_is_cancelled_and_nothing_runs(machine: Machine) {
    let trace = Trace::new();
    let tool = tool(&machine, Style::code_first(), &trace);
    let context = ToolContext::default();
    context.cancel.cancel();
    let result = within(tool.execute(json!({ "command": Trace::WRITE }), context)).await;
    assert!(matches!(result, Err(ToolError::Cancelled)), "{result:?}");
    assert!(!trace.has_run());
}

async fn timeout_that_is_not_positive_is_refused_and_nothing_runs(machine: Machine) {
    let trace = Trace::new();
    for style in [Style::plain(), Style::code_first(), Style::sections()] {
        let tool = tool(&machine, style, &trace);
        for timeout in [json!(0), json!(-1), json!(-0.5), json!("5"), json!(null), json!([]), json!(true)] {
            let result = call(&tool, json!({ "command": Trace::WRITE, "timeout": timeout })).await;
            let named = matches!(&result, Err(ToolError::InvalidArgs(text)) if text.starts_with("timeout: "));
            assert!(named, "{timeout}: {result:?}");
        }
    }
    assert!(!trace.has_run());
}

async fn sudo_is_refused_and_nothing_runs(machine: Machine) {
    let trace = Trace::new();
    let tool = tool(&machine, Style::sections(), &trace);
    for sudo in ["sudo -n true", "/usr/bin/sudo -n true", "echo a | sudo -n tee b", "echo $(sudo -n id)"] {
        let message = failed(call(&tool, json!({ "command": format!("{}; {sudo}", Trace::WRITE) })).await);
        assert!(message.contains("sudo"), "{sudo}: {message}");
    }
    assert!(!trace.has_run());
}
