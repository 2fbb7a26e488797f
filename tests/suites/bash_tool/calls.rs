//! From call to call: timeouts, output while it runs, the working directory.

use std::sync::Arc;

use serde_json::json;
use telexec_executor::OutputStream;
use telexec_tests::{MARK, lines, marker, processes_with, within};
use telexec_tool::bash::Style;
use telexec_tool::{BashTool, Tool};

use super::{Machine, Trace, answer, call, listening, next, text, tool};

here_and_there! {
    non_zero_exit_is_ok,
    several_commands_in_one_text_all_run,
    command_changes_files,
    fractions_of_a_second_are_a_timeout,
    timeout_leaves_no_process,
    what_was_written_before_a_timeout_is_answered,
    the_last_line_of_a_long_build_is_answered,
    the_limit_is_configurable_and_counts_characters,
    output_streams_while_the_command_runs,
    output_streams_beyond_the_limit,
    listener_that_leaves_does_not_end_the_command,
    directory_follows_cd_from_call_to_call,
    directory_follows_cd_of_a_failed_command,
    nothing_else_of_the_shell_lasts,
    directory_that_vanished_fails_one_call_only,
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

async fn what_was_written_before_a_timeout_is_answered(machine: Machine) {
    for (style, text) in [
        (Style::plain(), "out\n\nstderr: err\ncommand timed out after 1s"),
        (Style::code_first(), "STDOUT:\nout\n\nSTDERR:\nerr\nCommand timed out after 1s"),
        (Style::sections(), "stdout:\nout\nstderr:\nerr\nCommand timed out after 1 seconds"),
    ] {
        let tool = BashTool::new(Arc::clone(&machine)).style(style);
        let command = "echo out; echo err >&2; sleep 300";
        let answer = match call(&tool, json!({ "command": command, "timeout": 1 })).await {
            Ok(result) => result.as_text(),
            Err(error) => error.to_string(),
        };
        assert_eq!(answer, text);
    }
}

async fn the_last_line_of_a_long_build_is_answered(machine: Machine) {
    let build = "seq 1 300000 | sed 's/^/compiling /'; seq 1 300000 >&2; echo 'error: no such file' >&2; exit 101";
    for style in [Style::plain(), Style::code_first(), Style::sections()] {
        let text = text(&machine, style, build).await;
        assert!(text.chars().count() <= 30_000, "{}", text.chars().count());
        assert!(text.contains("compiling 1\n") && text.contains("compiling 300000\n"), "{text}");
        assert!(text.contains("300000\nerror: no such file\n") && text.contains("101"), "{text}");
        assert_eq!(text.matches("... (output truncated: ").count(), 2, "{text}");
    }
}

async fn the_limit_is_configurable_and_counts_characters(machine: Machine) {
    let tool = BashTool::new(machine).max_output_characters(2_000);
    for letter in ["x", "語"] {
        let command = |letters: usize| format!("printf '{letter}%.0s' $(seq {letters})");
        let whole = answer(&tool, &command(1_500)).await.as_text();
        assert_eq!(whole, letter.repeat(1_500));
        let cut = answer(&tool, &command(3_000)).await.as_text();
        let part = letter.repeat(750);
        let left_out = 1_500 * letter.len();
        assert_eq!(cut, format!("{part}\n... (output truncated: {left_out} bytes left out, line 1) ...\n{part}"));
    }
}

async fn output_streams_while_the_command_runs(machine: Machine) {
    let trace = Trace::new();
    let tool = tool(&machine, Style::plain(), &trace);
    let (context, mut reported) = listening();
    let wait = "until [ -e go ]; do sleep 0.01; done; rm go";
    let command = format!("echo one; {wait}; echo two >&2; {wait}; echo three");
    let call = tool.execute(json!({ "command": command }), context);
    let seen = async {
        let go = || std::fs::write(trace.directory.path().join("go"), "").unwrap();
        assert_eq!(next(&mut reported).await, (OutputStream::Stdout, "one\n".to_owned()));
        go();
        assert_eq!(next(&mut reported).await, (OutputStream::Stderr, "two\n".to_owned()));
        go();
        assert_eq!(next(&mut reported).await, (OutputStream::Stdout, "three\n".to_owned()));
    };
    let (result, ()) = within(async { tokio::join!(call, seen) }).await;
    assert_eq!(result.unwrap().as_text(), "one\nthree\n\nstderr: two\n");
}

async fn output_streams_beyond_the_limit(machine: Machine) {
    let tool = BashTool::new(machine).max_output_characters(1_000);
    let (context, mut reported) = listening();
    let count = async {
        let mut count = 0;
        while let Some(chunk) = reported.recv().await {
            count += chunk.data.len();
        }
        count
    };
    let call = tool.execute(json!({ "command": "head -c 1000000 /dev/zero | tr '\\0' x" }), context);
    let (result, count) = within(async { tokio::join!(call, count) }).await;
    let part = "x".repeat(250);
    let text = format!("{part}\n... (output truncated: 999500 bytes left out, line 1) ...\n{part}");
    assert_eq!(result.unwrap().as_text(), text);
    assert_eq!(count, 1_000_000);
}

async fn listener_that_leaves_does_not_end_the_command(machine: Machine) {
    let (context, reported) = listening();
    drop(reported);
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
