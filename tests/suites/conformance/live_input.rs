//! What is written to a command while it runs.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use telexec_executor::{Command, CommandBuilder, Execution, ExecutionId, ExecutorError, Input};
use telexec_tests::{Gate, MARK, collect, marker, processes_with, run, until, until_output, within};

use super::{Machine, start};

fn open(text: &str) -> CommandBuilder {
    Command::shell(text).accepts_input(true)
}

async fn write(machine: &Machine, id: &ExecutionId, offset: u64, data: impl Into<Bytes>) -> Result<u64, ExecutorError> {
    within(machine.write_input(id, Input { data: data.into(), offset: Some(offset), close: false })).await
}

async fn close(machine: &Machine, id: &ExecutionId) -> Result<u64, ExecutorError> {
    within(machine.write_input(id, Input { close: true, ..Input::default() })).await
}

fn is_refused(answer: &Result<u64, ExecutorError>) -> bool {
    matches!(answer, Err(ExecutorError::FailedPrecondition { .. }))
}

fn is_beyond(answer: &Result<u64, ExecutorError>, what_there_is: u64) -> bool {
    matches!(answer, Err(ExecutorError::OutOfRange { end, .. }) if *end == what_there_is)
}

async fn what_was_written_is_not_written_again(machine: Machine) {
    let execution = start(&machine, open("cat; exit 3")).await;
    let id = execution.id().clone();
    assert_eq!(write(&machine, &id, 0, "hello ").await.unwrap(), 6);
    assert_eq!(write(&machine, &id, 0, "hello ").await.unwrap(), 6);
    assert_eq!(write(&machine, &id, 0, "").await.unwrap(), 6);
    assert_eq!(write(&machine, &id, 3, "lo wor").await.unwrap(), 9);
    assert_eq!(write(&machine, &id, 4, "o w").await.unwrap(), 9);
    for offset in [10, u64::MAX] {
        let beyond = write(&machine, &id, offset, "x").await;
        assert!(is_beyond(&beyond, 9), "{beyond:?}");
    }
    let last = Input { data: "ld".into(), offset: Some(9), close: true };
    assert_eq!(within(machine.write_input(&id, last)).await.unwrap(), 11);
    let outcome = collect(execution).await.unwrap();
    assert_eq!((outcome.text(), outcome.exited.exit_code()), ("hello world", 3));
}

async fn what_it_starts_with_counts(machine: Machine) {
    let execution = start(&machine, open("cat").stdin("abc")).await;
    let id = execution.id().clone();
    assert_eq!(write(&machine, &id, 0, "").await.unwrap(), 3);
    assert_eq!(write(&machine, &id, 0, "abcdef").await.unwrap(), 6);
    assert_eq!(close(&machine, &id).await.unwrap(), 6);
    assert_eq!(collect(execution).await.unwrap().text(), "abcdef");
}

async fn it_arrives_while_the_command_runs(machine: Machine) {
    let mut execution = start(&machine, open("while read -r line; do echo \"<$line>\"; done")).await;
    let id = execution.id().clone();
    for line in ["one", "two", "three"] {
        let data = format!("{line}\n").into();
        within(machine.write_input(&id, Input { data, ..Input::default() })).await.unwrap();
        until_output(&mut execution, &format!("<{line}>\n")).await;
    }
}

async fn a_closed_input_takes_no_more(machine: Machine) {
    let gate = Gate::new();
    let execution = start(&machine, open(&format!("cat; {}", gate.wait()))).await;
    let id = execution.id().clone();
    write(&machine, &id, 0, "abc").await.unwrap();
    assert_eq!(close(&machine, &id).await.unwrap(), 3);
    assert_eq!(close(&machine, &id).await.unwrap(), 3, "closing it again changes nothing");
    let more = write(&machine, &id, 3, "d").await;
    assert!(is_refused(&more), "{more:?}");
    assert_eq!(write(&machine, &id, 0, "abc").await.unwrap(), 3, "a repeat writes nothing");
    let _open = gate.open();
    assert_eq!(collect(execution).await.unwrap().text(), "abc");
}

async fn without_being_asked_for_there_is_none(machine: Machine) {
    for command in [Command::argv(["sleep", "300"]), Command::argv(["sleep", "300"]).stdin("abc")] {
        let execution = start(&machine, command).await;
        for answer in [write(&machine, execution.id(), 0, "x").await, close(&machine, execution.id()).await] {
            assert!(is_refused(&answer), "{answer:?}");
        }
    }
}

async fn what_has_ended_takes_none(machine: Machine) {
    let outcome = run(&machine, open("true")).await.unwrap();
    for answer in [write(&machine, &outcome.started.id, 0, "x").await, close(&machine, &outcome.started.id).await] {
        assert!(is_refused(&answer), "{answer:?}");
    }
    let id = marker().parse().unwrap();
    let nobody = write(&machine, &id, 0, "x").await;
    assert!(matches!(&nobody, Err(ExecutorError::NotFound(unknown)) if *unknown == id), "{nobody:?}");
}

