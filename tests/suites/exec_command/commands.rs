//! Commands that end within their call.

use std::sync::Arc;

use serde_json::json;
use telexec_tests::{MARK, marker, processes_with, until, within};
use telexec_tool::exec_command::{ExecCommandOutcome, ExecCommandResult, TaskList, TaskStatus};
use telexec_tool::{ExecCommandTool, Tool, ToolContext, ToolError};

use super::{Machine, Tools, WAIT, answer, call, files, go, listening, plain};

here_and_there! {
    zero_exit_is_completed,
    non_zero_exit_is_completed,
    standard_error_has_a_section,
    silence_has_no_sections,
    death_by_a_signal_has_no_code,
    survivors_are_reported,
    cut_output_is_whole_in_a_file,
    long_output_is_whole_in_a_file_that_the_next_command_reads,
    file_that_cannot_be_made_is_reported_and_breaks_nothing,
    uncut_output_leaves_no_file,
    workdir_shell_and_login_are_used,
    output_streams_while_the_command_runs,
    unknown_parameter_is_reported_and_nothing_runs,
    workdir_that_is_missing_is_reported,
    deny_pattern_blocks_and_nothing_runs,
    cancel_is_cancelled_and_leaves_no_process_and_no_file,
    cancel_before_the_start_is_cancelled_and_nothing_runs,
}

async fn zero_exit_is_completed(machine: Machine) {
    let result = answer(machine, json!({ "cmd": "echo hello" })).await;
    assert_eq!(result.as_text(), "Process exited with code 0\n\nstdout:\nhello\n");
    let value = json!({
        "outcome": "completed", "exit_status": 0, "stdout_preview": "hello\n", "stderr_preview": null,
        "truncated": false, "artifacts": [], "stdout_artifact": null, "stderr_artifact": null,
        "summary_text": "command exited with code 0",
    });
    assert_eq!((result.details, result.is_error), (value, false));
}

async fn non_zero_exit_is_completed(machine: Machine) {
    for (command, text) in
        [("exit 42", "Process exited with code 42"), ("no-such 2>&-", "Process exited with code 127")]
    {
        let result = answer(Arc::clone(&machine), json!({ "cmd": command })).await;
        assert_eq!((result.as_text().as_str(), result.is_error), (text, false));
    }
}

async fn standard_error_has_a_section(machine: Machine) {
    let one = answer(Arc::clone(&machine), json!({ "cmd": "printf oops >&2; false" })).await;
    assert_eq!(one.as_text(), "Process exited with code 1\n\nstderr:\noops");
    let both = answer(machine, json!({ "cmd": "printf out; printf err >&2" })).await;
    assert_eq!(both.as_text(), "Process exited with code 0\n\nstdout:\nout\n\nstderr:\nerr");
}

async fn silence_has_no_sections(machine: Machine) {
    for command in ["true", "echo"] {
        let result = answer(Arc::clone(&machine), json!({ "cmd": command })).await;
        assert_eq!(result.as_text(), "Process exited with code 0");
    }
}

async fn death_by_a_signal_has_no_code(machine: Machine) {
    let result = answer(machine, json!({ "cmd": "printf out; kill -KILL $$" })).await;
    assert_eq!(result.as_text(), "Process exited\n\nstdout:\nout\n\nDiagnostics:\nIt was ended by SIGKILL.");
    assert_eq!(result.details["exit_status"], json!(null));
    assert_eq!(result.details["command_diagnostics"]["signal"], "SIGKILL");
}

async fn survivors_are_reported(machine: Machine) {
    let mark = marker();
    let tools = Tools::of(ExecCommandTool::new(machine).env(MARK, &mark));
    let result = tools.run(json!({ "cmd": "sleep 300 >/dev/null 2>&1 & true" })).await;
    assert_eq!(result.command_diagnostics.unwrap().surviving_processes, 1);
    let listed: TaskList = serde_json::from_value(call(&tools.list, json!({})).await.details).unwrap();
    assert_eq!(listed.tasks[0].status, TaskStatus::Lingering);
    let params = json!({ "task_id": listed.tasks[0].task_id });
    assert_eq!(call(&tools.stop, params).await.details["status"], "exited");
    assert_eq!(processes_with(&mark), []);
}

