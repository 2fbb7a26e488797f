//! What a command writes.

use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use telexec_executor::{Command, Event, Execution, ListQuery, OutputStream, Signal, StreamTotals};
use telexec_tests::{Gate, collect, replay, rounds, run, until, until_output, within};

use super::{Machine, start};

pub(super) async fn streams_are_kept_apart(machine: Machine) {
    let outcome = run(&machine, Command::shell("echo out; echo err >&2")).await.unwrap();
    assert_eq!((&outcome.stdout[..], &outcome.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
}

pub(super) async fn merged_output_is_one_stream_in_the_order_it_was_written(machine: Machine) {
    let text = "for i in {1..500}; do echo $i; echo $i >&2; done; exit 3";
    let outcome = run(&machine, Command::shell(text).merge_output(true)).await.unwrap();
    let lines: String = (1..=500).map(|i| format!("{i}\n{i}\n")).collect();
    assert_eq!((outcome.text(), outcome.stderr.len()), (&lines[..], 0));
    let exited = outcome.exited;
    assert_eq!((exited.exit_code(), exited.stdout.incomplete, exited.stderr), (3, false, StreamTotals::default()));
    // what is open as one file is one
    let same = "[ /dev/fd/1 -ef /dev/fd/2 ]";
    assert_eq!(run(&machine, Command::shell(same).merge_output(true)).await.unwrap().exited.exit_code(), 0);
    assert_eq!(run(&machine, Command::shell(same)).await.unwrap().exited.exit_code(), 1);
}

pub(super) async fn output_arrives_while_the_command_runs(machine: Machine) {
    let mut execution = machine.execute(Command::shell("echo first; sleep 300").build().unwrap()).await.unwrap();
    until_output(&mut execution, "first\n").await;
}

pub(super) async fn a_command_without_output_starts_and_exits(machine: Machine) {
    let outcome = run(&machine, Command::argv(["true"])).await.unwrap();
    assert!(matches!(outcome.events[..], [Event::Started(_), Event::Exited(_)]), "{:?}", outcome.events);
    assert!(outcome.started.pid > 1);
}

pub(super) async fn all_256_bytes_arrive_as_they_are(machine: Machine) {
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let outcome = run(&machine, Command::argv(["cat"]).stdin(bytes.clone())).await.unwrap();
    assert!(outcome.stdout == bytes);
}

pub(super) async fn characters_that_are_written_in_pieces_arrive(machine: Machine) {
    let text = r"for byte in 303 251 000 377 360 237; do printf \\$byte; done";
    let outcome = run(&machine, Command::shell(text)).await.unwrap();
    assert_eq!(outcome.stdout, b"\xc3\xa9\x00\xff\xf0\x9f");
}

pub(super) async fn alternating_lines_keep_their_order_in_each_stream(machine: Machine) {
    let text = "for i in {1..500}; do echo $i; echo $i >&2; done";
    let outcome = run(&machine, Command::shell(text)).await.unwrap();
    let lines: String = (1..=500).map(|i| format!("{i}\n")).collect();
    assert_eq!((outcome.text(), &outcome.stderr[..]), (&lines[..], lines.as_bytes()));
}

pub(super) async fn ten_megabytes_on_both_streams_arrive(machine: Machine) {
    let text = "head -c 10000000 /dev/zero & head -c 10000000 /dev/zero | tr '\\0' x >&2; wait";
    let outcome = run(&machine, Command::shell(text)).await.unwrap();
    assert!(outcome.stdout == vec![0; 10_000_000] && outcome.stderr == vec![b'x'; 10_000_000]);
    assert_eq!((outcome.exited.stdout.bytes, outcome.exited.stderr.bytes), (10_000_000, 10_000_000));
}

/// HTTP/2 takes a flood of small frames for an attack.
pub(super) async fn a_flood_of_one_byte_writes_arrives(machine: Machine) {
    let text =
        "dd if=/dev/zero bs=1 count=200000 status=none & dd if=/dev/zero bs=1 count=200000 status=none >&2; wait";
    let outcome = run(&machine, Command::shell(text)).await.unwrap();
    assert_eq!((outcome.stdout.len(), outcome.stderr.len()), (200_000, 200_000));
}

pub(super) async fn the_last_line_before_the_exit_arrives(machine: Machine) {
    let one = async |round: u32| {
        let text = format!("echo {round} >&2; exit 3");
        let outcome = run(&machine, Command::shell(text).shell("sh")).await.unwrap();
        assert_eq!((outcome.stderr, outcome.exited.exit_code()), (format!("{round}\n").into_bytes(), 3));
    };
    // a few at once: they get in each other's way, each time in another one
    stream::iter(0..rounds(1000)).for_each_concurrent(4, one).await;
}

pub(super) async fn a_slow_reader_gets_every_byte(machine: Machine) {
    let mut execution = machine.execute(Command::shell("seq 1 200000").build().unwrap()).await.unwrap();
    let mut reported = Vec::new();
    let exited = loop {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        match execution.next().await.unwrap().unwrap() {
            Event::Started(_) => {}
            Event::Output(output) => reported.extend_from_slice(&output.data),
            other @ (Event::Gap(_) | Event::Promoted) => panic!("{other:?}"),
            Event::Exited(exited) => break exited,
        }
    };
    let all: String = (1..=200_000).map(|i| format!("{i}\n")).collect();
    assert!(reported == all.as_bytes() && exited.exit_code() == 0, "{} of {} bytes", reported.len(), all.len());
}

/// However late the engine comes to read them.
pub(super) async fn the_stream_that_was_written_first_comes_first(machine: Machine) {
    let orders = [
        ("echo x; echo y >&2", [OutputStream::Stdout, OutputStream::Stderr]),
        ("echo y >&2; echo x", [OutputStream::Stderr, OutputStream::Stdout]),
    ];
    for round in 0..40 {
        let (text, expected) = orders[round % 2];
        let gate = Gate::new();
        // at once, and while it is followed
        let waits = if round % 4 < 2 { format!("{}; ", gate.wait()) } else { String::new() };
        let execution = start(&machine, Command::shell(format!("{waits}{text}")).shell("sh")).await;
        let _open = gate.open();
        let mut streams: Vec<_> = replay(execution, 0).await.from(0).into_iter().map(|(stream, _)| stream).collect();
        streams.dedup();
        assert_eq!(streams, expected, "{waits}{text}");
    }
}

pub(super) async fn output_over_the_limit_is_counted_and_dropped(machine: Machine) {
    let text = "head -c 5000000 /dev/zero; printf 123456 >&2";
    let outcome = run(&machine, Command::shell(text).max_output_bytes(5)).await.unwrap();
    assert_eq!((&outcome.stdout[..], &outcome.stderr[..]), (&[0; 5][..], &b"12345"[..]));
    let (stdout, stderr) = (outcome.exited.stdout, outcome.exited.stderr);
    assert_eq!((stdout.bytes, stdout.dropped_bytes), (5_000_000, 4_999_995));
    assert_eq!((stderr.bytes, stderr.dropped_bytes), (6, 1));
}

pub(super) async fn output_at_the_limit_is_whole(machine: Machine) {
    let outcome = run(&machine, Command::shell("printf 12345").max_output_bytes(5)).await.unwrap();
    assert_eq!((outcome.text(), outcome.exited.stdout.dropped_bytes), ("12345", 0));
}

pub(super) async fn a_hundred_commands_at_once_keep_their_output_apart(machine: Machine) {
    let one = async |i: usize| {
        let command = Command::shell(format!("echo {i}; echo err {i} >&2; exit {i}")).shell("sh").build().unwrap();
        collect(machine.execute(command).await.unwrap()).await.unwrap()
    };
    for (i, outcome) in join_all((0..100).map(one)).await.into_iter().enumerate() {
        assert_eq!(outcome.text(), format!("{i}\n"));
        assert_eq!(outcome.stderr, format!("err {i}\n").into_bytes());
        assert_eq!(outcome.exited.exit_code(), i32::try_from(i).unwrap());
    }
}

/// Commands whose output is not read, once they can write no more of it.
async fn held_up(machine: &Machine, count: usize) -> Vec<Execution> {
    let command = || Command::argv(["yes"]).kill_grace(Duration::ZERO).build().unwrap();
    let executions = join_all((0..count).map(|_| machine.execute(command()))).await;
    let executions: Vec<Execution> = executions.into_iter().collect::<Result<_, _>>().unwrap();
    let (mut positions, mut looks) = (Vec::new(), 0);
    until("they are held up", async || {
        let infos = join_all(executions.iter().map(|execution| machine.get(execution.id()))).await;
        let now: Vec<u64> = infos.into_iter().map(|info| info.unwrap().position).collect();
        looks = if now == positions && !now.contains(&0) { looks + 1 } else { 0 };
        positions = now;
        looks > 20
    })
    .await;
    executions
}

pub(super) async fn a_reader_that_stops_holds_up_no_other_reader(machine: Machine) {
    let _unread = held_up(&machine, 1).await;
    let outcome = run(&machine, Command::shell("head -c 50000000 /dev/zero")).await.unwrap();
    assert_eq!(outcome.stdout.len(), 50_000_000);
}

pub(super) async fn readers_that_stop_hold_up_no_other_calls(machine: Machine) {
    for execution in held_up(&machine, 8).await {
        within(machine.list(ListQuery::default())).await.unwrap();
        within(machine.signal(execution.id(), Signal::KILL)).await.unwrap();
    }
}
