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
    assert!(!agent.log().contains("no keeper"), "{}", agent.log());
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
    // not by this process: another test's child could have it open for writing when it is executed
    let copied = std::process::Command::new("cp").arg("-n").arg(program("telexecd")).arg(&path).status().unwrap();
    assert!(copied.success() || path.exists());
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
    assert!(agent.log().contains("no keeper: if the agent crashes"), "{}", agent.log());
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
    assert_eq!(refused.status.code(), Some(78), "{refused}");
    assert!(refused.log.contains("telexec-keeper: cannot be run"), "{refused}");
}

/// In a directory that everyone may write to, such as /tmp.
#[tokio::test(flavor = "multi_thread")]
async fn a_keeper_that_somebody_else_has_put_there_is_not_executed() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (planted, mark) = (directory.path().join("telexec-keeper"), directory.path().join("mark"));
    let place = |owner: u32, mode: u32| {
        std::fs::write(&planted, format!("#!/bin/sh\ntouch {}\n", mark.display())).unwrap();
        std::os::unix::fs::chown(&planted, Some(owner), Some(owner)).unwrap();
        std::fs::set_permissions(&planted, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    for (owner, mode) in [(NOBODY, 0o755), (0, 0o757)] {
        place(owner, mode);
        let agent = alone(directory.path()).args(["--keeper", "auto"]).start();
        assert_eq!(process_of(&agent), "telexecd");
        assert!(agent.log().contains("telexec-keeper: is not executed"), "{}", agent.log());
        let refused = alone(directory.path()).args(["--keeper", "on"]).try_start().err().unwrap();
        assert_eq!(refused.status.code(), Some(78), "{refused}");
    }
    assert!(!mark.exists());
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
    // as by timeout(1), and by who is impatient
    agent.signal(Signal::TERM);
    let exited = exit_of(running).await;
    assert_eq!(exited.cause, ExitCause::Exited(0), "{}", agent.log());
    assert!(agent.ended().await.success(), "{}", agent.log());
}
