//! An agent of a user that is not root.

use std::os::unix::fs::PermissionsExt;

use futures_util::future::join_all;
use telexec_tests::{Agent, collect, run};
use telexec_tool::{Command, Executor};

/// The user of an agent that may do nothing special.
const NOBODY: u32 = 65534;

/// `None`: this user cannot start one for another.
fn agent_of_nobody() -> Option<Agent> {
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: only root can start an agent of another user");
        return None;
    }
    Some(Agent::builder().user(NOBODY).start())
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_run_as_the_agents_user() {
    let Some(agent) = agent_of_nobody() else { return };
    let outcome = run(&agent.executor().await, Command::shell("id -u; id -g; echo $USER $PWD")).await.unwrap();
    assert_eq!(outcome.text(), "65534\n65534\nnobody /\n", "that user's home does not exist");
}

/// A user's pipes are limited together; past that they hold a page or two (pipe(7)).
#[tokio::test(flavor = "multi_thread")]
async fn four_hundred_commands_at_once_get_by_with_small_pipes() {
    let Some(agent) = agent_of_nobody() else { return };
    let executor = agent.executor().await;
    let gate = agent.directory().join("gate");
    assert!(std::process::Command::new("mkfifo").arg(&gate).status().unwrap().success());
    std::fs::set_permissions(&gate, PermissionsExt::from_mode(0o644)).unwrap();
    let text = format!(": < {}; head -c 100000 /dev/zero; echo end >&2", gate.display());
    let command = || Command::shell(&text).shell("sh").stdin("x").build().unwrap();
    let executions = join_all((0..400).map(|_| executor.execute(command()))).await;
    // all are there at once: now they go on
    let opened = tokio::task::spawn_blocking(move || std::fs::OpenOptions::new().write(true).open(gate).unwrap());
    let outcomes = join_all(executions.into_iter().map(|execution| collect(execution.unwrap()))).await;
    drop(opened.await.unwrap());
    for outcome in outcomes {
        let outcome = outcome.unwrap();
        assert_eq!((outcome.stdout.len(), &outcome.stderr[..]), (100_000, &b"end\n"[..]));
    }
}
