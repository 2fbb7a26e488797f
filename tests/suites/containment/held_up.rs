//! Starts that are held up by others.

use std::process::{Child, Command as Program};
use std::time::Duration;

use telexec_executor::{Command, Executor};
use telexec_tests::{Agent, Holdings, MARK, is_root, marker, processes_with, run, until};

/// A user that no other test runs anything as.
const USER: (&str, &str) = ("games", "5");

/// Stops whatever belongs to the user, as often as it can; ended when dropped.
struct Stopper(Child);

impl Stopper {
    fn start() -> Self {
        let text = "exec 2> /dev/null; while :; do kill -STOP -1; done";
        let mut program = Program::new("setpriv");
        program.args(["--reuid", USER.1, "--regid", "60", "--clear-groups", "bash", "-c", text]);
        Self(program.spawn().unwrap())
    }
}

impl Drop for Stopper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A child that becomes another user may be stopped by that user before it becomes the program, while a thread of the agent
/// waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn starts_that_their_user_stops_are_given_up() {
    if !is_root() {
        eprintln!("skipped: only root can start a process as another user");
        return;
    }
    are_given_up(&Agent::start(), 0).await;
    are_given_up(&Agent::builder().kept().start(), 1).await;
}

/// `children`: what its process has beside commands.
async fn are_given_up(agent: &Agent, children: usize) {
    let (executor, mark) = (agent.executor().await, marker());
    run(&executor, Command::argv(["true"]).user(USER.0)).await.unwrap();
    let before = Holdings::of(agent.pid());
    let stopper = Stopper::start();
    // more than the agent starts at once
    let starts = (0..200).map(|_| {
        let command = Command::argv(["sleep", "300"]).user(USER.0).env(MARK, &mark).kill_grace(Duration::ZERO);
        let start = executor.execute(command.build().unwrap());
        async { drop(tokio::time::timeout(Duration::from_millis(500), start).await) }
    });
    futures_util::future::join_all(starts).await;
    // whatever became of them, others are served, and nothing of them stays
    assert_eq!(run(&executor, Command::argv(["true"])).await.unwrap().exited.exit_code(), 0);
    until("nothing is left", async || processes_with(&mark).is_empty()).await;
    until("all is given back", async || {
        let now = Holdings::of(agent.pid());
        now.children == children && now.descriptors <= before.descriptors
    })
    .await;
    drop(stopper);
    let outcome = run(&executor, Command::argv(["id", "-u"]).user(USER.0)).await.unwrap();
    assert_eq!(outcome.text(), format!("{}\n", USER.1));
}
