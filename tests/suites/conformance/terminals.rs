//! Commands on a terminal.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join;
use telexec_executor::{
    Attach, Command, CommandBuilder, Event, Execution, ExecutionState, ExecutorError, ExitCause, Input, Signal,
    TerminalSize,
};
use telexec_tests::{Gate, MARK, collect, is_root, marker, processes_with, replay, run, until, until_output, within};

use super::{Machine, attach, start};

const ENDLESS: Duration = Duration::from_secs(300);

fn size(columns: u32, rows: u32) -> TerminalSize {
    TerminalSize::new(columns, rows).unwrap()
}

fn on_terminal(text: &str) -> CommandBuilder {
    Command::shell(text).terminal(size(80, 24))
}

async fn typed(machine: &Machine, execution: &Execution, text: impl Into<Bytes>) {
    let input = Input { data: text.into(), ..Input::default() };
    within(machine.write_input(execution.id(), input)).await.unwrap();
}

async fn closed(machine: &Machine, execution: &Execution) {
    within(machine.write_input(execution.id(), Input { close: true, ..Input::default() })).await.unwrap();
}

/// An interactive shell that has printed its prompt.
async fn interactive(machine: &Machine, mark: &str) -> Execution {
    let command = Command::argv(["bash", "--norc", "-i"]).terminal(size(80, 24)).accepts_input(true);
    let command = command.env("PS1", "ready> ").env(MARK, mark).kill_grace(ENDLESS);
    let mut execution = start(machine, command).await;
    until_output(&mut execution, "ready> ").await;
    execution
}

async fn all_three_streams_are_one_terminal(machine: Machine) {
    let text = "test -t 0 -a -t 1 -a -t 2 || exit 1
        for fd in 0 1 2; do readlink /proc/$$/fd/$fd; done | uniq | wc -l
        test \"$(tty)\" = \"$(readlink /proc/$$/fd/0)\" && test -c \"$(tty)\" && echo named
        echo err >&2; stty size; echo $TERM; exit 3";
    let outcome = run(&machine, Command::shell(text).terminal(size(132, 43))).await.unwrap();
    assert_eq!(outcome.text(), "1\r\nnamed\r\nerr\r\n43 132\r\nxterm-256color\r\n");
    assert_eq!((outcome.stderr.len(), outcome.exited.exit_code()), (0, 3));
}

async fn it_is_the_controlling_terminal(machine: Machine) {
    let text = "echo direct > /dev/tty; ps -o tpgid= -p $$ | tr -d ' '; echo $$; ps -o sid= -p $$ | tr -d ' '";
    let outcome = run(&machine, on_terminal(text)).await.unwrap();
    let pid = outcome.started.pid;
    // it is in the foreground, too
    assert_eq!(outcome.text(), format!("direct\r\n{pid}\r\n{pid}\r\n{pid}\r\n"));
}

async fn the_request_may_name_another_kind_of_terminal(machine: Machine) {
    let outcome = run(&machine, on_terminal("echo $TERM").env("TERM", "dumb")).await.unwrap();
    assert_eq!(outcome.text(), "dumb\r\n");
}

async fn the_largest_and_the_smallest_size_are_reported(machine: Machine) {
    for (columns, rows) in [(1, 1), (65_535, 65_535)] {
        let outcome = run(&machine, Command::shell("stty size").terminal(size(columns, rows))).await.unwrap();
        assert_eq!(outcome.text(), format!("{rows} {columns}\r\n"));
    }
}

/// One size for each command: bash loses a signal that comes while it handles the one before.
async fn a_new_size_is_reported_by_a_signal(machine: Machine) {
    let text = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.02; done";
    for (columns, rows) in [(132, 43), (1, 65_535)] {
        let mut execution = start(&machine, on_terminal(text)).await;
        until_output(&mut execution, "ready\r\n").await;
        within(machine.resize(execution.id(), size(columns, rows))).await.unwrap();
        until_output(&mut execution, &format!("{rows} {columns}\r\n")).await;
    }
}

async fn what_has_no_terminal_has_no_size(machine: Machine) {
    let without = start(&machine, Command::argv(["sleep", "300"])).await;
    let ended = run(&machine, on_terminal("true")).await.unwrap();
    for id in [without.id(), &ended.started.id] {
        let answer = within(machine.resize(id, size(80, 24))).await;
        assert!(matches!(answer, Err(ExecutorError::FailedPrecondition { .. })), "{answer:?}");
    }
    let unknown = marker().parse().unwrap();
    let answer = within(machine.resize(&unknown, size(80, 24))).await;
    assert!(matches!(&answer, Err(ExecutorError::NotFound(id)) if *id == unknown), "{answer:?}");
}