async fn a_command_that_closes_its_input_takes_none_and_runs_on(machine: Machine) {
    let gate = Gate::new();
    let mut execution = start(&machine, open(&format!("exec <&-; echo ready; {}; echo on", gate.wait()))).await;
    until_output(&mut execution, "ready\n").await;
    for _ in 0..2 {
        let answer = write(&machine, execution.id(), 0, "x").await;
        assert!(is_refused(&answer), "{answer:?}");
    }
    let _open = gate.open();
    until_output(&mut execution, "on\n").await;
}

async fn ten_megabytes_go_through(machine: Machine) {
    let bytes: Bytes = (0..=255).cycle().take(10 << 20).collect::<Vec<u8>>().into();
    let execution = start(&machine, open("cat")).await;
    let id = execution.id().clone();
    let write = async {
        let mut offset = 0;
        // no divisor of any pipe's or chunk's size
        for piece in bytes.chunks(99_991) {
            offset = write(&machine, &id, offset, bytes.slice_ref(piece)).await.unwrap();
        }
        close(&machine, &id).await.unwrap();
    };
    let (outcome, ()) = tokio::join!(collect(execution), write);
    let outcome = outcome.unwrap();
    assert!(outcome.stdout == bytes, "{} bytes", outcome.stdout.len());
}

/// A write waits, is given up, and is written all the same when it is asked for again.
async fn a_write_that_was_given_up_can_be_repeated(machine: Machine) {
    let gate = Gate::new();
    let bytes: Bytes = (0..=255).cycle().take(1_000_000).collect::<Vec<u8>>().into();
    let execution = start(&machine, open(&format!("{}; cat", gate.wait()))).await;
    let id = execution.id().clone();
    for close in [true, true, false] {
        // the last may be whole before the other side knows that it was given up
        let write = machine.write_input(&id, Input { data: bytes.clone(), offset: Some(0), close });
        // no pipe holds so much
        tokio::time::timeout(Duration::from_millis(100), write).await.unwrap_err();
    }
    let _open = gate.open();
    let again = async {
        assert_eq!(write(&machine, &id, 0, bytes.clone()).await.unwrap(), bytes.len() as u64);
        close(&machine, &id).await.unwrap();
    };
    let (outcome, ()) = tokio::join!(collect(execution), again);
    let outcome = outcome.unwrap();
    assert!(outcome.stdout == bytes, "{} bytes", outcome.stdout.len());
}

/// Who writes to a command that does not read still sees its end, and does not put it off.
async fn a_write_that_waits_ends_with_the_command(machine: Machine) {
    let (gate, mark) = (Gate::new(), marker());
    let command = open(&format!("{}; exit 3", gate.wait())).env(MARK, &mark);
    let execution = start(&machine, command).await;
    let id = execution.id().clone();
    let open = async {
        until("it runs", async || !processes_with(&mark).is_empty()).await;
        gate.open()
    };
    let (written, _open) = tokio::join!(write(&machine, &id, 0, vec![b'x'; 1_000_000]), open);
    assert!(is_refused(&written), "{written:?}");
    assert_eq!(collect(execution).await.unwrap().exited.exit_code(), 3);
}

/// Each piece is more than a pipe takes at once, and all its bytes are alike.
async fn writers_do_not_interleave(machine: Machine) {
    const PIECE: usize = 300_000;
    let execution: Execution = start(&machine, open("cat")).await;
    let id = execution.id().clone();
    let one = async |byte: u8| {
        let input = Input { data: vec![byte; PIECE].into(), ..Input::default() };
        within(machine.write_input(&id, input)).await.unwrap();
    };
    let write = async {
        join_all((0..8).map(one)).await;
        close(&machine, &id).await.unwrap();
    };
    let (outcome, ()) = tokio::join!(collect(execution), write);
    let outcome = outcome.unwrap();
    let mut pieces: Vec<&[u8]> = outcome.stdout.chunks(PIECE).collect();
    pieces.sort_unstable();
    assert_eq!(pieces.len(), 8);
    for (byte, piece) in (0..8).zip(pieces) {
        assert!(piece.len() == PIECE && piece.iter().all(|other| *other == byte));
    }
}

telexec_tests::everywhere! {
    what_was_written_is_not_written_again,
    what_it_starts_with_counts,
    it_arrives_while_the_command_runs,
    a_closed_input_takes_no_more,
    without_being_asked_for_there_is_none,
    what_has_ended_takes_none,
    a_command_that_closes_its_input_takes_none_and_runs_on,
    ten_megabytes_go_through,
    a_write_that_was_given_up_can_be_repeated,
    a_write_that_waits_ends_with_the_command,
}

/// Of a remote execution, who gives no offset must be the only writer.
mod here {
    use super::writers_do_not_interleave;
    telexec_tests::at_place!(local: writers_do_not_interleave);
}
