//! Orphans: what an agent owes to processes that have lost their parents, also as the first process of a container.

use futures_util::future::join_all;
use rustix::process::Signal;
use telexec_client::RemoteExecutor;
use telexec_executor::{Command, Executor, ExitCause};
use telexec_tests::{Agent, AgentBuilder, MARK, Process, children, is_root, lines, marker, processes_with, run, until};

const CONTAINMENTS: [&str; 3] = ["cgroup-v2", "cgroup-v1", "process-group"];

/// Hundreds of children that lose their parents and end, in sessions of their own and in that of the command.
const FLOOD: &str = "for i in $(seq 100); do (setsid true &); (true &); done; exit 7";

/// What `change` makes of an agent with this containment, if that works here.
fn agent(containment: &str, more: &str, change: impl Fn(AgentBuilder) -> AgentBuilder) -> Option<Agent> {
    match change(Agent::builder().config(format!("containment = \"{containment}\"\n{more}"))).try_start() {
        Ok(agent) => Some(agent),
        Err(refused) => {
            eprintln!("partly skipped: {containment} does not work here: {refused}");
            None
        }
    }
}

/// Floods of orphans, and other commands among them, of which each has its own exit code.
async fn flood(executor: &RemoteExecutor) {
    let floods = join_all((0..4).map(|_| run(executor, Command::shell(FLOOD).shell("sh"))));
    let others =
        join_all((0..40).map(|n| run(executor, Command::argv(["sh".into(), "-c".into(), format!("exit {n}")]))));
    let (floods, others) = tokio::join!(floods, others);
    for (outcomes, code) in [(floods, None), (others, Some(()))] {
        for (n, outcome) in (0..).zip(outcomes) {
            assert_eq!(outcome.unwrap().exited.cause, ExitCause::Exited(code.map_or(7, |()| n)));
        }
    }
}

fn zombies(agent: &Agent) -> Vec<Process> {
    children(agent.pid()).into_iter().filter(|process| process.state == 'Z').collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_reaps_the_orphans_of_its_commands() {
    for containment in CONTAINMENTS {
        let Some(agent) = agent(containment, "", |agent| agent) else { continue };
        let executor = agent.executor().await;
        flood(&executor).await;
        until("all are reaped", async || zombies(&agent).is_empty()).await;
        // and it is the agent that they were given to
        let mark = marker();
        run(&executor, Command::shell("(setsid sleep 300 &) >/dev/null 2>&1").env(MARK, &mark)).await.unwrap();
        until("it is the agent's", async || {
            let orphans = processes_with(&mark);
            children(agent.pid()).iter().any(|child| orphans.contains(child))
        })
        .await;
        let lingering = executor.list(Default::default()).await.unwrap().executions;
        executor.signal(&lingering[0].id, telexec_executor::Signal::KILL).await.unwrap();
        until("it is reaped", async || children(agent.pid()).is_empty()).await;
    }
}

/// A main process that is kept because its number is still needed hides others from who waits for any child.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_reaps_orphans_while_it_keeps_a_main_process() {
    let Some(agent) = agent("process-group", "", |agent| agent) else { return };
    let executor = agent.executor().await;
    let mut kept = Vec::new();
    for _ in 0..2 {
        let outcome = run(&executor, Command::shell("sleep 300 >/dev/null 2>&1 & exit 3")).await.unwrap();
        assert_eq!((outcome.exited.exit_code(), outcome.exited.surviving_processes), (3, 1));
        kept.push((outcome.started.id, i32::try_from(outcome.started.pid).unwrap()));
    }
    for _ in 0..3 {
        flood(&executor).await;
        let mains: Vec<i32> = kept.iter().map(|(_, pid)| *pid).collect();
        until("all others are reaped", async || {
            let mut zombies: Vec<i32> = zombies(&agent).into_iter().map(|process| process.pid).collect();
            zombies.sort_by_key(|pid| mains.iter().position(|main| main == pid));
            assert!(mains.iter().all(|main| zombies.contains(main)), "{mains:?}, {zombies:?}");
            zombies == mains
        })
        .await;
    }
    for (id, _) in kept {
        executor.signal(&id, telexec_executor::Signal::KILL).await.unwrap();
    }
    until("all are reaped", async || children(agent.pid()).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_process_of_a_container_reaps_all_orphans() {
    if !is_root() {
        return;
    }
    for containment in CONTAINMENTS {
        let Some(agent) = agent(containment, "", AgentBuilder::in_pid_namespace) else { continue };
        let executor = agent.executor().await;
        let reported = async |text: &str| run(&executor, Command::shell(text)).await.unwrap().text().to_owned();
        assert_eq!(reported("echo $PPID").await, "1\n");
        flood(&executor).await;
        until("all are reaped", async || reported("cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '").await == "0\n")
            .await;
        // none but the agent and those who look
        until("none is left", async || reported("echo /proc/[0-9]*").await.split_whitespace().count() == 2).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_process_of_a_container_asks_all_to_end_before_it_ends() {
    if !is_root() {
        return;
    }
    for containment in CONTAINMENTS {
        // a timeout that does not pass: it ends because all have ended
        let Some(mut agent) = agent(containment, "kill_grace = \"1h\"", AgentBuilder::in_pid_namespace) else {
            continue;
        };
        let (executor, mark) = (agent.executor().await, marker());
        let directory = agent.directory().to_str().unwrap().to_owned();
        let survivor = "trap 'echo term >> term; exit' TERM; echo >> ready; while :; do sleep 0.05; done";
        let text = format!("({survivor}) >/dev/null 2>&1 & (setsid sh -c \"{survivor}\" &) >/dev/null 2>&1");
        let command = Command::shell(text).env(MARK, &mark).working_directory(&directory);
        run(&executor, command).await.unwrap();
        until("both are ready", async || lines(&agent.directory().join("ready")).len() == 2).await;
        agent.signal(Signal::TERM);
        assert!(agent.ended().await.success(), "{containment}");
        assert_eq!(lines(&agent.directory().join("term")), ["term", "term"], "{containment}");
        assert_eq!(processes_with(&mark), [], "{containment}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_outlives_the_first_process_of_a_container() {
    if !is_root() {
        return;
    }
    for containment in CONTAINMENTS {
        let hurried = "shutdown_grace = \"0s\"\nkill_grace = \"100ms\"";
        let Some(mut agent) = agent(containment, hurried, AgentBuilder::in_pid_namespace) else { continue };
        let (executor, mark) = (agent.executor().await, marker());
        let deaf = "trap '' TERM; (setsid sleep 300 &) >/dev/null 2>&1; sleep 300 >/dev/null 2>&1 &";
        let stopped = "sh -c 'kill -STOP $$' >/dev/null 2>&1 &";
        for text in [deaf, stopped] {
            run(&executor, Command::shell(text).env(MARK, &mark)).await.unwrap();
        }
        let command = Command::shell("trap '' TERM; sleep 300; sleep 300").env(MARK, &mark).build().unwrap();
        let _running = executor.execute(command).await.unwrap();
        until("all are there", async || {
            let processes = processes_with(&mark);
            let sleeping = processes.iter().filter(|process| process.name == "sleep").count();
            sleeping == 3 && processes.iter().any(|process| process.state == 'T')
        })
        .await;
        agent.signal(Signal::TERM);
        assert!(agent.ended().await.success(), "{containment}");
        assert_eq!(processes_with(&mark), [], "{containment}");
    }
}
