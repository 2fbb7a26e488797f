//! What holds for any bytes and any arguments.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};
use telexec_tests::{Place, run};
use telexec_tool::Command;

use super::Machine;

const CASES: u32 = 32;

/// Tries `property` on an agent.
fn holds<S: Strategy>(values: S, property: impl AsyncFn(&Machine, S::Value) -> TestCaseResult) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let place = runtime.block_on(Place::unix());
    let machine = place.executor();
    let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
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
