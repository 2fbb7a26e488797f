//! Process ids that are given out again. The agent runs in a pid namespace of its own, where it can be set which id
//! comes next (ns_last_pid, see pid_namespaces(7)) without disturbing others.

use telexec_client::RemoteExecutor;
use telexec_executor::{Command, Execution, ExecutionId, ExecutionState, Executor, Signal};
use telexec_tests::{Agent, Hierarchy, MARK, Process, directory, marker, processes_with, run, until, until_output};

/// How often an id is tried for: the agent's threads take some, too.
const TRIES: usize = 10;
/// How many ids are tried for.
const ROUNDS: usize = 20;

/// An agent in a pid namespace of its own; `None`: it cannot be had here.
fn agent(containment: &str) -> Option<Agent> {
    let there = match containment {
        "cgroup-v2" => Hierarchy::Unified.usable().is_some(),
        "cgroup-v1" => Hierarchy::Freezer.usable().is_some(),
        _ => true,
    };
    if !there || !rustix::process::getuid().is_root() {
        eprintln!("skipped: no {containment} here, or not root");
        return None;
    }
    Some(Agent::builder().in_pid_namespace().config(format!("containment = {containment:?}")).start())
}

/// A command of just this process id, which so leads a session and a group of this number, and reports that it lives when
/// it is asked by SIGUSR1; `None`: the id cannot be had.
async fn stranger(executor: &impl Executor, id: u32) -> Option<Execution> {
    let text = "trap 'echo alive' USR1; echo ready; while :; do sleep 0.02; done";
    for _ in 0..TRIES {
        let next = format!("echo {} > /proc/sys/kernel/ns_last_pid", id - 1);
        assert_eq!(run(executor, Command::shell(next).shell("sh")).await.unwrap().exited.exit_code(), 0);
        let mut execution = executor.execute(Command::shell(text).shell("sh").build().unwrap()).await.unwrap();
        if execution.started().pid == id {
            until_output(&mut execution, "ready\n").await;
            return Some(execution);
        }
    }
    None
}

/// Sends all that may end a process to an execution whose id or process id is another's now.
async fn signal_and_see_that_the_stranger_lives(executor: &impl Executor, id: &ExecutionId, mut stranger: Execution) {
    for signal in [Signal::TERM, Signal::KILL] {
        executor.signal(id, signal).await.unwrap();
    }
    until("it has exited", async || executor.get(id).await.unwrap().state == ExecutionState::Exited).await;
    executor.signal(id, Signal::KILL).await.unwrap();
    executor.signal(stranger.id(), "USR1".parse().unwrap()).await.unwrap();
    until_output(&mut stranger, "alive\n").await;
}

/// Tries a case until it has met a stranger: a thread of the agent may have taken the id, and keep it.
async fn meets(containment: &str, case: impl AsyncFn(&RemoteExecutor) -> bool) {
    let Some(mut agent) = agent(containment) else { return };
    let executor = agent.executor().await;
    let mut met = false;
    for _ in 0..ROUNDS {
        met = met || case(&executor).await;
    }
    assert!(met, "no id was given out again");
    assert!(agent.terminate().await.success());
}

async fn an_ended_command(containment: &str) {
    meets(containment, async |executor| {
        let ended = run(executor, Command::argv(["true"])).await.unwrap().started;
        let Some(stranger) = stranger(executor, ended.pid).await else { return false };
        signal_and_see_that_the_stranger_lives(executor, &ended.id, stranger).await;
        true
    })
    .await;
}

/// Its main process has ended, others linger.
async fn a_lingering_command(containment: &str) {
    meets(containment, async |executor| {
        let mark = marker();
        let command = Command::shell("setsid sleep 300 >/dev/null 2>&1 &").env(MARK, &mark);
        let lingering = run(executor, command).await.unwrap().started;
        let stranger = stranger(executor, lingering.pid).await;
        let met = match stranger {
            Some(stranger) => {
                assert_ne!(containment, "process-group", "the number identifies who is left, so it must be kept");
                signal_and_see_that_the_stranger_lives(executor, &lingering.id, stranger).await;
                true
            }
            None => containment == "process-group",
        };
        executor.signal(&lingering.id, Signal::KILL).await.unwrap();
        until("nothing is left of it", async || processes_with(&mark).is_empty()).await;
        met
    })
    .await;
}

/// One of those that linger has ended.
async fn a_survivor(containment: &str) {
    meets(containment, async |executor| {
        let (mark, directory) = (marker(), directory());
        let text = "setsid sleep 300 >/dev/null 2>&1 &
            setsid sh -c 'until [ -e go ]; do sleep 0.02; done' >/dev/null 2>&1 & echo $!";
        let command = Command::shell(text).env(MARK, &mark).working_directory(directory.path().to_str().unwrap());
        let outcome = run(executor, command).await.unwrap();
        let (id, survivor) = (outcome.started.id.clone(), outcome.text().trim().parse().unwrap());
        // a look at it: the agent knows it from now on
        executor.signal(&id, Signal::CONT).await.unwrap();
        std::fs::write(directory.path().join("go"), "").unwrap();
        let is_the_other = |process: &Process| process.name == "sleep";
        until("it has ended", async || {
            let left = processes_with(&mark);
            left.len() == 1 && left.iter().all(is_the_other)
        })
        .await;
        let stranger = stranger(executor, survivor).await;
        let met = stranger.is_some();
        match stranger {
            Some(stranger) => signal_and_see_that_the_stranger_lives(executor, &id, stranger).await,
            None => drop(executor.signal(&id, Signal::KILL).await.unwrap()),
        }
        until("nothing is left of it", async || processes_with(&mark).is_empty()).await;
        met
    })
    .await;
}

macro_rules! spares_who_has_the_id_of {
    ($($case:ident),+) => {
        $(mod $case {
            #[tokio::test(flavor = "multi_thread")]
            async fn with_cgroup_v2() {
                super::$case("cgroup-v2").await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn with_cgroup_v1() {
                super::$case("cgroup-v1").await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn with_process_group() {
                super::$case("process-group").await;
            }
        })+
    };
}

spares_who_has_the_id_of!(an_ended_command, a_lingering_command, a_survivor);