async fn cut_output_is_whole_in_a_file(machine: Machine) {
    let directory = tempfile::tempdir().unwrap();
    let tool = ExecCommandTool::new(machine).artifact_directory(directory.path().to_str().unwrap());
    let command = "printf '\\377\\000'; seq 200000; echo oops >&2";
    let result = call(&tool, plain(json!({ "cmd": command, "max_output_tokens": 10 }))).await;
    let text = result.as_text();
    assert!(text.starts_with("Process exited with code 0\n\nstdout:\n\u{fffd}\0"), "{text}");
    assert!(text.contains("\n... (output truncated: 1288869 bytes left out, lines 7-199998) ...\n"), "{text}");
    let details: ExecCommandResult = serde_json::from_value(result.details).unwrap();
    let ExecCommandOutcome::Completed {
        truncated, artifacts, stdout_artifact, stderr_artifact, stderr_preview, ..
    } = details.outcome
    else {
        panic!("{text}")
    };
    assert_eq!((truncated, stdout_artifact, stderr_artifact), (true, Some(0), None));
    assert_eq!(stderr_preview.as_deref(), Some("oops\n"));
    let [artifact] = &artifacts[..] else { panic!("{artifacts:?}") };
    assert!(text.ends_with(&format!("\n\nArtifacts:\n{}", artifact.path)), "{text}");
    let lines: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
    assert!(std::fs::read(&artifact.path).unwrap() == [b"\xff\0", lines.as_bytes()].concat());
    assert_eq!((artifact.bytes, artifact.complete, files(directory.path())), (1_288_897, true, 1));
}

async fn long_output_is_whole_in_a_file_that_the_next_command_reads(machine: Machine) {
    let directory = tempfile::tempdir().unwrap();
    let tool = ExecCommandTool::new(machine).artifact_directory(directory.path().to_str().unwrap());
    let call = async |command: &str| call(&tool, plain(json!({ "cmd": command, "max_output_tokens": 100 }))).await;
    let details = call("head -c 3000001 /dev/zero; head -c 2000 /dev/zero | tr '\\0' e >&2").await.details;
    let path = |index: usize| details["artifacts"][index]["path"].as_str().unwrap().to_owned();
    let read = format!("wc -c < {}; tr -d e < {} | wc -c; stat -c %a {0}", path(0), path(1));
    assert_eq!(call(&read).await.details["stdout_preview"], "3000001\n0\n600\n");
}

async fn file_that_cannot_be_made_is_reported_and_breaks_nothing(machine: Machine) {
    let tool = ExecCommandTool::new(machine).artifact_directory("/no/such/directory");
    let result = call(&tool, plain(json!({ "cmd": "seq 1000; exit 3", "max_output_tokens": 10 }))).await;
    let text = result.as_text();
    assert!(text.starts_with("Process exited with code 3\n\nstdout:\n1\n") && !text.contains("Artifacts:"), "{text}");
    assert!(text.contains("There is no artifact with the whole of stdout: ") && text.contains("/no/such"), "{text}");
    assert_eq!((&result.details["artifacts"], &result.details["truncated"]), (&json!([]), &json!(true)));
}

async fn uncut_output_leaves_no_file(machine: Machine) {
    let directory = tempfile::tempdir().unwrap();
    let tool = ExecCommandTool::new(machine).artifact_directory(directory.path().to_str().unwrap());
    let result = call(&tool, plain(json!({ "cmd": "seq 1000" }))).await;
    assert_eq!((&result.details["truncated"], files(directory.path())), (&json!(false), 0));
}

async fn workdir_shell_and_login_are_used(machine: Machine) {
    let params = json!({ "cmd": "echo $0; pwd", "shell": "sh", "workdir": "/" });
    assert_eq!(answer(Arc::clone(&machine), params).await.details["stdout_preview"], "sh\n/\n");
    let login = call(&ExecCommandTool::new(machine), json!({ "cmd": "shopt -q login_shell" })).await;
    assert_eq!(login.details["exit_status"], 0);
}

