//! What a command reads.

use telexec_executor::Command;
use telexec_tests::{MARK, marker, processes_with, run, until};

use super::Machine;

/// More than any pipe holds, and less than the largest message.
const MUCH: usize = 3_000_000;

pub(super) async fn input_arrives_and_ends(machine: Machine) {
    let bytes: Vec<u8> = (0..=255).cycle().take(MUCH).collect();
    let outcome = run(&machine, Command::argv(["cat"]).stdin(bytes.clone())).await.unwrap();
    assert!(outcome.stdout == bytes, "{} bytes", outcome.stdout.len());
}

pub(super) async fn without_input_there_is_dev_null(machine: Machine) {
    let outcome = run(&machine, Command::shell("cat; readlink /proc/self/fd/0")).await.unwrap();
    assert_eq!(outcome.text(), "/dev/null\n");
}

pub(super) async fn a_command_that_ignores_its_input_exits(machine: Machine) {
    for program in ["exit 7", "head -c 1 >/dev/null; exit 7", "exec <&-; exit 7"] {
        let outcome = run(&machine, Command::shell(program).stdin(vec![b'x'; MUCH])).await.unwrap();
        assert_eq!(outcome.exited.exit_code(), 7, "{program}");
    }
}

pub(super) async fn a_command_that_holds_its_input_can_be_cancelled(machine: Machine) {
    let mark = marker();
    let command = Command::argv(["sleep", "300"]).stdin(vec![b'x'; MUCH]).env(MARK, &mark);
    let execution = machine.execute(command.build().unwrap()).await.unwrap();
    until("it runs", async || !processes_with(&mark).is_empty()).await;
    drop(execution);
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}
