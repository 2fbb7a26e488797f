//! Whether an agent has a keeper that was not asked for.

use rustix::process::{Pid, Signal, kill_process_group};
use telexec_executor::{Command, Executor, ExitCause};
use telexec_tests::{AGENT_USER, Agent, AgentBuilder, NOBODY, exit_of, is_root, program, run, until_output, within};

/// What the process of this agent runs.
fn process_of(agent: &Agent) -> String {
    let path = std::fs::read_link(format!("/proc/{}/exe", agent.pid())).unwrap();
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn root_has_one() {
    if !is_root() {
        return;
    }
    let agent = Agent::builder().kept_by("auto").start();
    assert_eq!(process_of(&agent), "telexec-keeper");
    run(&agent.executor().await, Command::argv(["true"])).await.unwrap();
    assert!(!agent.log().contains("WARN telexec_server::process"), "{}", agent.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_user_has_none() {
    if !is_root() {
        return;
    }
    let agent = Agent::builder().user(NOBODY).args(["--keeper", "auto"]).start();
    assert_eq!(process_of(&agent), "telexecd");
    assert!(!agent.log().contains("not installed"), "{}", agent.log());
}

/// As with a unit that has `User=` of that name.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_the_agent_user_already_needs_none() {
    if !is_root() {
        return;
    }
    let of = |user: u32| {
        let as_user = ["--agent-user", &NOBODY.to_string()].map(str::to_owned);
        Agent::builder().user(user).args(["--keeper", "auto"]).args(as_user)
    };
    let agent = of(NOBODY).start();
    assert_eq!(process_of(&agent), "telexecd");
    let refused = of(NOBODY - 1).try_start().err().unwrap();
    assert!(refused.log.contains("only root can run the agent as another user"), "{refused}");
}

/// By a program that has no keeper beside it.
fn alone(directory: &std::path::Path) -> AgentBuilder {
    let path = directory.join("telexecd");
    std::fs::copy(program("telexecd"), &path).unwrap();
    Agent::builder().through(["sh", "-c", "shift; exec \"$0\" \"$@\"", path.to_str().unwrap()])
}

#[tokio::test(flavor = "multi_thread")]
async fn where_it_is_not_installed_there_is_none_and_the_log_warns() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let agent = alone(directory.path()).args(["--keeper", "auto"]).start();
    assert_eq!(process_of(&agent), "telexecd");
    assert!(agent.log().contains("telexec-keeper is not installed"), "{}", agent.log());
    run(&agent.executor().await, Command::argv(["true"])).await.unwrap();
}

/// What needs one is not started without.
#[test]
fn where_it_is_not_installed_an_agent_user_is_refused() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let asked = alone(directory.path()).args(["--keeper", "auto", "--agent-user", AGENT_USER]);
    let refused = asked.try_start().err().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{refused}");
    assert!(refused.log.contains("telexec-keeper: cannot be run"), "{refused}");
}

/// In a terminal both are in the foreground process group.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_of_both_is_one() {
    let builder = Agent::builder().kept().through(["setsid"]);
    let mut agent = builder.config("shutdown_grace = \"30s\"").start();
    let command = Command::shell("echo up; exec sleep 1").build().unwrap();
    let mut running = within(agent.executor().await.execute(command)).await.unwrap();
    until_output(&mut running, "up\n").await;
    kill_process_group(Pid::from_raw(agent.pid()).unwrap(), Signal::INT).unwrap();
    let exited = exit_of(running).await;
    assert_eq!(exited.cause, ExitCause::Exited(0), "{}", agent.log());
    assert!(agent.ended().await.success(), "{}", agent.log());
}
