//! Processes that a command leaves behind.

use telexec_executor::{Command, Descendants, ExecutionId, ExecutionState, ExitCause, ListQuery, Signal};
use telexec_tests::{MARK, collect, directory, lines, marker, processes_with, run, until};

use super::Machine;

async fn state(machine: &Machine, id: &ExecutionId) -> ExecutionState {
    machine.get(id).await.unwrap().state
}

/// Kills what is left. Until that has ended, an agent that goes leaves its cgroup.
async fn kill(machine: &Machine, id: &ExecutionId) {
    machine.signal(id, Signal::KILL).await.unwrap();
    until("it has ended", async || state(machine, id).await == ExecutionState::Exited).await;
}

pub(super) async fn a_background_child_does_not_hold_the_call(machine: Machine) {
    let mark = marker();
    let outcome = run(&machine, Command::shell("sleep 300 & echo done").env(MARK, &mark)).await.unwrap();
    let exited = &outcome.exited;
    assert_eq!((outcome.text(), exited.cause, exited.surviving_processes), ("done\n", ExitCause::Exited(0), 1));
    assert!(exited.stdout.incomplete && exited.stderr.incomplete);

    let listed = machine.list(ListQuery::default()).await.unwrap().executions;
    assert_eq!(listed.iter().map(|info| &info.id).collect::<Vec<_>>(), [&outcome.started.id]);
    let info = machine.get(&outcome.started.id).await.unwrap();
    assert_eq!((info.state, info.processes), (ExecutionState::Lingering, 1));
    assert_eq!(info.exited.as_ref(), Some(exited));

    assert_eq!(processes_with(&mark).len(), 1);
    kill(&machine, &outcome.started.id).await;
}

pub(super) async fn a_quiet_background_child_leaves_the_output_complete(machine: Machine) {
    let command = Command::shell("sleep 300 >/dev/null 2>&1 & echo done");
    let outcome = run(&machine, command).await.unwrap();
    assert_eq!(outcome.exited.surviving_processes, 1);
    assert!(!outcome.exited.stdout.incomplete && !outcome.exited.stderr.incomplete);
    kill(&machine, &outcome.started.id).await;
}

/// The main process exits while the survivor is still on its way to its own program and session.
pub(super) async fn a_survivor_is_counted_however_young_it_is(machine: Machine) {
    for round in 0..50 {
        let command = Command::shell("setsid sleep 300 >/dev/null 2>&1 &").shell("sh");
        let outcome = run(&machine, command).await.unwrap();
        assert_eq!(outcome.exited.surviving_processes, 1, "round {round}");
        kill(&machine, &outcome.started.id).await;
    }
}

/// Writing after the call must neither end it (SIGPIPE) nor block it, whatever it writes.
pub(super) async fn a_survivor_that_writes_lives_on(machine: Machine) {
    let directory = directory();
    let (mark, path) = (marker(), directory.path().to_str().unwrap());
    let survivor = "until [ -e go ]; do sleep 0.02; done; seq 1 50000; seq 1 50000 >&2; echo written > done; sleep 300";
    let command = Command::shell(format!("{{ {survivor}; }} &")).env(MARK, &mark).working_directory(path);
    let outcome = run(&machine, command).await.unwrap();
    std::fs::write(directory.path().join("go"), "").unwrap();
    until("it has written", async || lines(&directory.path().join("done")) == ["written"]).await;
    assert_eq!(state(&machine, &outcome.started.id).await, ExecutionState::Lingering);
    kill(&machine, &outcome.started.id).await;
}

pub(super) async fn a_survivor_that_ends_makes_it_exited(machine: Machine) {
    let directory = directory();
    let text = "setsid sh -c 'until [ -e go ]; do sleep 0.02; done' & exit 3";
    let command = Command::shell(text).working_directory(directory.path().to_str().unwrap());
    let outcome = run(&machine, command).await.unwrap();
    assert_eq!(state(&machine, &outcome.started.id).await, ExecutionState::Lingering);
    std::fs::write(directory.path().join("go"), "").unwrap();
    until("it has exited", async || state(&machine, &outcome.started.id).await == ExecutionState::Exited).await;
    let info = machine.get(&outcome.started.id).await.unwrap();
    assert_eq!((info.processes, info.exited.unwrap().cause), (0, ExitCause::Exited(3)));
}

pub(super) async fn a_survivor_can_be_killed(machine: Machine) {
    let mark = marker();
    let text = "trap '' TERM; setsid sleep 300 & nohup sleep 300 >/dev/null 2>&1 & exit 3";
    let outcome = run(&machine, Command::shell(text).env(MARK, &mark)).await.unwrap();
    assert_eq!(outcome.exited.surviving_processes, 2);
    machine.signal(&outcome.started.id, Signal::KILL).await.unwrap();
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
    until("it has exited", async || state(&machine, &outcome.started.id).await == ExecutionState::Exited).await;
}

async fn leaves_nothing(machine: &Machine, text: &str) {
    let mark = marker();
    let grace = std::time::Duration::from_millis(200);
    let command = Command::shell(text).env(MARK, &mark).descendants(Descendants::Kill).kill_grace(grace);
    let outcome = collect(machine.execute(command.build().unwrap()).await.unwrap()).await.unwrap();
    assert_eq!(processes_with(&mark), []);
    assert_eq!((outcome.text(), outcome.exited.cause), ("done\n", ExitCause::Exited(3)));
    assert_eq!(outcome.exited.surviving_processes, 0);
}

pub(super) async fn descendants_are_ended_when_asked_for(machine: Machine) {
    leaves_nothing(&machine, "setsid sleep 300 & sleep 300 & echo done; exit 3").await;
}

pub(super) async fn descendants_that_ignore_sigterm_are_ended_when_asked_for(machine: Machine) {
    leaves_nothing(&machine, "trap '' TERM; setsid sleep 300 & sleep 300 & echo done; exit 3").await;
}
