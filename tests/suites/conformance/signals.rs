//! Signals that a caller sends.

use telexec_executor::{Command, Execution, ExecutorError, ExitCause, Signal};
use telexec_tests::{MARK, collect, directory, lines, marker, processes_with, run, until, until_output};

use super::Machine;

async fn ready(machine: &Machine, text: &str, mark: &str, directory: &str) -> Execution {
    let command = Command::shell(text).env(MARK, mark).working_directory(directory).build().unwrap();
    let mut execution = machine.execute(command).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    execution
}

/// What is left of an execution whose first output was read already.
async fn cause(machine: &Machine, execution: Execution) -> ExitCause {
    let id = execution.id().clone();
    futures_util::StreamExt::for_each(execution, |event| async { drop(event.unwrap()) }).await;
    machine.get(&id).await.unwrap().exited.unwrap().cause
}

pub(super) async fn a_signal_can_be_caught(machine: Machine) {
    let text = "trap 'exit 3' USR1; echo ready; while :; do sleep 0.05; done";
    let execution = ready(&machine, text, &marker(), "/").await;
    machine.signal(execution.id(), "USR1".parse().unwrap()).await.unwrap();
    assert_eq!(cause(&machine, execution).await, ExitCause::Exited(3));
}

pub(super) async fn a_signal_reaches_other_sessions(machine: Machine) {
    let directory = directory();
    let far = "trap \"echo here > far; exit\" USR1; echo ready; while :; do sleep 0.05; done";
    let text = format!("trap : USR1; setsid sh -c '{far}' & wait; wait");
    let execution = ready(&machine, &text, &marker(), directory.path().to_str().unwrap()).await;
    machine.signal(execution.id(), "USR1".parse().unwrap()).await.unwrap();
    until("it was caught there", async || lines(&directory.path().join("far")) == ["here"]).await;
}

pub(super) async fn sigkill_ends_all_and_is_reported(machine: Machine) {
    let mark = marker();
    let text = "trap '' TERM; setsid sleep 300 & echo ready; sleep 300; sleep 300";
    let execution = ready(&machine, text, &mark, "/").await;
    let id = execution.id().clone();
    machine.signal(&id, Signal::KILL).await.unwrap();
    assert_eq!(cause(&machine, execution).await, ExitCause::Signaled);
    assert_eq!(processes_with(&mark), []);
    let exited = machine.get(&id).await.unwrap().exited.unwrap();
    assert_eq!((exited.signal, exited.exit_code(), exited.surviving_processes), (Some(Signal::KILL), -1, 0));
}

pub(super) async fn a_stopped_command_can_be_continued(machine: Machine) {
    let mark = marker();
    let text = "trap 'exit 3' USR1; echo ready; while :; do sleep 0.05; done";
    let execution = ready(&machine, text, &mark, "/").await;
    machine.signal(execution.id(), "STOP".parse().unwrap()).await.unwrap();
    until("it is stopped", async || processes_with(&mark).iter().all(|process| process.state == 'T')).await;
    machine.signal(execution.id(), "USR1".parse().unwrap()).await.unwrap();
    machine.signal(execution.id(), Signal::CONT).await.unwrap();
    assert_eq!(cause(&machine, execution).await, ExitCause::Exited(3));
}

pub(super) async fn a_signal_after_the_end_is_no_error(machine: Machine) {
    let execution = machine.execute(Command::shell("exit 3").build().unwrap()).await.unwrap();
    let outcome = collect(execution).await.unwrap();
    for signal in [Signal::TERM, Signal::KILL] {
        let info = machine.signal(&outcome.started.id, signal).await.unwrap();
        assert_eq!(info.exited.as_ref(), Some(&outcome.exited));
    }
}

pub(super) async fn a_signal_to_nobody_is_not_found(machine: Machine) {
    run(&machine, Command::argv(["true"])).await.unwrap();
    let id = marker().parse().unwrap();
    let error = machine.signal(&id, Signal::TERM).await.unwrap_err();
    assert!(matches!(&error, ExecutorError::NotFound(unknown) if *unknown == id), "{error:?}");
}
