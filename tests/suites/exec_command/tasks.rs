//! Commands that become tasks, and the tools for these.

use std::sync::Arc;

use serde_json::json;
use telexec_tests::{MARK, marker, processes_with, until, within};
use telexec_tool::exec_command::{ExecCommandOutcome, ExecCommandResult, TaskInput, TaskOutput, TaskStatus};
use telexec_tool::{ExecCommandTool, Tool, ToolContext, ToolError};

use super::{Machine, Tools, WAIT, answer, call, go, plain};

here_and_there! {
    no_tasks_are_reported,
    unknown_task_is_reported,
    command_that_runs_long_becomes_a_task_that_is_read_on,
    command_that_yields_at_once_has_no_initial_output,
    end_of_a_task_is_waited_for,
    task_goes_on_after_a_cancelled_read,
    long_output_of_a_task_comes_in_pieces,
    task_takes_input,
    a_step_of_python_is_one_call,
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

    // what was returned before is not returned again, however much it was
    let mut reported = initial_output_preview.unwrap_or_default().len();
    until("it waits", async || {
        let piece = tools.read(&task, 0).await;
        assert_eq!((piece.status, piece.position), (TaskStatus::Running, reported as u64));
        reported += piece.stdout.unwrap_or_default().len() + piece.stderr.unwrap_or_default().len();
        reported == 8
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
    let directory = tempfile::tempdir().unwrap();
    let tools = Tools::on(machine);
    // all of it is written once it is a task
    let command = format!("{WAIT}; seq 20000 | sed s/$/é/");
    let task = tools.task(json!({ "cmd": command, "workdir": directory.path(), "yield_time_ms": 0 })).await;
    go(directory.path());
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
    let text = format!("Input written\nTask: {}\nNext position: 4\n\nstdout:\nhé\n", task.task_id);
    assert_eq!(written.as_text(), text);
    assert_eq!(written.details["committed_offset"], 4);
    let last: TaskInput = serde_json::from_value(tools.write(&task, "last\n", true).await.details).unwrap();
    let output = last.output.unwrap();
    assert!(last.closed && output.stdout.as_deref() == Some("last\nbye\n"), "{output:?}");
    assert_eq!((output.status, output.exit_status), (TaskStatus::Exited, Some(0)));
}

async fn a_step_of_python_is_one_call(machine: Machine) {
    let tools = Tools::on(machine);
    for tty in [true, false] {
        let command = json!({ "cmd": "exec python3 -i -u", "tty": tty, "accepts_input": true, "yield_time_ms": 0 });
        let task = tools.task(command).await;
        for (step, shown) in [("6 * 7\n", "42"), ("import time; time.sleep(1); print(20 + 3)\n", "23")] {
            let written = tools.write(&task, step, false).await.as_text();
            assert!(written.contains(shown), "{tty}: {written}");
        }
        let end = tools.write(&task, "exit(3)\n", false).await;
        assert_eq!(end.details["output"]["exit_status"], 3, "{end:?}");
    }
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
    let step = tools.write(&task, "this\n", false).await.details;
    let output = &step["output"];
    assert_eq!((&output["stdout"], &output["exit_status"]), (&json!("got this\r\n"), &json!(0)));
}

async fn no_tasks_are_reported(machine: Machine) {
    let tools = Tools::on(machine);
    tools.run(json!({ "cmd": "true" })).await;
    assert_eq!(call(&tools.list, json!({})).await.as_text(), "(no tasks)");
    let ended = call(&tools.list, json!({ "include_exited": true })).await.as_text();
    assert!(ended.ends_with("  Exited with code 0  true"), "{ended}");
}

async fn unknown_task_is_reported(machine: Machine) {
    let tools = Tools::on(machine);
    for tool in [&tools.output as &dyn Tool, &tools.stop] {
        let result = call(tool, json!({ "task_id": "no-such-task" })).await;
        assert_eq!((&result.details["error"]["kind"], result.is_error), (&json!("task_not_found"), true));
    }
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
