//! What a call came to, in words for the model.

use super::outcome::{ExecCommandOutcome, ExecCommandResult};

impl ExecCommandResult {
    /// The text that a model gets.
    pub fn render(&self) -> String {
        let mut lines = match &self.outcome {
            ExecCommandOutcome::Completed { exit_status, stdout_preview, stderr_preview, artifacts, .. } => {
                let mut lines = vec![ended(*exit_status)];
                section(&mut lines, "stdout:", stdout_preview.as_deref());
                section(&mut lines, "stderr:", stderr_preview.as_deref());
                let paths: Vec<_> = artifacts.iter().map(|artifact| artifact.path.as_str()).collect();
                section(&mut lines, "Artifacts:", Some(&paths.join("\n")));
                lines
            }
            ExecCommandOutcome::PromotedToTask { task_handle, initial_output_preview, .. } => {
                let mut lines = vec!["Command promoted to background task".to_owned(), task(&task_handle.task_id)];
                let output = initial_output_preview.as_deref().filter(|text| !text.trim().is_empty());
                section(&mut lines, "Initial output:", Some(output.unwrap_or("(none captured before promotion)")));
                lines
            }
            ExecCommandOutcome::AlreadyRunning { task_handle, command, summary, instructions } => {
                let mut lines = vec!["Command is already running".to_owned(), task(&task_handle.task_id)];
                lines.push(format!("Status: {:?}", task_handle.status));
                line(&mut lines, "Task summary: ", summary.as_deref());
                if let Some(command) = command {
                    line(&mut lines, "Command: ", command.cmd.as_deref());
                    line(&mut lines, "workdir=", command.workdir.as_deref());
                    line(&mut lines, "shell=", command.shell.as_deref());
                }
                if let Some(instructions) = instructions.as_deref().filter(|text| !text.trim().is_empty()) {
                    lines.extend([String::new(), instructions.to_owned()]);
                }
                lines
            }
        };
        if let Some(diagnostics) = &self.command_diagnostics {
            section(&mut lines, "Diagnostics:", Some(&diagnostics.remarks.join("\n")));
        }
        lines.join("\n")
    }
}

pub(super) fn ended(exit_status: Option<i32>) -> String {
    exit_status.map_or_else(|| "Process exited".to_owned(), |code| format!("Process exited with code {code}"))
}

pub(super) fn task(id: &str) -> String {
    format!("Task: {id}")
}

/// A blank line, a heading, a text; nothing if the text is blank.
pub(super) fn section(lines: &mut Vec<String>, heading: &str, text: Option<&str>) {
    if let Some(text) = text.filter(|text| !text.trim().is_empty()) {
        lines.extend([String::new(), heading.to_owned(), text.to_owned()]);
    }
}

fn line(lines: &mut Vec<String>, name: &str, text: Option<&str>) {
    if let Some(text) = text.filter(|text| !text.trim().is_empty()) {
        lines.push(format!("{name}{text}"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn render(result: Value) -> String {
        serde_json::from_value::<ExecCommandResult>(result).unwrap().render()
    }

    fn completed(exit_status: Option<i32>, stdout: Option<&str>, stderr: Option<&str>, artifacts: &[&str]) -> Value {
        let artifacts: Vec<_> =
            artifacts.iter().map(|path| json!({ "path": path, "bytes": 1, "complete": true })).collect();
        json!({
            "outcome": "completed", "exit_status": exit_status, "stdout_preview": stdout, "stderr_preview": stderr,
            "truncated": false, "artifacts": artifacts, "stdout_artifact": null, "stderr_artifact": null,
        })
    }

    #[test]
    fn a_completed_command_has_a_section_for_what_there_is() {
        for (result, text) in [
            (completed(Some(0), Some("one\ntwo"), None, &[]), "Process exited with code 0\n\nstdout:\none\ntwo"),
            (completed(Some(7), None, Some("oops"), &[]), "Process exited with code 7\n\nstderr:\noops"),
            (
                completed(Some(0), Some("a\n"), Some("b\n"), &["/o", "/e"]),
                "Process exited with code 0\n\nstdout:\na\n\n\nstderr:\nb\n\n\nArtifacts:\n/o\n/e",
            ),
            (completed(None, None, None, &[]), "Process exited"),
            (completed(Some(0), Some(" \n"), Some(""), &[]), "Process exited with code 0"),
        ] {
            assert_eq!(render(result), text);
        }
    }

    #[test]
    fn diagnostics_are_the_last_section() {
        let mut result = completed(None, Some("out"), None, &[]);
        result["command_diagnostics"] = json!({
            "cause": "signaled", "signal": "SIGKILL", "surviving_processes": 0, "dropped_output_bytes": 0,
            "incomplete_output": false, "remarks": ["It was ended by SIGKILL."],
        });
        assert_eq!(render(result), "Process exited\n\nstdout:\nout\n\nDiagnostics:\nIt was ended by SIGKILL.");
    }

    #[test]
    fn a_promoted_command_reports_its_task_and_output() {
        let promoted = |output: Option<&str>| {
            render(json!({
                "outcome": "promoted_to_task",
                "task_handle": { "task_id": "task_123", "task_kind": "command_task", "status": "running" },
                "initial_output_preview": output, "initial_output_truncated": false,
            }))
        };
        let head = "Command promoted to background task\nTask: task_123\n\nInitial output:\n";
        assert_eq!(promoted(Some("booting")), format!("{head}booting"));
        for nothing in [None, Some(""), Some("\n")] {
            assert_eq!(promoted(nothing), format!("{head}(none captured before promotion)"));
        }
    }

    #[test]
    fn a_running_duplicate_reports_what_it_is() {
        let head = "Command is already running\nTask: task_123\nStatus: Running";
        let running = |more: Value| {
            let mut result = json!({
                "outcome": "already_running",
                "task_handle": { "task_id": "task_123", "task_kind": "command_task", "status": "running" },
            });
            result.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            render(result)
        };
        assert_eq!(running(json!({})), head);
        let command = json!({ "cmd": "make", "workdir": "/src", "shell": "sh", "login": true, "tty": false });
        assert_eq!(
            running(json!({ "command": command, "summary": "well", "instructions": "Wait." })),
            format!("{head}\nTask summary: well\nCommand: make\nworkdir=/src\nshell=sh\n\nWait.")
        );
        let bare = json!({ "cmd": " ", "workdir": null, "shell": null, "login": true, "tty": false });
        assert_eq!(running(json!({ "command": bare, "summary": "", "instructions": " " })), head);
    }
}
