//! The tool `exec_command` and those that go on with its tasks, on this machine and behind an agent.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use telexec_executor::{Executor, Output};
use telexec_tests::{MARK, marker, processes_with, until, within};
use telexec_tool::{ExecCommandTool, Tool, ToolContext, ToolError, ToolResult};
use telexec_tool::{
    exec_command::ExecCommandOutcome, exec_command::ExecCommandResult, exec_command::TaskHandle,
    exec_command::TaskList, exec_command::TaskOutput, exec_command::TaskStatus,
};
use telexec_tool::{
    exec_command::TaskInputTool, exec_command::TaskListTool, exec_command::TaskOutputTool, exec_command::TaskStop,
    exec_command::TaskStopTool,
};
use tokio::sync::mpsc;

/// Where a case runs its commands.
type Machine = Arc<dyn Executor>;

macro_rules! here_and_there {
    ($($case:ident),+ $(,)?) => {
        telexec_tests::at_place!(local: $($case),+);
        telexec_tests::at_place!(unix: $($case),+);
    };
}

here_and_there! {
    zero_exit_is_completed,
    non_zero_exit_is_completed,
    standard_error_has_a_section,
    silence_has_no_sections,
    death_by_a_signal_has_no_code,
    survivors_are_told,
    cut_output_is_whole_in_a_file,
    uncut_output_leaves_no_file,
    workdir_shell_and_login_are_used,
    output_streams_while_the_command_runs,
    unknown_parameter_is_told_and_nothing_runs,
    workdir_that_is_missing_is_told,
    deny_pattern_blocks_and_nothing_runs,
    cancel_is_cancelled_and_leaves_no_process_and_no_file,
    cancel_before_the_start_is_cancelled_and_nothing_runs,
    no_tasks_are_told,
    unknown_task_is_told,

    command_that_runs_long_becomes_a_task_that_is_read_on,
    command_that_yields_at_once_has_no_initial_output,
    end_of_a_task_is_waited_for,
    task_goes_on_after_a_cancelled_read,
    long_output_of_a_task_comes_in_pieces,
    task_takes_input,
    task_without_input_refuses_it,
    task_is_stopped,
    task_that_ignores_sigterm_is_killed,
    survivors_of_a_task_are_stopped,
    running_duplicate_is_reused,
    duplicate_is_started_when_asked_for,
    terminal_is_one,
    terminal_takes_input,
    tasks_are_listed,
}

/// The tools of one model.
struct Tools {
    command: ExecCommandTool,
    output: TaskOutputTool,
    input: TaskInputTool,
    stop: TaskStopTool,
    list: TaskListTool,
}

impl Tools {
    fn of(command: ExecCommandTool) -> Self {
        let (output, input, stop, list) =
            (command.task_output(), command.task_input(), command.task_stop(), command.task_list());
        Self { command, output, input, stop, list }
    }

    fn on(machine: Machine) -> Self {
        Self::of(ExecCommandTool::new(machine))
    }

    async fn run(&self, params: Value) -> ExecCommandResult {
        let result = call(&self.command, plain(params)).await;
        assert!(!result.is_error, "{result:?}");
        serde_json::from_value(result.details).unwrap()
    }

    /// Starts what becomes a task.
    async fn task(&self, params: Value) -> TaskHandle {
        match self.run(params).await.outcome {
            ExecCommandOutcome::PromotedToTask { task_handle, .. } => task_handle,
            other => panic!("{other:?}"),
        }
    }

    async fn read(&self, task: &TaskHandle, yield_time_ms: u64) -> TaskOutput {
        let params = json!({ "task_id": task.task_id, "yield_time_ms": yield_time_ms });
        serde_json::from_value(call(&self.output, params).await.details).unwrap()
    }

