//! The tool `bash`, on this machine and behind an agent: what it does, and every word that orchestrators rely on.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use telexec_executor::{Executor, Output, OutputStream};
use telexec_tests::{MARK, lines, marker, processes_with, until, within};
use telexec_tool::bash::Style;
use telexec_tool::{BashTool, Tool, ToolContext, ToolError, ToolResult};
use tempfile::TempDir;
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
    missing_command_is_invalid_args,
    malformed_command_is_invalid_args,
    deny_pattern_blocks_and_nothing_runs,
    refused_confirmation_fails_and_nothing_runs,
    confirmation_is_asked_with_the_whole_command,
    denied_command_is_not_confirmed,
    cwd_is_used,
    cancel_is_cancelled_and_leaves_no_process,
    cancel_before_the_start_is_cancelled_and_nothing_runs,
    configured_timeout_fails_with_seconds,
    spawn_failure_fails_to_execute,
    invalid_utf8_is_replaced,
    output_is_cut_at_the_limit_between_characters,
    output_at_the_limit_is_whole,
    output_far_beyond_the_limit_is_cut,
    killed_by_signal_is_minus_one,
    code_first_without_standard_error_has_no_headings,
    code_first_with_standard_error_has_headings,
    non_zero_exit_is_ok,

    echo_is_answered_as_it_is,
    non_zero_exit_code_is_the_last_line,
    standard_error_is_labelled,
    both_streams_are_a_line_apart,
    silence_is_told,
    timeout_is_an_error_result,
    several_commands_in_one_text_all_run,
    command_changes_files,
    spawn_failure_is_an_error_result,
    odd_timeouts_mean_the_default,
    fractions_of_a_second_are_a_timeout,
    timeout_leaves_no_process,
    output_streams_while_the_command_runs,
    output_streams_beyond_the_limit,
    listener_that_leaves_does_not_end_the_command,
    directory_follows_cd_from_call_to_call,
    directory_follows_cd_of_a_failed_command,
    nothing_else_of_the_shell_lasts,
    directory_that_vanished_fails_one_call_only,

    timeout_that_is_not_positive_is_refused_and_nothing_runs,
    timeout_of_sections_is_minus_one_without_output,
    sections_hold_what_there_is,
    sections_details_are_structured,
    sudo_is_refused_and_nothing_runs,
}

/// A directory, and in it the file that a command writes if it runs.
struct Trace {
    directory: TempDir,
}

impl Trace {
    const WRITE: &str = "echo ran >> trace";

    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    /// The same path as the shell's.
    fn path(&self) -> String {
        self.directory.path().canonicalize().unwrap().to_str().unwrap().to_owned()
    }

    fn has_run(&self) -> bool {
        !lines(&self.directory.path().join("trace")).is_empty()
    }
}

/// The tool with that preset, in a directory of its own.
fn tool(machine: &Machine, style: Style, trace: &Trace) -> BashTool {
    BashTool::new(Arc::clone(machine)).style(style).cwd(trace.path())
}

async fn call(tool: &BashTool, params: Value) -> Result<ToolResult, ToolError> {
    within(tool.execute(params, ToolContext::default())).await
}

async fn answer(tool: &BashTool, command: &str) -> ToolResult {
    call(tool, json!({ "command": command })).await.unwrap()
}

/// The text of what a preset answers.
async fn text(machine: &Machine, style: Style, command: &str) -> String {
    answer(&BashTool::new(Arc::clone(machine)).style(style), command).await.as_text()
}

#[track_caller]
fn failed(result: Result<ToolResult, ToolError>) -> String {
    match result {
        Err(ToolError::Failed { message, .. }) => message,
        other => panic!("{other:?}"),
    }
}

fn listening() -> (ToolContext, mpsc::Receiver<Output>) {
    let (output, told) = mpsc::channel(16);
    (ToolContext { output: Some(output), ..ToolContext::default() }, told)
}

async fn next(told: &mut mpsc::Receiver<Output>) -> (OutputStream, String) {
    let chunk = within(told.recv()).await.expect("more output");
    (chunk.stream, String::from_utf8(chunk.data.to_vec()).unwrap())
}

// reference/000

