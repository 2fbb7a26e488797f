//! The keeper: the process that starts the agent and all commands, and outlives the agent's crashes.

mod agent_user;
mod agents;
mod auto;
mod continued;
mod crashes;
mod protocol;
mod sockets;
mod upgrade;

use rustix::process::{Pid, Signal, kill_process};
use telexec_tests::{Agent, Process, children, until};

/// The process that serves now; `None`: none does.
fn serving(agent: &Agent) -> Option<i32> {
    let is_agent = |pid: i32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("telexecd"));
    children(agent.pid()).into_iter().map(|process| process.pid).find(|pid| is_agent(*pid))
}

/// Its children, but for what the keeper starts others with.
fn children_but_starters(agent: &Agent) -> Vec<Process> {
    children(agent.pid()).into_iter().filter(|process| !is_starter(process)).collect()
}

/// Nothing was started for a while.
fn has_no_starter(agent: &Agent) -> bool {
    !children(agent.pid()).iter().any(is_starter)
}

fn is_starter(process: &Process) -> bool {
    std::fs::read_to_string(format!("/proc/{}/comm", process.pid)).is_ok_and(|name| name == "telexec-starter\n")
}

fn crash(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

async fn another_serves(agent: &Agent, before: usize) {
    until("another agent serves", async || agent.log().matches("listening on").count() > before).await;
}

/// Kills the agent, and waits for the next one.
pub(super) async fn crash_and_wait(agent: &Agent) {
    let before = agent.log().matches("listening on").count();
    crash(serving(agent).unwrap());
    another_serves(agent, before).await;
}

/// Has the agent hand over, and waits for the next one.
pub(super) async fn hand_over_and_wait(agent: &Agent) {
    let before = agent.log().matches("listening on").count();
    kill_process(Pid::from_raw(serving(agent).unwrap()).unwrap(), Signal::USR2).unwrap();
    another_serves(agent, before).await;
}