async fn output_streams_while_the_command_runs(machine: Machine) {
    let directory = tempfile::tempdir().unwrap();
    let tool = ExecCommandTool::new(machine);
    let (context, mut reported) = listening();
    let command = json!({ "cmd": format!("echo one; {WAIT}; echo two"), "workdir": directory.path() });
    let call = tool.execute(plain(command), context);
    let seen = async {
        assert_eq!(reported.recv().await.unwrap().data, "one\n");
        go(directory.path());
        assert_eq!(reported.recv().await.unwrap().data, "two\n");
    };
    let (result, ()) = within(async { tokio::join!(call, seen) }).await;
    assert_eq!(result.unwrap().details["stdout_preview"], "one\ntwo\n");
}

async fn unknown_parameter_is_reported_and_nothing_runs(machine: Machine) {
    let directory = tempfile::tempdir().unwrap();
    let params = json!({ "cmd": "touch ran", "workdir": directory.path(), "continue_on_result": true });
    let result = answer(machine, params).await;
    let text = result.as_text();
    assert!(result.is_error && text.starts_with("Command failed\n") && text.contains("continue_on_result"), "{text}");
    let error = &result.details["error"];
    assert_eq!(error["kind"], "invalid_tool_input");
    assert!(error["details"]["parse_error"].as_str().unwrap().contains("continue_on_result"), "{error}");
    assert_eq!(files(directory.path()), 0);
}

async fn workdir_that_is_missing_is_reported(machine: Machine) {
    let result = answer(machine, json!({ "cmd": "true", "workdir": "/no/such" })).await;
    assert!(result.is_error && result.as_text().contains("/no/such"), "{result:?}");
    let error = &result.details["error"];
    assert_eq!((&error["kind"], &error["details"]["stage"]), (&json!("command_not_started"), &json!("chdir")));
}

async fn deny_pattern_blocks_and_nothing_runs(machine: Machine) {
    let directory = tempfile::tempdir().unwrap();
    let tool = ExecCommandTool::new(machine).deny(["rm -rf"]);
    let result = call(&tool, json!({ "cmd": "touch ran; rm -rf nothing", "workdir": directory.path() })).await;
    assert_eq!(result.as_text(), "Command failed\nCommand blocked by safety policy: contains 'rm -rf'\n");
    assert_eq!(files(directory.path()), 0);
}

async fn cancel_is_cancelled_and_leaves_no_process_and_no_file(machine: Machine) {
    let mark = marker();
    let directory = tempfile::tempdir().unwrap();
    let tool = ExecCommandTool::new(machine).env(MARK, &mark).artifact_directory(directory.path().to_str().unwrap());
    let (context, mut reported) = listening();
    let cancel = context.cancel.clone();
    let command = json!({ "cmd": "seq 100; setsid sleep 300 & sleep 300", "max_output_tokens": 1 });
    let call = tool.execute(plain(command), context);
    let cancelled = async {
        let mut seen = 0;
        while seen < 292 {
            seen += reported.recv().await.unwrap().data.len();
        }
        cancel.cancel();
    };
    let (result, ()) = within(async { tokio::join!(call, cancelled) }).await;
    assert!(matches!(result, Err(ToolError::Cancelled)), "{result:?}");
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
    assert_eq!(files(directory.path()), 0);
}

async fn cancel_before_the_start_is_cancelled_and_nothing_runs(machine: Machine) {
    let directory = tempfile::tempdir().unwrap();
    let context = ToolContext::default();
    context.cancel.cancel();
    let params = json!({ "cmd": "touch ran", "workdir": directory.path() });
    let result = within(ExecCommandTool::new(machine).execute(params, context)).await;
    assert!(matches!(result, Err(ToolError::Cancelled)), "{result:?}");
    assert_eq!(files(directory.path()), 0);
}
