//! What holds for any output, read from any position.

use std::sync::Arc;

use futures_util::future::join_all;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};
use telexec_engine::{LocalConfig, LocalExecutor};
use telexec_executor::{Attach, Command, ExecutionState, OnDisconnect, OutputStream};
use telexec_tests::{Agent, Gate, replay, rounds, until};

use super::{Machine, attach, start};

/// What a command writes in one piece.
type Piece = (OutputStream, Vec<u8>);

/// Where followers begin, as parts of the output by then.
type Positions = Vec<f64>;

fn output() -> impl Strategy<Value = Vec<Piece>> {
    let stream = prop_oneof![Just(OutputStream::Stdout), Just(OutputStream::Stderr)];
    let bytes = prop_oneof![
        // one byte at a time, NUL and pieces of characters among them
        vec(prop_oneof![Just(0), Just(0xc3), Just(0xa9), Just(0xf0), any::<u8>()], 1),
        vec(any::<u8>(), 1..40),
        // about a page, a pipe, and what is kept in memory
        (4000..4200usize, any::<u8>()).prop_map(counting),
        (60_000..70_000usize, any::<u8>()).prop_map(counting),
    ];
    vec((stream, bytes), 0..40)
}

/// No byte is its neighbour's, nor that of a power of two before.
fn counting((length, first): (usize, u8)) -> Vec<u8> {
    (0..length).map(|i| ((i + usize::from(first)) % 251) as u8).collect()
}

/// A half is written before the gate opens, the other half after it. The pieces come in their order, from standard input.
fn text(pieces: &[Piece], gate: &Gate) -> String {
    let write = |(stream, bytes): &Piece| {
        let to = if *stream == OutputStream::Stderr { " >&2" } else { "" };
        format!("dd bs={} count=1 iflag=fullblock status=none{to}\n", bytes.len())
    };
    let (first, second) = pieces.split_at(pieces.len() / 2);
    let all = |pieces: &[Piece]| pieces.iter().map(write).collect::<String>();
    format!("{}{}\n{}exit 3", all(first), gate.wait(), all(second))
}

fn part(of: u64, part: f64) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    let part = (of as f64 * part) as u64;
    part.min(of)
}

/// Any follower receives a suffix of the whole output, without a gap.
async fn any_suffix(machine: &Machine, (pieces, positions): (Vec<Piece>, Positions)) -> TestCaseResult {
    let gate = Gate::new();
    let input: Vec<u8> = pieces.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    let command = Command::shell(text(&pieces, &gate)).shell("sh").stdin(input.clone());
    let execution = start(machine, command.on_disconnect(OnDisconnect::Detach)).await;
    let id = execution.id().clone();
    let first: u64 = pieces[..pieces.len() / 2].iter().map(|(_, bytes)| bytes.len() as u64).sum();
    let owner = tokio::spawn(replay(execution, 0));
    until("the first half was read", async || machine.get(&id).await.unwrap().position == first).await;
    let mut followers = Vec::new();
    for position in positions.iter().map(|of| part(first, *of)) {
        followers.push((position, attach(machine, &id, Attach::position(position)).await));
    }
    let _open = gate.open();
    let all = owner.await.unwrap();
    until("it is over", async || machine.get(&id).await.unwrap().state == ExecutionState::Exited).await;
    for position in positions.iter().map(|of| part(input.len() as u64, *of)) {
        followers.push((position, attach(machine, &id, Attach::position(position)).await));
    }
    let reported =
        join_all(followers.into_iter().map(async |(position, f)| (position, replay(f, position).await))).await;

    for stream in [OutputStream::Stdout, OutputStream::Stderr] {
        let written = pieces.iter().filter(|(to, _)| *to == stream).flat_map(|(_, bytes)| bytes.clone());
        prop_assert!(all.bytes(stream) == written.collect::<Vec<u8>>());
    }
    for (position, reported) in reported {
        prop_assert_eq!(&reported.gaps, &[]);
        prop_assert!(reported.from(position) == all.from(position), "from {}", position);
        prop_assert_eq!(reported.exited(), all.exited());
    }
    Ok(())
}

/// As much as the spool has, a gap, and the end: each byte where it belongs.
async fn any_suffix_or_a_gap(machine: &Machine, (pieces, positions): (Vec<Piece>, Positions)) -> TestCaseResult {
    let gate = Gate::new();
    let _open = gate.open();
    let input: Vec<u8> = pieces.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    let command = Command::shell(text(&pieces, &gate)).shell("sh").stdin(input.clone());
    let execution = start(machine, command.on_disconnect(OnDisconnect::Detach)).await;
    let all = replay(execution, 0).await;
    for position in positions.iter().map(|of| part(input.len() as u64, *of)) {
        let reported = replay(attach(machine, &all.started.id, Attach::position(position)).await, position).await;
        prop_assert!(reported.gaps.len() <= 1, "{:?}", reported.gaps);
        let mut expected = all.from(position);
        if let [(from, to)] = reported.gaps[..] {
            let at = |there: u64| usize::try_from(there - position).unwrap();
            expected.drain(at(from)..at(to));
        }
        prop_assert!(reported.from(position) == expected, "from {}", position);
    }
    Ok(())
}

fn holds(
    machine: impl AsyncFn() -> Machine,
    property: impl AsyncFn(&Machine, (Vec<Piece>, Positions)) -> TestCaseResult,
) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let machine = runtime.block_on(machine());
    let mut runner = TestRunner::new(Config { cases: rounds(24), failure_persistence: None, ..Config::default() });
    let values = (output(), vec(prop_oneof![Just(0.0), Just(1.0), 0.0..1.0f64], 1..5));
    runner.run(&values, |value| runtime.block_on(property(&machine, value))).unwrap();
}

#[test]
fn any_position_gives_the_exact_suffix_here() {
    holds(async || Arc::new(LocalExecutor::new(LocalConfig::default()).unwrap()) as Machine, any_suffix);
}

#[test]
fn any_position_gives_the_exact_suffix_over_the_wire() {
    let agent = Agent::start();
    holds(async || Arc::new(agent.executor().await) as Machine, any_suffix);
}

#[test]
fn any_position_gives_the_exact_suffix_or_a_gap() {
    let agent = Agent::builder().config("spool_max_bytes = 20000").start();
    holds(async || Arc::new(agent.executor().await) as Machine, any_suffix_or_a_gap);
}