    /// Reads on until the task has written this to standard output since.
    async fn read_until(&self, task: &TaskHandle, end: &str) -> String {
        let mut all = String::new();
        until("the task writes what it should", async || {
            all += self.read(task, 0).await.stdout.as_deref().unwrap_or_default();
            all.ends_with(end)
        })
        .await;
        all
    }

    async fn write(&self, task: &TaskHandle, text: &str, close: bool) -> ToolResult {
        call(&self.input, json!({ "task_id": task.task_id, "text": text, "close": close })).await
    }

    async fn stop(&self, task: &TaskHandle, grace_ms: u64) -> TaskStop {
        let params = json!({ "task_id": task.task_id, "grace_ms": grace_ms });
        serde_json::from_value(call(&self.stop, params).await.details).unwrap()
    }
}

/// A login shell may have more to say than a test expects.
fn plain(mut params: Value) -> Value {
    params.as_object_mut().unwrap().entry("login").or_insert(json!(false));
    params
}

async fn call(tool: &dyn Tool, params: Value) -> ToolResult {
    within(tool.execute(params, ToolContext::default())).await.unwrap()
}

async fn answer(machine: Machine, params: Value) -> ToolResult {
    call(&ExecCommandTool::new(machine), plain(params)).await
}

fn listening() -> (ToolContext, mpsc::Receiver<Output>) {
    let (output, told) = mpsc::channel(16);
    (ToolContext { output: Some(output), ..ToolContext::default() }, told)
}

fn files(directory: &Path) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

/// Writes `go` into a directory that is the command's, for a command that waits for it.
fn go(directory: &Path) {
    std::fs::write(directory.join("go"), "").unwrap();
}

const WAIT: &str = "until [ -e go ]; do sleep 0.01; done";

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

