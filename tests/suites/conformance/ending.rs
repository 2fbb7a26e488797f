//! Commands that are ended: cancelled, timed out, or overtaken by their deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use telexec_executor::{Command, CommandBuilder, Execution, ExecutionState, ExitCause, Exited, Signal};
use telexec_tests::{
    Agent, Holdings, MARK, Process, collect, directory, lines, marker, processes_with, rounds, run, until, until_output,
};
use tempfile::TempDir;

use super::Machine;

const SHORT: Duration = Duration::from_millis(200);
/// For a command's first steps: a shell may take long to start on a busy machine.
const AMPLE: Duration = Duration::from_secs(2);
const ENDLESS: Duration = Duration::from_secs(300);

const GROUP: &str = "sleep 300 & sleep 300 & echo ready; wait";
const SESSION: &str = "setsid sleep 300 & echo ready; sleep 300";
const DOUBLE_FORK: &str = "(setsid sh -c 'sleep 300 &' &); echo ready; sleep 300";
const NOHUP: &str = "nohup sleep 300 >/dev/null 2>&1 & echo ready; sleep 300";
const TERM_IGNORED: &str = "trap '' TERM; echo ready; while :; do sleep 300; done";
const STOPPED: &str = "sh -c 'kill -STOP $$' & echo ready; sleep 300";
/// Not even the execution's id is in the environment of this child; its name is the test's mark.
const EMPTY_ENVIRONMENT: &str =
    "env -i setsid bash -c \"exec -a $TELEXEC_TEST sleep 300\" & echo ready; sleep 300; sleep 300";
/// The same, and it ignores the signal that ends its parent.
const STUBBORN_EMPTY_ENVIRONMENT: &str =
    "env -i setsid bash -c \"trap '' TERM; exec -a $TELEXEC_TEST sleep 300\" & echo ready; sleep 300; sleep 300";
/// Each of eight continues in a child of its own, again and again, until `alive` is removed.
const RESPAWNING: &str =
    "f() { trap '' TERM; sleep 0.02; [ -e alive ] && f & }; for i in {1..8}; do f & done; echo ready; sleep 300";
/// The same, each in a session of its own.
const RESPAWNING_SESSIONS: &str = "export F='trap \"\" TERM; sleep 0.02; [ -e alive ] && setsid bash -c \"$F\" &'
    for i in {1..8}; do setsid bash -c \"$F\" & done; echo ready; sleep 300";

fn sleeps(count: usize) -> impl Fn(&[Process]) -> bool {
    move |processes| processes.iter().filter(|process| process.name == "sleep").count() >= count
}

/// The shell, its `sleep`, and at least one of each of the eight that respawn, whatever it is doing.
fn all_respawn(processes: &[Process]) -> bool {
    processes.len() >= 10
}

/// A directory for a command, with the file that keeps it respawning.
fn alive() -> TempDir {
    let directory = directory();
    std::fs::write(directory.path().join("alive"), "").unwrap();
    directory
}

/// Starts a command with this mark, and waits until it prints that and its processes are there.
async fn running(machine: &Machine, text: &str, mark: &str, there: impl Fn(&[Process]) -> bool) -> Execution {
    started(machine, Command::shell(text).kill_grace(SHORT), mark, there).await
}

async fn started(
    machine: &Machine,
    command: CommandBuilder,
    mark: &str,
    there: impl Fn(&[Process]) -> bool,
) -> Execution {
    let command = command.env(MARK, mark).build().unwrap();
    let mut execution = machine.execute(command).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    until("all processes run", async || there(&processes_with(mark))).await;
    execution
}

async fn cancel_leaves_nothing(machine: Machine, text: &str, there: impl Fn(&[Process]) -> bool) {
    let (mark, directory) = (marker(), alive());
    let command = Command::shell(text).kill_grace(SHORT).working_directory(directory.path().to_str().unwrap());
    drop(started(&machine, command, &mark, there).await);
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
}

pub(super) async fn cancel_leaves_nothing_of_one_process(machine: Machine) {
    cancel_leaves_nothing(machine, "echo ready; exec sleep 300", sleeps(1)).await;
}

pub(super) async fn cancel_leaves_nothing_of_a_group(machine: Machine) {
    cancel_leaves_nothing(machine, GROUP, sleeps(2)).await;
}

pub(super) async fn cancel_leaves_nothing_of_another_session(machine: Machine) {
    cancel_leaves_nothing(machine, SESSION, sleeps(2)).await;
}

pub(super) async fn cancel_leaves_nothing_of_a_double_fork(machine: Machine) {
    cancel_leaves_nothing(machine, DOUBLE_FORK, sleeps(2)).await;
}

pub(super) async fn cancel_leaves_nothing_of_nohup(machine: Machine) {
    cancel_leaves_nothing(machine, NOHUP, sleeps(2)).await;
}

pub(super) async fn cancel_leaves_nothing_that_ignores_sigterm(machine: Machine) {
    cancel_leaves_nothing(machine, TERM_IGNORED, sleeps(1)).await;
}

