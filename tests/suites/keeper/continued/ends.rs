//! However they end.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use telexec_executor::{
    Attach, Command, Descendants, Event, ExecutionState, Executor, ExecutorError, ExitCause, OnDisconnect,
    ResourceLimits,
};
use telexec_tests::{Agent, Gate, MARK, exit_of, marker, processes_with, run, stop, until, within};

use super::super::{another_serves, children_but_starters, crash, crash_and_wait, serving};
use super::{detached, end, rest, started};

/// One for each way to keep processes together that works here.
fn agents() -> impl Iterator<Item = Agent> {
    ["cgroup-v2", "cgroup-v1", "process-group"].into_iter().filter_map(|containment| {
        let config = format!("containment = \"{containment}\"\nkill_grace = \"200ms\"");
        Agent::builder().kept().config(config).try_start().ok()
    })
}

/// A session of its own, an orphan, and one that ignores SIGTERM.
const TREE: &str = "trap '' TERM; setsid sleep 300 & (setsid sh -c 'sleep 300 & wait' &); echo ready; \
    while :; do sleep 300; done";

/// Also if nobody has taken its exit status.
fn has_ended(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

async fn nothing_is_left(mark: &str) {
    until("nothing is left", async || processes_with(mark).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_promoted_goes_on() {
    for agent in agents() {
        let gate = Gate::new();
        let text = format!("echo before; {}; echo after; exit 6", gate.wait());
        let command = Command::shell(text).yield_after(Duration::ZERO).build().unwrap();
        let mut execution = within(agent.executor().await.execute(command)).await.unwrap();
        while !matches!(within(execution.next()).await.unwrap().unwrap(), Event::Promoted) {}
        let id = execution.id().clone();
        drop(execution);
        crash_and_wait(&agent).await;
        // for the next one too
        crash_and_wait(&agent).await;
        let _open = gate.open();
        let (stdout, _, exited) = rest(&agent.executor().await, &id, 0).await;
        assert_eq!((&*stdout, exited.cause), ("before\nafter\n", ExitCause::Exited(6)));
    }
}

/// Its time is over while the other command runs.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_promoted_does_not_wait_for_its_caller() {
    let (agent, gate) = (Agent::builder().kept().start(), Gate::new());
    let command = Command::shell(format!("{}; exit 6", gate.wait())).yield_after(Duration::ZERO);
    let command = command.disconnect_grace(Duration::from_secs(1)).build().unwrap();
    let mut execution = within(agent.executor().await.execute(command)).await.unwrap();
    while !matches!(within(execution.next()).await.unwrap().unwrap(), Event::Promoted) {}
    crash_and_wait(&agent).await;
    run(&agent.executor().await, Command::argv(["sleep", "2"])).await.unwrap();
    let _open = gate.open();
    assert_eq!(end(&agent, execution.id()).await.cause, ExitCause::Exited(6));
}

/// Until then it is bound to its call.
#[tokio::test(flavor = "multi_thread")]
async fn what_would_be_promoted_later_ends() {
    for agent in agents() {
        let mark = marker();
        let command = Command::shell(TREE).env(MARK, &mark).yield_after(Duration::from_secs(300));
        let execution = started(&agent, command).await;
        crash_and_wait(&agent).await;
        nothing_is_left(&mark).await;
        let asked = agent.executor().await.get(execution.id()).await;
        assert!(matches!(asked, Err(ExecutorError::NotFound { .. })), "{asked:?}");
    }
}

/// Whether that is while no agent is there, or afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_a_timeout_is_ended_by_the_next_agent_with_its_whole_tree() {
    for agent in agents() {
        let ([early, late], timeout) = ([marker(), marker()], Duration::from_secs(2));
        let early_one = started(&agent, detached(TREE).env(MARK, &early).timeout(timeout)).await;
        let late_one = started(&agent, detached(TREE).env(MARK, &late).timeout(2 * timeout)).await;
        let before = agent.log().matches("listening on").count();
        stop(agent.pid()).await;
        crash(serving(&agent).unwrap());
        // the time that it has
        tokio::time::sleep(timeout).await;
        assert!(!processes_with(&early).is_empty() && !processes_with(&late).is_empty());
        agent.signal(Signal::CONT);
        another_serves(&agent, before).await;
        for (execution, mark, timeout) in [(early_one, early, timeout), (late_one, late, 2 * timeout)] {
            let exited = end(&agent, execution.id()).await;
            assert_eq!((exited.cause, exited.surviving_processes), (ExitCause::TimedOut, 0), "{}", agent.log());
            assert!(exited.wall_time >= timeout, "{exited:?}");
            nothing_is_left(&mark).await;
        }
    }
}

/// The agent that was ending it did not live to see that.
#[tokio::test(flavor = "multi_thread")]
async fn what_ends_after_its_timeout_has_timed_out_whoever_sees_it() {
    let agent = Agent::builder().kept().config("kill_grace = \"5m\"").start();
    let (directory, mark) = (tempfile::tempdir().unwrap(), marker());
    let [asked, go] = ["asked", "go"].map(|name| directory.path().join(name));
    let text = format!(
        "trap ': > {}' TERM; (trap '' TERM; exec sleep 300) & echo ready; until [ -e {} ]; do sleep 0.01; done; exit 0",
        asked.display(),
        go.display()
    );
    let command = detached(&text).env(MARK, &mark).timeout(Duration::from_secs(1));
    let execution = started(&agent, command).await;
    until("it is asked to end", async || asked.exists()).await;
    let before = agent.log().matches("listening on").count();
    stop(agent.pid()).await;
    crash(serving(&agent).unwrap());
    std::fs::write(go, "").unwrap();
    until("it has ended", async || has_ended(execution.started().pid)).await;
    agent.signal(Signal::CONT);
    another_serves(&agent, before).await;
    let exited = end(&agent, execution.id()).await;
    assert_eq!((exited.cause, exited.surviving_processes), (ExitCause::TimedOut, 0), "{exited:?}");
    nothing_is_left(&mark).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_in_time_while_its_agent_is_frozen_is_not_reported_as_timed_out() {
    let (agent, gate) = (Agent::builder().kept().start(), Gate::new());
    let text = format!("echo ready; {}; exit 7", gate.wait());
    let limit = Duration::from_secs(2);
    let bound = started(&agent, Command::shell(&text).timeout(limit)).await;
    let in_background = started(&agent, detached(&text).timeout(limit)).await;
    let mains = [&bound, &in_background].map(|execution| execution.started().pid);
    let frozen = serving(&agent).unwrap();
    stop(frozen).await;
    let _open = gate.open();
    until("they have ended", async || mains.iter().all(|main| has_ended(*main))).await;
    // the time that they have
    tokio::time::sleep(limit).await;
    kill_process(Pid::from_raw(frozen).unwrap(), Signal::CONT).unwrap();
    for exited in [exit_of(bound).await, end(&agent, in_background.id()).await] {
        assert_eq!(exited.cause, ExitCause::Exited(7), "{exited:?}");
    }
}

/// Also what is bound to a call, which it may have for as long as it is frozen.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_a_timeout_is_killed_while_its_agent_is_frozen() {
    for agent in agents() {
        let (mark, limit) = (marker(), Duration::from_secs(1));
        let bound = Command::shell(TREE).env(MARK, &mark).timeout(limit);
        let bound = started(&agent, bound).await;
        let in_background = started(&agent, detached(TREE).env(MARK, &mark).timeout(limit)).await;
        let mains = [&bound, &in_background].map(|execution| execution.started().pid);
        let stays = started(&agent, detached("echo ready; exec sleep 300")).await;
        let frozen = serving(&agent).unwrap();
        stop(frozen).await;
        until("they are killed", async || mains.iter().all(|main| has_ended(*main))).await;
        assert!(!has_ended(stays.started().pid), "it has no timeout");
        kill_process(Pid::from_raw(frozen).unwrap(), Signal::CONT).unwrap();
        let exited = exit_of(bound).await;
        for exited in [exited, end(&agent, in_background.id()).await] {
            assert_eq!((exited.cause, exited.surviving_processes), (ExitCause::TimedOut, 0), "{}", agent.log());
            assert!(exited.wall_time >= limit, "{exited:?}");
        }
        nothing_is_left(&mark).await;
        for main in mains {
            let line = format!("killed process {main} past its timeout");
            until("it is logged", async || agent.log().contains(&line)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_its_caller_ends_with_its_whole_tree_if_that_does_not_come_back() {
    for agent in agents() {
        let mark = marker();
        let command = Command::shell(TREE).env(MARK, &mark).disconnect_grace(Duration::from_secs(2));
        let execution = started(&agent, command).await;
        crash_and_wait(&agent).await;
        assert_eq!(end(&agent, execution.id()).await.cause, ExitCause::Cancelled);
        nothing_is_left(&mark).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_comes_back_has_it_again() {
    for agent in agents() {
        let (mark, grace) = (marker(), Duration::from_secs(300));
        let execution = started(&agent, Command::shell(TREE).env(MARK, &mark).disconnect_grace(grace)).await;
        crash_and_wait(&agent).await;
        let again = Attach { position: 0, on_disconnect: OnDisconnect::Kill, disconnect_grace: grace };
        let attached = within(agent.executor().await.attach(execution.id(), again)).await.unwrap();
        // and once more
        crash_and_wait(&agent).await;
        drop(attached);
        assert!(!processes_with(&mark).is_empty());
        let again = Attach { position: 0, on_disconnect: OnDisconnect::Kill, disconnect_grace: grace };
        let attached = within(agent.executor().await.attach(execution.id(), again)).await.unwrap();
        // no lost connection, but an end of the call
        drop(attached);
        assert_eq!(end(&agent, execution.id()).await.cause, ExitCause::Cancelled);
        nothing_is_left(&mark).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_reach_all_of_it() {
    for agent in agents() {
        let text = "trap 'echo got; exit 3' TERM; echo ready; sleep 300 & wait";
        let execution = started(&agent, detached(text)).await;
        let mark = marker();
        let killed = started(&agent, detached(TREE).env(MARK, &mark)).await;
        crash_and_wait(&agent).await;
        let executor = agent.executor().await;
        within(executor.signal(execution.id(), telexec_executor::Signal::TERM)).await.unwrap();
        let (stdout, _, exited) = rest(&executor, execution.id(), 0).await;
        assert_eq!((&*stdout, exited.cause), ("ready\ngot\n", ExitCause::Exited(3)));
        within(executor.signal(killed.id(), telexec_executor::Signal::KILL)).await.unwrap();
        let exited = end(&agent, killed.id()).await;
        assert_eq!((exited.cause, exited.signal), (ExitCause::Signaled, Some(telexec_executor::Signal::KILL)));
        nothing_is_left(&mark).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_leaves_behind_stays_or_is_ended_as_it_was_asked() {
    for agent in agents() {
        let gate = Gate::new();
        let text = format!("setsid sleep 300 >/dev/null 2>&1 & echo ready; {}; exit 2", gate.wait());
        let marks = [marker(), marker()];
        let keeps = started(&agent, detached(&text).env(MARK, &marks[0])).await;
        let kills = started(&agent, detached(&text).env(MARK, &marks[1]).descendants(Descendants::Kill)).await;
        crash_and_wait(&agent).await;
        let _open = gate.open();
        let exited = [end(&agent, keeps.id()).await, end(&agent, kills.id()).await];
        assert_eq!(exited.clone().map(|exited| exited.surviving_processes), [1, 0], "{}", agent.log());
        assert_eq!(exited.map(|exited| exited.cause), [ExitCause::Exited(2); 2]);
        nothing_is_left(&marks[1]).await;
        assert_eq!(processes_with(&marks[0]).len(), 1);
        // it is still of this execution
        within(agent.executor().await.signal(keeps.id(), telexec_executor::Signal::KILL)).await.unwrap();
        nothing_is_left(&marks[0]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_that_has_ended_left_behind_stays() {
    for agent in agents() {
        let mark = marker();
        let text = "setsid sleep 300 >/dev/null 2>&1 & exit 2";
        let outcome = run(&agent.executor().await, detached(text).env(MARK, &mark)).await.unwrap();
        assert_eq!(outcome.exited.surviving_processes, 1);
        crash_and_wait(&agent).await;
        assert_eq!(end(&agent, &outcome.started.id).await, outcome.exited);
        assert_eq!(processes_with(&mark).len(), 1, "{}", agent.log());
        // it is not forgotten
        let (executor, id) = (agent.executor().await, &outcome.started.id);
        let state = async || within(executor.get(id)).await.unwrap().state;
        assert_eq!(state().await, ExecutionState::Lingering);
        within(executor.signal(id, telexec_executor::Signal::KILL)).await.unwrap();
        until("it is gone", async || processes_with(&mark).is_empty() && children_but_starters(&agent).len() == 1)
            .await;
        until("that is known", async || state().await == ExecutionState::Exited).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_takes_too_much_memory_is_told_so() {
    for agent in agents() {
        let limits = ResourceLimits { memory_bytes: Some(32 << 20), ..Default::default() };
        let unlimited = run(&agent.executor().await, Command::argv(["true"]).limits(limits)).await;
        if let Err(ExecutorError::Unsupported { .. }) = unlimited {
            continue;
        }
        let gate = Gate::new();
        let text = format!("echo ready; {}; ulimit -v 4000000; tail /dev/zero; exit $?", gate.wait());
        let execution = started(&agent, detached(&text).limits(limits)).await;
        crash_and_wait(&agent).await;
        let _open = gate.open();
        assert_eq!(end(&agent, execution.id()).await.cause, ExitCause::OutOfMemory, "{}", agent.log());
    }
}

/// A file that whoever opens it waits for, in the place of another one.
struct Held<'a> {
    path: &'a Path,
    fifo: PathBuf,
}

impl<'a> Held<'a> {
    fn new(path: &'a Path) -> Self {
        let (fifo, link) = (path.with_extension("held"), path.with_extension("link"));
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
        std::fs::hard_link(&fifo, &link).unwrap();
        std::fs::rename(link, path).unwrap();
        Self { path, fifo }
    }

    /// The file is there again, with this text, also for who waits for it.
    fn release(self, text: &str) {
        let new = self.path.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.path).unwrap();
        // with both ends it does not wait itself
        let mut fifo = std::fs::OpenOptions::new().read(true).write(true).open(self.fifo).unwrap();
        fifo.write_all(text.as_bytes()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_that_it_took_ends_with_it_though_no_agent_was_there() {
    const ALL: &str = "permit(principal, action, resource);";
    let (agent, gate, begun) = (Agent::builder().kept().policy(ALL).start(), Gate::new(), Instant::now());
    let execution = started(&agent, detached(&format!("echo ready; {}; exit 5", gate.wait()))).await;
    let path = agent.policy();
    let held = Held::new(&path);
    let before = agent.log().matches("listening on").count();
    crash(serving(&agent).unwrap());
    let _open = gate.open();
    let stat = format!("/proc/{}/stat", execution.started().pid);
    let has_ended = async || std::fs::read_to_string(&stat).unwrap().contains(") Z ");
    until("it has ended", has_ended).await;
    let most = begun.elapsed();
    assert_eq!(agent.log().matches("listening on").count(), before);
    held.release(ALL);
    another_serves(&agent, before).await;
    let exited = end(&agent, execution.id()).await;
    assert_eq!(exited.cause, ExitCause::Exited(5));
    assert!(exited.wall_time <= most, "{exited:?}, within {most:?}");
}