async fn survivors_are_told(machine: Machine) {
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
    let tool = ExecCommandTool::new(machine).artifact_directory(directory.path());
    let command = "printf '\\377\\000'; seq 200000; echo oops >&2";
    let result = call(&tool, plain(json!({ "cmd": command, "max_output_tokens": 10 }))).await;
    let text = result.as_text();
    assert!(text.starts_with("Process exited with code 0\n\nstdout:\n\u{fffd}\0"), "{text}");
    assert!(text.contains("\n... (output cut: 1288897 bytes in all) ...\n"), "{text}");
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

async fn uncut_output_leaves_no_file(machine: Machine) {
    let directory = tempfile::tempdir().unwrap();
    let tool = ExecCommandTool::new(machine).artifact_directory(directory.path());
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
    let (context, mut told) = listening();
    let command = json!({ "cmd": format!("echo one; {WAIT}; echo two"), "workdir": directory.path() });
    let call = tool.execute(plain(command), context);
    let seen = async {
        assert_eq!(told.recv().await.unwrap().data, "one\n");
        go(directory.path());
        assert_eq!(told.recv().await.unwrap().data, "two\n");
    };
    let (result, ()) = within(async { tokio::join!(call, seen) }).await;
    assert_eq!(result.unwrap().details["stdout_preview"], "one\ntwo\n");
}

async fn unknown_parameter_is_told_and_nothing_runs(machine: Machine) {
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

async fn workdir_that_is_missing_is_told(machine: Machine) {
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
    let tool = ExecCommandTool::new(machine).env(MARK, &mark).artifact_directory(directory.path());
    let (context, mut told) = listening();
    let cancel = context.cancel.clone();
    let command = json!({ "cmd": "seq 100; setsid sleep 300 & sleep 300", "max_output_tokens": 1 });
    let call = tool.execute(plain(command), context);
    let cancelled = async {
        let mut seen = 0;
        while seen < 292 {
            seen += told.recv().await.unwrap().data.len();
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

async fn no_tasks_are_told(machine: Machine) {
    let tools = Tools::on(machine);
    tools.run(json!({ "cmd": "true" })).await;
    assert_eq!(call(&tools.list, json!({})).await.as_text(), "(no tasks)");
    let ended = call(&tools.list, json!({ "include_exited": true })).await.as_text();
    assert!(ended.ends_with("  Exited with code 0  true"), "{ended}");
}

async fn unknown_task_is_told(machine: Machine) {
    let tools = Tools::on(machine);
    for tool in [&tools.output as &dyn Tool, &tools.stop] {
        let result = call(tool, json!({ "task_id": "no-such-task" })).await;
        assert_eq!((&result.details["error"]["kind"], result.is_error), (&json!("task_not_found"), true));
    }
}

// tasks

async fn command_that_runs_long_becomes_a_task_that_is_read_on(machine: Machine) {
    let directory = tempfile::tempdir().unwrap();
    let tools = Tools::on(machine);
    let command = format!("echo one; echo two >&2; {WAIT}; echo three; echo four >&2; exit 3");
    let params = json!({ "cmd": command, "workdir": directory.path(), "yield_time_ms": 500 });
    let result = call(&tools.command, plain(params)).await;
    let details: ExecCommandResult = serde_json::from_value(result.details.clone()).unwrap();
    let ExecCommandOutcome::PromotedToTask { task_handle: task, initial_output_preview, initial_output_truncated } =
        details.outcome
    else {
        panic!("{result:?}")
    };
    let head = format!("Command promoted to background task\nTask: {}\n\nInitial output:\n", task.task_id);
    let shown = initial_output_preview.as_deref().unwrap_or("(none captured before promotion)");
    assert_eq!((result.as_text(), initial_output_truncated), (head + shown, false));
    assert_eq!((task.task_kind.as_str(), task.status), ("command_task", TaskStatus::Running));
    assert_eq!(task.initial_output, initial_output_preview);

    // what was told before is not told again, however much that was
    let mut told = initial_output_preview.unwrap_or_default().len();
    until("it waits", async || {
        let piece = tools.read(&task, 0).await;
        assert_eq!((piece.status, piece.position), (TaskStatus::Running, told as u64));
        told += piece.stdout.unwrap_or_default().len() + piece.stderr.unwrap_or_default().len();
        told == 8
    })
    .await;
    go(directory.path());
    let rest = tools.read(&task, 60_000).await;
    assert_eq!((rest.stdout.as_deref(), rest.stderr.as_deref()), (Some("three\n"), Some("four\n")));
    assert_eq!(
        (rest.status, rest.exit_status, rest.position, rest.next_position),
        (TaskStatus::Exited, Some(3), 8, 19)
    );

    let all = call(&tools.output, json!({ "task_id": task.task_id, "position": 0 })).await;
    assert_eq!((&all.details["stdout"], &all.details["stderr"]), (&json!("one\nthree\n"), &json!("two\nfour\n")));
}

async fn command_that_yields_at_once_has_no_initial_output(machine: Machine) {
    let result = answer(machine, json!({ "cmd": "sleep 300", "yield_time_ms": 0 })).await;
    assert!(result.as_text().ends_with("\n\nInitial output:\n(none captured before promotion)"), "{result:?}");
}

async fn end_of_a_task_is_waited_for(machine: Machine) {
    let tools = Tools::on(machine);
    let task = tools.task(json!({ "cmd": "sleep 0.5; echo done", "yield_time_ms": 0 })).await;
    let output = tools.read(&task, 60_000).await;
    assert_eq!((output.stdout.as_deref(), output.exit_status), (Some("done\n"), Some(0)));
}

async fn task_goes_on_after_a_cancelled_read(machine: Machine) {
    let directory = tempfile::tempdir().unwrap();
    let tools = Tools::on(machine);
    let command = format!("{WAIT}; echo done");
    let task = tools.task(json!({ "cmd": command, "workdir": directory.path(), "yield_time_ms": 0 })).await;
    let context = ToolContext::default();
    let cancel = context.cancel.clone();
    let read = tools.output.execute(json!({ "task_id": task.task_id, "yield_time_ms": 60_000 }), context);
    let cancelled = async {
        tools.read(&task, 0).await;
        cancel.cancel();
    };
    let (result, ()) = within(async { tokio::join!(read, cancelled) }).await;
    assert!(matches!(result, Err(ToolError::Cancelled)), "{result:?}");
    go(directory.path());
    assert_eq!(tools.read(&task, 60_000).await.stdout.as_deref(), Some("done\n"));
}

async fn long_output_of_a_task_comes_in_pieces(machine: Machine) {
    let tools = Tools::on(machine);
    let task = tools.task(json!({ "cmd": "seq 20000 | sed s/$/é/", "yield_time_ms": 0 })).await;
    let mut all = task.initial_output.clone().unwrap_or_default();
    loop {
        let params = json!({ "task_id": task.task_id, "yield_time_ms": 60_000, "max_output_tokens": 1001 });
        let piece: TaskOutput = serde_json::from_value(call(&tools.output, params).await.details).unwrap();
        let text = piece.stdout.unwrap_or_default();
        assert!(text.len() <= 4004, "{}", text.len());
        all += &text;
        if piece.status != TaskStatus::Running {
            break;
        }
    }
    assert!(all == (1..=20_000).map(|n| format!("{n}é\n")).collect::<String>());
}

async fn task_takes_input(machine: Machine) {
    let tools = Tools::on(machine);
    let task = tools.task(json!({ "cmd": "cat; echo bye", "accepts_input": true, "yield_time_ms": 0 })).await;
    let written = tools.write(&task, "hé\n", false).await;
    assert_eq!(written.as_text(), format!("Input written\nTask: {}", task.task_id));
    assert_eq!(written.details["committed_offset"], 4);
    assert_eq!(tools.read_until(&task, "\n").await, "hé\n");
    assert_eq!(tools.write(&task, "last\n", true).await.details["closed"], true);
    let rest = tools.read(&task, 60_000).await;
    assert_eq!((rest.stdout.as_deref(), rest.exit_status), (Some("last\nbye\n"), Some(0)));
}

async fn task_without_input_refuses_it(machine: Machine) {
    let tools = Tools::on(machine);
    let task = tools.task(json!({ "cmd": "sleep 300", "yield_time_ms": 0 })).await;
    let refused = tools.write(&task, "a", false).await;
    assert_eq!((&refused.details["error"]["kind"], refused.is_error), (&json!("failed_precondition"), true));
}

async fn task_is_stopped(machine: Machine) {
    let mark = marker();
    let tools = Tools::of(ExecCommandTool::new(machine).env(MARK, &mark));
    let task = tools.task(json!({ "cmd": "setsid sleep 300 & sleep 300", "yield_time_ms": 0 })).await;
    // one that is started while SIGTERM is sent does not get it
    let sleeps = || processes_with(&mark).iter().filter(|process| process.name == "sleep").count();
    until("both run", async || sleeps() == 2).await;
    let stopped = tools.stop(&task, 60_000).await;
    assert_eq!((stopped.status, stopped.had_ended), (TaskStatus::Exited, false));
    assert_eq!(stopped.command_diagnostics.unwrap().signal.as_deref(), Some("SIGTERM"));
    assert_eq!(processes_with(&mark), []);
    assert!(tools.stop(&task, 0).await.had_ended);
    assert_eq!(tools.read(&task, 0).await.status, TaskStatus::Exited);
}

async fn task_that_ignores_sigterm_is_killed(machine: Machine) {
    let tools = Tools::on(machine);
    let command = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    let task = tools.task(json!({ "cmd": command, "yield_time_ms": 0 })).await;
    if task.initial_output.is_none() {
        tools.read_until(&task, "ready\n").await;
    }
    let stopped = tools.stop(&task, 100).await;
    assert_eq!(stopped.command_diagnostics.unwrap().signal.as_deref(), Some("SIGKILL"));
    assert_eq!(stopped.status, TaskStatus::Exited);
}

async fn survivors_of_a_task_are_stopped(machine: Machine) {
    let mark = marker();
    let tools = Tools::of(ExecCommandTool::new(machine).env(MARK, &mark));
    let command = "(trap '' TERM; exec sleep 300) >/dev/null 2>&1 & sleep 0.5";
    let task = tools.task(json!({ "cmd": command, "yield_time_ms": 0 })).await;
    let ended = tools.read(&task, 60_000).await;
    assert_eq!((ended.status, ended.exit_status), (TaskStatus::Lingering, Some(0)));
    assert_eq!(tools.stop(&task, 100).await.status, TaskStatus::Exited);
    assert_eq!(processes_with(&mark), []);
}

async fn running_duplicate_is_reused(machine: Machine) {
    let tools = Tools::on(machine);
    let params = json!({ "cmd": "sleep 300", "workdir": "/", "shell": "sh", "yield_time_ms": 0 });
    let task = tools.task(params.clone()).await;
    let result = call(&tools.command, plain(params)).await;
    let text = result.as_text();
    let head = format!("Command is already running\nTask: {}\nStatus: Running\nTask summary: ", task.task_id);
    assert!(text.starts_with(&head) && !result.is_error, "{text}");
    assert!(text.contains("\nCommand: sleep 300\nworkdir=/\nshell=sh\n\n"), "{text}");
    assert_eq!(result.details["task_handle"]["task_id"], json!(task.task_id));
    let another = tools.run(json!({ "cmd": "sleep 0", "workdir": "/", "shell": "sh" })).await;
    assert!(matches!(another.outcome, ExecCommandOutcome::Completed { .. }), "{another:?}");
}

async fn duplicate_is_started_when_asked_for(machine: Machine) {
    let tools = Tools::on(machine);
    let params = json!({ "cmd": "sleep 300", "duplicate_policy": "start_new", "yield_time_ms": 0 });
    let (first, second) = (tools.task(params.clone()).await, tools.task(params).await);
    assert_ne!(first.task_id, second.task_id);
}

async fn terminal_is_one(machine: Machine) {
    let command = "test -t 0 && test -t 1 && test -t 2 && stty size; echo err >&2";
    let result = answer(Arc::clone(&machine), json!({ "cmd": command, "tty": true })).await;
    assert_eq!(result.details["stdout_preview"], "50 200\r\nerr\r\n");
    assert_eq!(result.details["stderr_preview"], json!(null));
    let without = answer(machine, json!({ "cmd": "test -t 0" })).await;
    assert_eq!(without.details["exit_status"], 1);
}

async fn terminal_takes_input(machine: Machine) {
    let tools = Tools::on(machine);
    let command = "stty -echo; echo ready; read line; echo \"got $line\"";
    let task = tools.task(json!({ "cmd": command, "tty": true, "yield_time_ms": 0 })).await;
    if task.initial_output.is_none() {
        tools.read_until(&task, "ready\r\n").await;
    }
    tools.write(&task, "this\n", false).await;
    let rest = tools.read(&task, 60_000).await;
    assert_eq!((rest.stdout.as_deref(), rest.exit_status), (Some("got this\r\n"), Some(0)));
}

async fn tasks_are_listed(machine: Machine) {
    let tools = Tools::on(machine);
    let first = tools.task(json!({ "cmd": "sleep 300", "yield_time_ms": 0 })).await;
    let second = tools.task(json!({ "cmd": "sleep 301", "tty": true, "yield_time_ms": 0 })).await;
    let listed = call(&tools.list, json!({})).await;
    let text = format!("{}  Running  sleep 300\n{}  Running  sleep 301", first.task_id, second.task_id);
    assert_eq!(listed.as_text(), text);
    assert_eq!(listed.details["tasks"][1]["command"]["tty"], true);
}