pub(super) async fn cancel_leaves_nothing_that_is_stopped(machine: Machine) {
    cancel_leaves_nothing(machine, STOPPED, |processes| processes.iter().any(|process| process.state == 'T')).await;
}

pub(super) async fn cancel_leaves_nothing_of_a_child_with_an_empty_environment(machine: Machine) {
    cancel_leaves_nothing(machine, EMPTY_ENVIRONMENT, sleeps(2)).await;
}

pub(super) async fn cancel_leaves_nothing_of_a_stubborn_child_with_an_empty_environment(machine: Machine) {
    cancel_leaves_nothing(machine, STUBBORN_EMPTY_ENVIRONMENT, sleeps(2)).await;
}

pub(super) async fn cancel_leaves_nothing_of_processes_that_respawn(machine: Machine) {
    cancel_leaves_nothing(machine, RESPAWNING, all_respawn).await;
}

pub(super) async fn cancel_leaves_nothing_of_sessions_that_respawn(machine: Machine) {
    cancel_leaves_nothing(machine, RESPAWNING_SESSIONS, all_respawn).await;
}

async fn exited(machine: &Machine, execution: &Execution) -> impl AsyncFn() -> Option<Exited> + use<> {
    let (machine, id) = (Machine::clone(machine), execution.id().clone());
    async move || {
        let info = machine.get(&id).await.unwrap();
        (info.state == ExecutionState::Exited).then(|| info.exited.unwrap())
    }
}

pub(super) async fn cancel_is_reported_as_the_cause(machine: Machine) {
    // by SIGTERM, however slow the machine is
    let command = Command::shell(SESSION).kill_grace(ENDLESS);
    let execution = started(&machine, command, &marker(), sleeps(2)).await;
    let exited = exited(&machine, &execution).await;
    drop(execution);
    until("it has exited", async || exited().await.is_some()).await;
    let exited = exited().await.unwrap();
    assert_eq!((exited.cause, exited.exit_code()), (ExitCause::Cancelled, -1));
    assert_eq!((exited.signal, exited.surviving_processes), (Some(Signal::TERM), 0));
}

pub(super) async fn cancel_gives_the_grace(machine: Machine) {
    let directory = directory();
    let (mark, path) = (marker(), directory.path().to_str().unwrap());
    // it forks no more when it is ready: a fork that fails on a crowded machine ends a shell without its trap
    let text =
        "trap 'echo bye > bye; exit 7' TERM; mkfifo input; exec 3<>input; echo ready; while :; do read -u 3; done";
    let command = Command::shell(text).kill_grace(ENDLESS).working_directory(path);
    drop(started(&machine, command, &mark, |_| true).await);
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
    assert_eq!(lines(&directory.path().join("bye")), ["bye"]);
}

pub(super) async fn cancel_of_one_spares_the_others(machine: Machine) {
    let marks: Vec<String> = (0..20).map(|_| marker()).collect();
    let mut executions = join_all(marks.iter().map(|mark| running(&machine, SESSION, mark, sleeps(2)))).await;
    drop(executions.remove(5));
    until("nothing is left of it", async || processes_with(&marks[5]).is_empty()).await;
    for (i, mark) in marks.iter().enumerate() {
        assert_eq!(processes_with(mark).len() >= 2, i != 5, "number {i}");
    }
}

/// Starts that are cancelled, each somewhere else on its way: before, between clone and exec, after.
async fn cancel_starts(machine: &Machine, mark: &str) {
    for round in 0..rounds(1000) {
        let command = Command::argv(["sleep", "300"]).env(MARK, mark).kill_grace(Duration::ZERO).build().unwrap();
        // a prime, so that the pauses come in no order and each is another one
        let pause = Duration::from_micros(u64::from(round) * 7919 % 4000);
        // Tokio's own timers count in milliseconds
        let paused = tokio::task::spawn_blocking(move || std::thread::sleep(pause));
        tokio::select! {
            biased;
            _ = paused => {}
            started = machine.execute(command) => drop(started.unwrap()),
        }
    }
    // after this answer none of the calls before it can be still on its way
    run(machine, Command::argv(["true"])).await.unwrap();
    until("none runs", async || machine.list(Default::default()).await.unwrap().executions.is_empty()).await;
    until("nothing is left", async || processes_with(mark).is_empty()).await;
}