async fn an_ended_terminal_takes_no_input(machine: Machine) {
    let ended = run(&machine, on_terminal("true").accepts_input(true)).await.unwrap();
    let input = Input { data: "x".into(), ..Input::default() };
    let answer = within(machine.write_input(&ended.started.id, input)).await;
    assert!(matches!(answer, Err(ExecutorError::FailedPrecondition { .. })), "{answer:?}");
}

/// More is typed than it holds, at several moments before its session ends.
async fn input_that_is_not_read_ends_with_the_session(machine: Machine) {
    for round in 0..10 {
        let text = format!("stty raw -echo; echo ready; sleep 0.{round}");
        let mut execution = start(&machine, on_terminal(&text).accepts_input(true)).await;
        until_output(&mut execution, "ready").await;
        let input = Input { data: vec![b'x'; 100_000].into(), ..Input::default() };
        let id = execution.id().clone();
        let (written, ended) = within(join(machine.write_input(&id, input), last(execution))).await;
        assert!(matches!(written, Err(ExecutorError::FailedPrecondition { .. })), "{written:?}");
        assert_eq!(ended, ExitCause::Exited(0));
    }
}

async fn its_description_says_that_there_is_one(machine: Machine) {
    for (command, there) in [(on_terminal("true"), true), (Command::shell("true"), false)] {
        let outcome = run(&machine, command).await.unwrap();
        assert_eq!(machine.get(&outcome.started.id).await.unwrap().terminal, there);
    }
}

