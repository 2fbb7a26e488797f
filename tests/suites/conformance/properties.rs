//! What holds for any bytes and any arguments.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};
use telexec_executor::{Command, Execution};
use telexec_tests::{Place, collect, rounds, run};

use super::Machine;

const CASES: u32 = 32;

/// Tries `property` on an agent.
fn holds<S: Strategy>(values: S, property: impl AsyncFn(&Machine, S::Value) -> TestCaseResult) {
    holds_at(Place::unix(), values, property);
}

fn holds_at<S: Strategy>(
    place: impl Future<Output = Place>,
    values: S,
    property: impl AsyncFn(&Machine, S::Value) -> TestCaseResult,
) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let place = runtime.block_on(place);
    let machine = place.executor();
    let mut runner = TestRunner::new(Config { cases: rounds(CASES), failure_persistence: None, ..Config::default() });
    runner.run(&values, |value| runtime.block_on(property(&machine, value))).unwrap();
    runtime.block_on(place.close());
}

#[test]
fn any_arguments_are_literal() {
    holds(vec("[^\0]{0,12}", 1..8), async |machine, arguments| {
        let argv = ["printf", "%s\\0"].into_iter().chain(arguments.iter().map(String::as_str));
        let outcome = run(machine, Command::argv(argv)).await.unwrap();
        prop_assert_eq!(outcome.text().split_terminator('\0').collect::<Vec<_>>(), arguments);
        Ok(())
    });
}

#[test]
fn any_input_comes_back_whatever_it_is_cut_into() {
    holds((vec(any::<u8>(), 0..20_000), 1..5000usize), async |machine, (bytes, piece)| {
        let command = Command::argv(["dd".into(), format!("bs={piece}"), "status=none".into()]);
        let outcome = run(machine, command.stdin(bytes.clone())).await.unwrap();
        prop_assert!(outcome.stdout == bytes);
        Ok(())
    });
}

#[test]
fn any_pieces_on_both_streams_arrive_in_their_order() {
    holds(vec((any::<bool>(), vec(any::<u8>(), 1..40)), 0..30), async |machine, pieces| {
        let octal = |bytes: &[u8]| bytes.iter().map(|byte| format!("\\{byte:03o}")).collect::<String>();
        let print =
            |(err, bytes): &(bool, Vec<u8>)| format!("printf '{}'{}; ", octal(bytes), if *err { " >&2" } else { "" });
        let text: String = pieces.iter().map(print).collect();
        let outcome = run(machine, Command::shell(format!("{text}true"))).await.unwrap();
        let all = |stream| {
            pieces.iter().filter(|(err, _)| *err == stream).flat_map(|(_, bytes)| bytes.clone()).collect::<Vec<u8>>()
        };
        prop_assert_eq!((outcome.stdout, outcome.stderr), (all(false), all(true)));
        Ok(())
    });
}

/// What a command writes in one piece, and for how long it pauses then.
#[derive(Clone, Debug)]
struct Piece {
    stderr: bool,
    bytes: usize,
    pause_ms: u32,
}

/// How long a reader pauses after each event, in turn; and for how long it stops, after how many events.
#[derive(Clone, Debug)]
struct Reader {
    pauses_ms: Vec<u64>,
    stop_ms: u64,
    stop_after: usize,
}

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    // shorter than a small chunk, than a page, than a pipe; and longer than all of these
    let bytes = prop_oneof![1..40usize, 1..5_000usize, 60_000..70_000usize, 100_000..400_000usize];
    let piece = (any::<bool>(), bytes, 0..=3u32);
    vec(piece.prop_map(|(stderr, bytes, pause_ms)| Piece { stderr, bytes, pause_ms }), 0..12)
}

fn reader() -> impl Strategy<Value = Reader> {
    let pauses = prop_oneof![Just(vec![0]), vec(0..=5u64, 1..6)];
    // the queue holds a few chunks: the stop comes before it is full, while it is, and after
    let stop = (prop_oneof![Just(0), 1..100u64], 0..24usize);
    (pauses, stop).prop_map(|(pauses_ms, (stop_ms, stop_after))| Reader { pauses_ms, stop_ms, stop_after })
}

/// The same execution, read like this.
fn read_by(reader: Reader, execution: Execution) -> Execution {
    let started = execution.started().clone();
    let pauses = reader.pauses_ms.into_iter().cycle();
    let events = execution.skip(1).zip(stream::iter(pauses).enumerate()).then(move |(event, (i, pause))| {
        let stop = if i == reader.stop_after { reader.stop_ms } else { 0 };
        async move {
            tokio::time::sleep(Duration::from_millis(pause + stop)).await;
            event
        }
    });
    Execution::new(started, events)
}

/// [`collect`] sees that every chunk's position is the bytes before it, and that the totals are those of the bytes.
async fn any_output_by_any_reader(machine: &Machine, (pieces, reader): (Vec<Piece>, Reader)) -> TestCaseResult {
    let bytes = |stderr: bool| pieces.iter().filter(move |piece| piece.stderr == stderr).map(|piece| piece.bytes).sum();
    let (stdout, stderr): (usize, usize) = (bytes(false), bytes(true));
    // no byte is its neighbour's, nor that of 64 KiB before
    let input: Vec<u8> = (0..stdout + stderr).map(|i| (i % 251) as u8).collect();
    let write = |piece: &Piece| {
        let to = if piece.stderr { " >&2" } else { "" };
        let pause = if piece.pause_ms > 0 { format!("sleep 0.00{}; ", piece.pause_ms) } else { String::new() };
        format!("dd bs={} count=1 iflag=fullblock status=none{to}; {pause}", piece.bytes)
    };
    let text = format!("{}exit 3", pieces.iter().map(write).collect::<String>());
    let command = Command::shell(text).stdin(input.clone()).build().unwrap();
    let execution = machine.execute(command).await.unwrap();
    let outcome = collect(read_by(reader, execution)).await.unwrap();

    let (mut expected, mut rest) = ([Vec::new(), Vec::new()], &input[..]);
    for piece in &pieces {
        let (bytes, after) = rest.split_at(piece.bytes);
        expected[usize::from(piece.stderr)].extend_from_slice(bytes);
        rest = after;
    }
    let [expected_stdout, expected_stderr] = expected;
    prop_assert!(outcome.stdout == expected_stdout, "{} of {stdout} bytes, or others", outcome.stdout.len());
    prop_assert!(outcome.stderr == expected_stderr, "{} of {stderr} bytes, or others", outcome.stderr.len());
    prop_assert_eq!(outcome.exited.exit_code(), 3);
    prop_assert_eq!((outcome.exited.stdout.bytes, outcome.exited.stderr.bytes), (stdout as u64, stderr as u64));
    Ok(())
}

#[test]
fn any_output_arrives_whoever_reads_it_here() {
    holds_at(Place::local(), (pieces(), reader()), any_output_by_any_reader);
}

#[test]
fn any_output_arrives_whoever_reads_it_over_the_wire() {
    holds((pieces(), reader()), any_output_by_any_reader);
}