pub(super) async fn cancel_while_it_starts_leaves_nothing(machine: Machine) {
    cancel_starts(&machine, &marker()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_while_it_starts_leaves_the_agent_no_descriptor_and_no_child() {
    let agent = Agent::start();
    let machine: Machine = Arc::new(agent.executor().await);
    // what the first of all opens, and keeps
    run(&machine, Command::argv(["true"])).await.unwrap();
    let held = || {
        let now = Holdings::of(agent.pid());
        (now.descriptors, now.children)
    };
    // the first one may still be held for a moment
    until("it is idle", async || held().1 == 0).await;
    let before = held();
    cancel_starts(&machine, &marker()).await;
    until("all is given back", async || held().1 == 0 && held().0 <= before.0).await;
}

/// The first reason to end it is the one that is reported.
pub(super) async fn ending_it_again_changes_nothing(machine: Machine) {
    let execution = running(&machine, TERM_IGNORED, &marker(), sleeps(1)).await;
    let (exited, id) = (exited(&machine, &execution).await, execution.id().clone());
    drop(execution);
    until("it is being ended, or was", async || {
        machine.signal(&id, Signal::CONT).await.unwrap();
        exited().await.is_some()
    })
    .await;
    for signal in [Signal::KILL, Signal::TERM, Signal::KILL] {
        machine.signal(&id, signal).await.unwrap();
    }
    assert_eq!(exited().await.unwrap().cause, ExitCause::Cancelled);
}

pub(super) async fn cancel_after_the_end_changes_nothing(machine: Machine) {
    let execution = machine.execute(Command::shell("exit 3").build().unwrap()).await.unwrap();
    let exited = exited(&machine, &execution).await;
    until("it has exited", async || exited().await.is_some()).await;
    drop(execution);
    assert_eq!(exited().await.unwrap().cause, ExitCause::Exited(3));
}

/// The end of it is reported only once nothing is left, so no time is given here.
async fn ends_with_nothing_left(machine: &Machine, command: CommandBuilder) -> Exited {
    let (mark, directory) = (marker(), alive());
    let command = command.env(MARK, &mark).working_directory(directory.path().to_str().unwrap());
    let outcome = run(machine, command).await.unwrap();
    assert_eq!(processes_with(&mark), []);
    assert_eq!((outcome.text().lines().next(), outcome.exited.surviving_processes), (Some("ready"), 0));
    outcome.exited
}

pub(super) async fn a_timeout_keeps_the_output_and_leaves_nothing(machine: Machine) {
    let trees = [GROUP, SESSION, DOUBLE_FORK, NOHUP, TERM_IGNORED, STOPPED, EMPTY_ENVIRONMENT];
    let command = |text: &&str| Command::shell(*text).timeout(AMPLE).kill_grace(SHORT);
    let ends = trees.iter().map(command).map(|command| ends_with_nothing_left(&machine, command));
    for (exited, text) in join_all(ends).await.iter().zip(trees) {
        assert_eq!((exited.cause, exited.exit_code()), (ExitCause::TimedOut, -1), "{text}");
    }
}

pub(super) async fn a_timeout_leaves_nothing_of_processes_that_respawn(machine: Machine) {
    let command = |text: &str| Command::shell(text).timeout(AMPLE).kill_grace(SHORT);
    let trees = [RESPAWNING, RESPAWNING_SESSIONS];
    join_all(trees.map(|text| ends_with_nothing_left(&machine, command(text)))).await;
}

pub(super) async fn a_timeout_gives_the_grace(machine: Machine) {
    let text = "trap 'echo bye; exit 7' TERM; while :; do sleep 0.05; done";
    let outcome = run(&machine, Command::shell(text).timeout(AMPLE).kill_grace(ENDLESS)).await.unwrap();
    assert_eq!(outcome.text(), "bye\n");
    assert_eq!((outcome.exited.cause, outcome.exited.signal), (ExitCause::TimedOut, None));
}

pub(super) async fn a_timeout_kills_after_the_grace_and_not_before(machine: Machine) {
    let exited = ends_with_nothing_left(&machine, Command::shell(TERM_IGNORED).timeout(AMPLE).kill_grace(SHORT)).await;
    assert_eq!((exited.cause, exited.signal), (ExitCause::TimedOut, Some(Signal::KILL)));
    assert!(exited.wall_time >= AMPLE + SHORT, "{:?}", exited.wall_time);
}

pub(super) async fn without_grace_it_is_killed_at_once(machine: Machine) {
    let text = "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let command = Command::shell(text).timeout(AMPLE).kill_grace(Duration::ZERO);
    let outcome = run(&machine, command).await.unwrap();
    assert_eq!((outcome.text(), outcome.exited.signal), ("ready\n", Some(Signal::KILL)));
}

pub(super) async fn a_deadline_ends_it(machine: Machine) {
    let command = Command::shell(SESSION).deadline(Instant::now() + AMPLE).kill_grace(SHORT);
    let exited = ends_with_nothing_left(&machine, command).await;
    assert_eq!((exited.cause, exited.exit_code()), (ExitCause::DeadlineExceeded, -1));
}

pub(super) async fn of_timeout_and_deadline_the_earlier_wins(machine: Machine) {
    let (soon, late) = (SHORT, Duration::from_secs(60));
    for (timeout, deadline, cause) in [(soon, late, ExitCause::TimedOut), (late, soon, ExitCause::DeadlineExceeded)] {
        let command = Command::argv(["sleep", "300"]).timeout(timeout).deadline(Instant::now() + deadline);
        assert_eq!(run(&machine, command).await.unwrap().exited.cause, cause);
    }
}

pub(super) async fn an_end_is_not_held_up_by_who_does_not_read(machine: Machine) {
    let mark = marker();
    let command = Command::argv(["yes"]).env(MARK, &mark).timeout(SHORT).kill_grace(SHORT).build().unwrap();
    let execution = machine.execute(command).await.unwrap();
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
    let outcome = collect(execution).await.unwrap();
    assert_eq!(outcome.exited.cause, ExitCause::TimedOut);
}