async fn missing_command_is_invalid_args(machine: Machine) {
    let tool = BashTool::new(machine);
    for params in [json!({}), json!({ "timeout": 1 }), json!({ "command": 1 }), json!({ "command": null }), json!(null)]
    {
        let result = call(&tool, params.clone()).await;
        assert!(matches!(result, Err(ToolError::InvalidArgs(_))), "{params}: {result:?}");
    }
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

async fn cwd_is_used(machine: Machine) {
    let trace = Trace::new();
    let tool = tool(&machine, Style::code_first(), &trace);
    assert_eq!(answer(&tool, "pwd").await.as_text(), format!("Exit code: 0\n{}\n", trace.path()));
}

async fn cancel_is_cancelled_and_leaves_no_process(machine: Machine) {
    let mark = marker();
    let tool = BashTool::new(machine).env(MARK, &mark);
    let (context, mut told) = listening();
    let cancel = context.cancel.clone();
    let call = tool.execute(json!({ "command": "echo ready; setsid sleep 300 & sleep 300" }), context);
    let cancelled = async {
        assert_eq!(next(&mut told).await.1, "ready\n");
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

async fn configured_timeout_fails_with_seconds(machine: Machine) {
    let tool = BashTool::new(machine).style(Style::code_first()).timeout(Duration::from_secs(1));
    let result = call(&tool, json!({ "command": "echo out; sleep 300" })).await;
    assert_eq!(failed(result), "Command timed out after 1s");
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
    // 1, 2 and 3 bytes: the limit is within the last character
    let tool = BashTool::new(machine).style(Style::code_first()).max_output_bytes(5);
    let text = answer(&tool, "printf aé語z; printf bü🦀z >&2").await.as_text();
    let cut = "\n... (output truncated)";
    assert_eq!(text, format!("Exit code: 0\nSTDOUT:\naé{cut}\nSTDERR:\nbü{cut}"));
}

async fn output_at_the_limit_is_whole(machine: Machine) {
    let tool = BashTool::new(machine).style(Style::code_first()).max_output_bytes(6);
    assert_eq!(answer(&tool, "printf aé語").await.as_text(), "Exit code: 0\naé語");
}

async fn output_far_beyond_the_limit_is_cut(machine: Machine) {
    let tool = BashTool::new(machine).style(Style::code_first()).max_output_bytes(3);
    let text = answer(&tool, "head -c 5000000 /dev/zero | tr '\\0' x").await.as_text();
    assert_eq!(text, "Exit code: 0\nxxx\n... (output truncated)");
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

async fn non_zero_exit_is_ok(machine: Machine) {
    for style in [Style::plain(), Style::code_first()] {
        let tool = BashTool::new(Arc::clone(&machine)).style(style);
        for (command, exit_code) in [("exit 3", 3), ("no-such-command-here 2>&-", 127), ("true", 0)] {
            let result = answer(&tool, command).await;
            assert_eq!(result.details, json!({ "exit_code": exit_code, "success": exit_code == 0 }));
            assert!(!result.is_error, "{command}: {result:?}");
        }
    }
}

// reference/001: its eleven tests

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

async fn silence_is_told(machine: Machine) {
    assert_eq!(text(&machine, Style::plain(), "true").await, "(no output)");
}

async fn timeout_is_an_error_result(machine: Machine) {
    let result = call(&BashTool::new(machine), json!({ "command": "echo out; sleep 300", "timeout": 1 })).await;
    let result = result.unwrap();
    assert_eq!((result.as_text().as_str(), result.is_error), ("command timed out after 1s", true));
}

#[test]
fn flags_say_that_it_can_destroy() {
    let tool = BashTool::new(here());
    assert_eq!((tool.is_destructive(), tool.is_read_only(), tool.is_concurrent_safe()), (true, false, false));
}

#[test]
fn definition_has_command_and_timeout() {
    let tool = BashTool::new(here());
    let definition = tool.definition();
    assert_eq!(definition.name, "bash");
    assert!(definition.description.contains("bash"), "{}", definition.description);
    let schema = &definition.input_schema;
    assert_eq!((&schema["type"], &schema["required"]), (&json!("object"), &json!(["command"])));
    assert_eq!(schema["properties"].as_object().unwrap().keys().collect::<Vec<_>>(), ["command", "timeout"]);
    assert_eq!(schema["properties"]["command"]["type"], "string");
    assert_eq!(schema["properties"]["timeout"]["default"], 120);
}

#[test]
fn summary_has_the_command_in_brackets() {
    assert_eq!(BashTool::new(here()).summary(&json!({ "command": "ls -la" })), "[bash: ls -la]");
}

async fn several_commands_in_one_text_all_run(machine: Machine) {
    let lines = "one\ntwo\nthree\n";
    assert_eq!(text(&machine, Style::plain(), "echo one; echo two; echo three").await, lines);
    assert_eq!(text(&machine, Style::plain(), "echo one\necho two\necho three\n").await, lines);
}

async fn command_changes_files(machine: Machine) {
    let trace = Trace::new();
    answer(&BashTool::new(machine), &format!("echo 'created by bash' > {}/file", trace.path())).await;
    assert_eq!(lines(&trace.directory.path().join("file")), ["created by bash"]);
}

// reference/001: the rest

#[test]
fn summary_cuts_between_characters() {
    let tool = BashTool::new(here());
    for letter in ["x", "é", "語", "🦀"] {
        let summary = |length| tool.summary(&json!({ "command": letter.repeat(length) }));
        assert_eq!(summary(60), format!("[bash: {}]", letter.repeat(60)));
        assert_eq!(summary(61), format!("[bash: {}...]", letter.repeat(57)));
    }
}

#[test]
fn summary_without_a_command_is_the_name() {
    let tool = BashTool::new(here());
    for params in [json!({}), json!({ "command": 1 }), json!(null)] {
        assert_eq!(tool.summary(&params), "[bash]");
    }
}

#[test]
fn activity_is_described() {
    let tool = BashTool::new(here());
    assert_eq!(tool.activity_description(&json!({})).as_deref(), Some("Running command..."));
}

async fn spawn_failure_is_an_error_result(machine: Machine) {
    let result = answer(&BashTool::new(machine).shell("/no/such/shell"), "true").await;
    let text = result.as_text();
    let cause = text.strip_prefix("failed to run command: ").unwrap_or_else(|| panic!("{text}"));
    assert!(result.is_error && cause.contains("/no/such/shell"), "{result:?}");
}

async fn odd_timeouts_mean_the_default(machine: Machine) {
    let tool = BashTool::new(machine).timeout(Duration::from_millis(300));
    let odd = [json!("soon"), json!("300"), json!(null), json!(-1), json!([]), json!({}), json!(true)];
    let answers = odd
        .iter()
        .map(async |odd| call(&tool, json!({ "command": "sleep 300", "timeout": odd })).await.unwrap().as_text());
    assert_eq!(join_all(answers).await, ["command timed out after 0.3s"; 7]);
}

async fn fractions_of_a_second_are_a_timeout(machine: Machine) {
    let result = call(&BashTool::new(machine), json!({ "command": "sleep 300", "timeout": 0.3 })).await.unwrap();
    assert_eq!(result.as_text(), "command timed out after 0.3s");
}

async fn timeout_leaves_no_process(machine: Machine) {
    let mark = marker();
    let tool = BashTool::new(machine).env(MARK, &mark);
    let command = "sleep 300 & setsid sleep 300 & (setsid sh -c 'sleep 300 &' &); sleep 300";
    let result = call(&tool, json!({ "command": command, "timeout": 1 })).await.unwrap();
    assert_eq!(processes_with(&mark), []);
    assert_eq!(result.as_text(), "command timed out after 1s");
}

async fn output_streams_while_the_command_runs(machine: Machine) {
    let trace = Trace::new();
    let tool = tool(&machine, Style::plain(), &trace);
    let (context, mut told) = listening();
    let wait = "until [ -e go ]; do sleep 0.01; done; rm go";
    let command = format!("echo one; {wait}; echo two >&2; {wait}; echo three");
    let call = tool.execute(json!({ "command": command }), context);
    let seen = async {
        let go = || std::fs::write(trace.directory.path().join("go"), "").unwrap();
        assert_eq!(next(&mut told).await, (OutputStream::Stdout, "one\n".to_owned()));
        go();
        assert_eq!(next(&mut told).await, (OutputStream::Stderr, "two\n".to_owned()));
        go();
        assert_eq!(next(&mut told).await, (OutputStream::Stdout, "three\n".to_owned()));
    };
    let (result, ()) = within(async { tokio::join!(call, seen) }).await;
    assert_eq!(result.unwrap().as_text(), "one\nthree\n\nstderr: two\n");
}

async fn output_streams_beyond_the_limit(machine: Machine) {
    let tool = BashTool::new(machine).max_output_bytes(4);
    let (context, mut told) = listening();
    let count = async {
        let mut count = 0;
        while let Some(chunk) = told.recv().await {
            count += chunk.data.len();
        }
        count
    };
    let call = tool.execute(json!({ "command": "head -c 1000000 /dev/zero | tr '\\0' x" }), context);
    let (result, count) = within(async { tokio::join!(call, count) }).await;
    assert_eq!(result.unwrap().as_text(), "xxxx\n... (output truncated)");
    assert_eq!(count, 1_000_000);
}

async fn listener_that_leaves_does_not_end_the_command(machine: Machine) {
    let (context, told) = listening();
    drop(told);
    let command = json!({ "command": "seq 1 3" });
    let result = within(BashTool::new(machine).execute(command, context)).await.unwrap();
    assert_eq!(result.as_text(), "1\n2\n3\n");
}

async fn directory_follows_cd_from_call_to_call(machine: Machine) {
    let trace = Trace::new();
    let tool = tool(&machine, Style::plain(), &trace);
    let odd = "a b'c\"é";
    answer(&tool, &format!("mkdir -p \"{}/d\"; cd \"{}\"", odd.replace('"', "\\\""), odd.replace('"', "\\\""))).await;
    assert_eq!(answer(&tool, "pwd; cd d").await.as_text(), format!("{}/{odd}\n", trace.path()));
    assert_eq!(answer(&tool, "pwd").await.as_text(), format!("{}/{odd}/d\n", trace.path()));
    assert_eq!(tool.working_directory(), Some(format!("{}/{odd}/d", trace.path())));
}

async fn directory_follows_cd_of_a_failed_command(machine: Machine) {
    let trace = Trace::new();
    let tool = tool(&machine, Style::plain(), &trace);
    assert_eq!(answer(&tool, "mkdir d; cd d; exit 3").await.as_text(), "exit code: 3");
    assert_eq!(answer(&tool, "pwd").await.as_text(), format!("{}/d\n", trace.path()));
}

async fn nothing_else_of_the_shell_lasts(machine: Machine) {
    let tool = BashTool::new(machine);
    answer(&tool, "export A=1; B=2; f() { :; }; umask 077; set -u").await;
    assert_eq!(answer(&tool, "echo \"$A$B$(type -t f)$(umask)\"").await.as_text(), "0022\n");
}

async fn directory_that_vanished_fails_one_call_only(machine: Machine) {
    let trace = Trace::new();
    let tool = tool(&machine, Style::plain(), &trace);
    answer(&tool, "mkdir gone; cd gone").await;
    std::fs::remove_dir(trace.directory.path().join("gone")).unwrap();
    let result = answer(&tool, "echo ran >> ../trace; pwd").await;
    assert!(result.is_error && result.as_text().contains(&format!("{}/gone", trace.path())), "{result:?}");
    assert!(!trace.has_run());
    assert_eq!(answer(&tool, "pwd").await.as_text(), format!("{}\n", trace.path()));
}

// reference/002

#[test]
fn definition_of_sections_tells_five_seconds_and_no_sudo() {
    let tool = BashTool::new(here()).style(Style::sections());
    let properties = &tool.definition().input_schema["properties"];
    assert_eq!((&properties["timeout"]["default"], &properties["timeout"]["type"]), (&json!(5), &json!("number")));
    assert_eq!(properties["timeout"]["exclusiveMinimum"], 0);
    assert!(properties["command"]["description"].as_str().unwrap().contains("sudo is not permitted"));
}

#[tokio::test]
async fn default_timeout_of_sections_is_five_seconds() {
    let machine: Machine = Arc::new(here());
    assert_eq!(text(&machine, Style::sections(), "sleep 300").await, "Command timed out after 5 seconds");
}

async fn timeout_that_is_not_positive_is_refused_and_nothing_runs(machine: Machine) {
    let trace = Trace::new();
    let tool = tool(&machine, Style::sections(), &trace);
    for timeout in [json!(0), json!(-1), json!(-0.5), json!("5"), json!(null)] {
        let result = call(&tool, json!({ "command": Trace::WRITE, "timeout": timeout })).await;
        assert!(matches!(result, Err(ToolError::InvalidArgs(_))), "{timeout}: {result:?}");
    }
    assert!(!trace.has_run());
}

async fn timeout_of_sections_is_minus_one_without_output(machine: Machine) {
    let tool = BashTool::new(machine).style(Style::sections());
    let command = "echo out; echo err >&2; sleep 300";
    let result = call(&tool, json!({ "command": command, "timeout": 2 })).await.unwrap();
    assert_eq!(result.as_text(), "Command timed out after 2 seconds");
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

#[test]
fn permission_is_for_the_first_word_with_any_arguments() {
    let tool = BashTool::new(here()).style(Style::sections());
    let pattern = |command: &str| tool.permission_pattern(&json!({ "command": command }));
    assert_eq!(pattern("ls -la /tmp").as_deref(), Some("ls **"));
    assert_eq!(pattern("pwd").as_deref(), Some("pwd **"));
    assert_eq!(tool.permission_pattern(&json!({})), None);
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

/// For what is the same everywhere.
fn here() -> impl Executor + 'static {
    telexec_engine::LocalExecutor::new(Default::default()).unwrap()
}