/// The shell of the job is not in the foreground, so it lives on.
async fn a_typed_interrupt_reaches_the_foreground_only(machine: Machine) {
    let mark = marker();
    let mut execution = interactive(&machine, &mark).await;
    typed(&machine, &execution, "sleep 111 & sleep 300\n").await;
    let sleeps = || processes_with(&mark).iter().filter(|process| process.name == "sleep").count();
    until("both jobs run", async || sleeps() == 2).await;
    typed(&machine, &execution, b"\x03".as_slice()).await;
    until("the one in the foreground has ended", async || sleeps() == 1).await;
    typed(&machine, &execution, "echo on $((6 * 7))\n").await;
    until_output(&mut execution, "on 42\r\n").await;
    drop(execution);
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

async fn jobs_can_be_stopped_and_continued(machine: Machine) {
    let mark = marker();
    let mut execution = interactive(&machine, &mark).await;
    typed(&machine, &execution, "sleep 300\n").await;
    let is_in = |state: char| processes_with(&mark).iter().any(|p| p.name == "sleep" && p.state == state);
    until("the job runs", async || is_in('S')).await;
    typed(&machine, &execution, b"\x1a".as_slice()).await;
    until("it is stopped", async || is_in('T')).await;
    until_output(&mut execution, "ready> ").await;
    typed(&machine, &execution, "bg\n").await;
    until("it goes on", async || is_in('S')).await;
    typed(&machine, &execution, "kill %1; wait; exit 7\n").await;
    let exited = last(execution).await;
    assert_eq!(exited, ExitCause::Exited(7));
}

/// Reads to the end.
async fn last(execution: Execution) -> ExitCause {
    match within(execution.collect::<Vec<_>>()).await.pop() {
        Some(Ok(Event::Exited(exited))) => exited.cause,
        other => panic!("{other:?}"),
    }
}

async fn closing_its_input_ends_it_anywhere_in_a_line(machine: Machine) {
    for (text, reported) in
        [("", ""), ("abc\n", "abc\r\nabc\r\n"), ("abc\ndef", "abc\r\nabc\r\ndefdef"), ("abc", "abcabc")]
    {
        let command = Command::argv(["cat"]).terminal(size(80, 24)).accepts_input(true);
        let execution = start(&machine, command).await;
        typed(&machine, &execution, text).await;
        closed(&machine, &execution).await;
        let outcome = collect(execution).await.unwrap();
        assert_eq!(outcome.exited.exit_code(), 0, "{text:?}");
        // the echo may come between the lines of the answer
        let letters = |text: &str| {
            let mut letters: Vec<char> = text.chars().collect();
            letters.sort_unstable();
            letters
        };
        assert_eq!(letters(outcome.text()), letters(reported), "{text:?}: {:?}", outcome.text());
    }
}

/// As a terminal's user ends a line.
async fn closing_its_input_after_a_carriage_return_types_no_second_end(machine: Machine) {
    let command = on_terminal("echo ready; cat; cat; echo after").accepts_input(true);
    let mut execution = start(&machine, command).await;
    until_output(&mut execution, "ready\r\n").await;
    typed(&machine, &execution, "abc\r").await;
    until_output(&mut execution, "abc\r\nabc\r\n").await;
    closed(&machine, &execution).await;
    // the first has got its end; the second one waits
    let id = execution.id().clone();
    until("the second one runs", async || machine.get(&id).await.unwrap().processes == 2).await;
    run(&machine, Command::argv(["sleep", "0.1"])).await.unwrap();
    assert_eq!(machine.get(&id).await.unwrap().state, ExecutionState::Running);
}

async fn without_input_it_stays_open(machine: Machine) {
    let mut execution = start(&machine, on_terminal("echo ready; cat; echo over")).await;
    until_output(&mut execution, "ready\r\n").await;
    run(&machine, Command::argv(["sleep", "0.1"])).await.unwrap();
    assert_eq!(machine.get(execution.id()).await.unwrap().state, ExecutionState::Running);
}

async fn what_it_starts_with_is_typed(machine: Machine) {
    let command = Command::argv(["cat"]).terminal(size(80, 24)).stdin("abc\n");
    let outcome = run(&machine, command).await.unwrap();
    assert_eq!((outcome.text(), outcome.exited.exit_code()), ("abc\r\nabc\r\n", 0));
}

/// It ignores SIGTERM, and its grace is far longer than this test.
async fn an_interactive_shell_is_ended_without_waiting_for_its_grace(machine: Machine) {
    let mark = marker();
    let execution = interactive(&machine, &mark).await;
    let follower = attach(&machine, execution.id(), Attach::start()).await;
    drop(execution);
    assert_eq!(replay(follower, 0).await.exited().cause, ExitCause::Cancelled);
    assert_eq!(processes_with(&mark), []);
}

async fn a_timeout_hangs_up_too(machine: Machine) {
    let command = on_terminal("trap 'echo bye; exit 7' HUP; trap '' TERM; echo ready; while :; do sleep 0.02; done");
    let command = command.timeout(Duration::from_secs(2)).kill_grace(ENDLESS);
    let outcome = run(&machine, command).await.unwrap();
    assert_eq!(outcome.exited.cause, ExitCause::TimedOut);
    // between the two a shell may remark on its child
    let lines: Vec<&str> = outcome.text().lines().collect();
    assert_eq!((lines.first(), lines.last()), (Some(&"ready"), Some(&"bye")));
}

async fn it_belongs_to_the_user_of_the_command(machine: Machine) {
    if !is_root() {
        return;
    }
    let text = "echo direct > /dev/tty; test -r \"$(tty)\" -a -w \"$(tty)\" && stat -c %U:%a \"$(tty)\"; id -un";
    let outcome = run(&machine, on_terminal(text).user("nobody")).await.unwrap();
    assert_eq!(outcome.text(), "direct\r\nnobody:600\r\nnobody\r\n");
}

async fn all_that_was_written_before_the_exit_arrives(machine: Machine) {
    for _ in 0..20 {
        let outcome = run(&machine, on_terminal("seq 1 3000; exit 3").shell("sh")).await.unwrap();
        let lines: String = (1..=3000).map(|i| format!("{i}\r\n")).collect();
        assert!(outcome.text() == lines, "{} of {} bytes", outcome.stdout.len(), lines.len());
        assert_eq!((outcome.exited.exit_code(), outcome.exited.stdout.incomplete), (3, false));
    }
}

/// A little more than the engine keeps for its reader: the rest is still in the terminal when the command has ended, and
/// the reader takes its time.
async fn all_of_it_arrives_at_a_slow_reader_too(machine: Machine) {
    const LENGTH: usize = 520_000;
    let mark = marker();
    let text = format!("head -c {LENGTH} /dev/zero | tr '\\0' x");
    let mut execution = start(&machine, on_terminal(&text).env(MARK, &mark)).await;
    let (mut position, mut looks) = (0, 0);
    until("it has ended, or is held up", async || {
        let now = machine.get(execution.id()).await.unwrap().position;
        looks = if now > 0 && now == position { looks + 1 } else { 0 };
        position = now;
        looks > 20
    })
    .await;
    let (mut reported, mut pauses) = (0, 0);
    let exited = loop {
        match within(execution.next()).await.unwrap().unwrap() {
            Event::Started(_) => {}
            Event::Output(output) => reported += output.data.len(),
            Event::Exited(exited) => break exited,
            other => panic!("{other:?}"),
        }
        if pauses < 5 && processes_with(&mark).is_empty() {
            pauses += 1;
            // longer than what survivors still write is waited for
            run(&machine, Command::argv(["sleep", "0.7"])).await.unwrap();
        }
    };
    assert_eq!((reported, exited.stdout.incomplete), (LENGTH, false));
}

async fn a_survivor_holds_neither_the_call_nor_the_terminal(machine: Machine) {
    let mark = marker();
    let text = "trap '' HUP; sleep 300 & echo out; exit 3";
    let outcome = run(&machine, on_terminal(text).env(MARK, &mark)).await.unwrap();
    assert_eq!((outcome.text(), outcome.exited.exit_code()), ("out\r\n", 3));
    assert_eq!(outcome.exited.surviving_processes, 1);
    machine.signal(&outcome.started.id, Signal::KILL).await.unwrap();
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

/// As a daemon does that keeps its terminal for messages only.
async fn a_terminal_that_was_closed_for_a_moment_has_not_ended(machine: Machine) {
    let text =
        "echo one; exec </dev/null >/dev/null 2>&1; sleep 0.2; echo two >/dev/tty; sleep 0.2; seq 5000 >/dev/tty";
    let outcome = run(&machine, on_terminal(text)).await.unwrap();
    let rest: String = (1..=5000).map(|i| format!("{i}\r\n")).collect();
    assert!(outcome.text() == format!("one\r\ntwo\r\n{rest}"), "{:.50}", outcome.text());
    assert_eq!((outcome.exited.exit_code(), outcome.exited.stdout.incomplete), (0, false));
}

async fn who_attaches_sees_what_was_typed(machine: Machine) {
    let mut execution =
        start(&machine, on_terminal("echo ready; read -r line; echo \"<$line>\"").accepts_input(true)).await;
    until_output(&mut execution, "ready\r\n").await;
    typed(&machine, &execution, "abc\n").await;
    let reported = replay(attach(&machine, execution.id(), Attach::start()).await, 0).await;
    assert_eq!(reported.text(), "ready\r\nabc\r\n<abc>\r\n");
}

async fn it_works_in_the_background_too(machine: Machine) {
    let gate = Gate::new();
    let command = on_terminal(&format!("echo ready; {}; stty size; exit 3", gate.wait())).yield_after(Duration::ZERO);
    let execution = start(&machine, command).await;
    let id = execution.id().clone();
    assert_eq!(replay(execution, 0).await.exited, None);
    within(machine.resize(&id, size(100, 50))).await.unwrap();
    let _open = gate.open();
    let reported = replay(attach(&machine, &id, Attach::start()).await, 0).await;
    assert_eq!((reported.text(), reported.exited().exit_code()), ("ready\r\n50 100\r\n".to_owned(), 3));
}

telexec_tests::everywhere! {
    all_three_streams_are_one_terminal,
    it_is_the_controlling_terminal,
    the_request_may_name_another_kind_of_terminal,
    the_largest_and_the_smallest_size_are_reported,
    a_new_size_is_reported_by_a_signal,
    what_has_no_terminal_has_no_size,
    an_ended_terminal_takes_no_input,
    input_that_is_not_read_ends_with_the_session,
    its_description_says_that_there_is_one,
    a_typed_interrupt_reaches_the_foreground_only,
    jobs_can_be_stopped_and_continued,
    closing_its_input_ends_it_anywhere_in_a_line,
    closing_its_input_after_a_carriage_return_types_no_second_end,
    without_input_it_stays_open,
    what_it_starts_with_is_typed,
    an_interactive_shell_is_ended_without_waiting_for_its_grace,
    a_timeout_hangs_up_too,
    it_belongs_to_the_user_of_the_command,
    all_that_was_written_before_the_exit_arrives,
    all_of_it_arrives_at_a_slow_reader_too,
    a_survivor_holds_neither_the_call_nor_the_terminal,
    a_terminal_that_was_closed_for_a_moment_has_not_ended,
    who_attaches_sees_what_was_typed,
    it_works_in_the_background_too,
}

telexec_tests::contained! {
    all_three_streams_are_one_terminal,
    it_is_the_controlling_terminal,
    a_typed_interrupt_reaches_the_foreground_only,
    an_interactive_shell_is_ended_without_waiting_for_its_grace,
    a_terminal_that_was_closed_for_a_moment_has_not_ended,
}
