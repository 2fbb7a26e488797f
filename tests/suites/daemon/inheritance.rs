//! What the agent was started with is not what its commands start with.

use std::os::unix::fs::MetadataExt;

use telexec_tests::{Agent, run};
use telexec_tool::{Command, ExecutorError, SpawnStage};

/// An agent that was started by someone careless: a signal blocked, one ignored, the umask and open files odd.
fn careless() -> Agent {
    let signals = ["env", "--block-signal=TERM", "--ignore-signal=HUP"];
    let files = "umask 077; exec 9</ 8>>/dev/null; exec <&- >&-";
    Agent::builder().env("SECRET", "of the agent").through(signals).after(files).start()
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_start_clean_whatever_the_agent_was_started_with() {
    let mut agent = careless();
    let executor = agent.executor().await;
    let told = async |argv: &[&str]| run(&executor, Command::argv(argv.to_vec())).await.unwrap().text().to_owned();
    assert_eq!(told(&["ls", "/proc/self/fd"]).await, "0\n1\n2\n3\n", "3 is the directory that ls reads");
    assert_eq!(told(&["readlink", "/proc/self/fd/0"]).await, "/dev/null\n");
    assert_eq!(told(&["sh", "-c", "umask"]).await, "0022\n");
    let status = told(&["cat", "/proc/self/status"]).await;
    for set in ["SigBlk", "SigIgn"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
    }
    assert!(!told(&["env"]).await.contains("SECRET"));
    // it does not hear SIGTERM
    agent.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_the_agent_is_no_working_directory() {
    let mut agent = careless();
    let command = Command::argv(["true"]).working_directory("/proc/self/fd/9");
    let error = run(&agent.executor().await, command).await.unwrap_err();
    let ExecutorError::Spawn(error) = error else { panic!("{error:?}") };
    assert_eq!((error.stage, &*error.errno_name()), (SpawnStage::Chdir, "ENOENT"));
    agent.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_directory_is_made_private() {
    let directory = tempfile::tempdir().unwrap();
    let new = directory.path().join("a/b");
    let agent = Agent::builder().args(["--state-dir", new.to_str().unwrap()]).after("umask 0").start();
    run(&agent.executor().await, Command::shell("true").report_working_directory(true)).await.unwrap();
    assert_eq!(new.metadata().unwrap().mode() & 0o777, 0o700);
}

/// Others could put files of their own in the place of the agent's.
#[test]
fn a_state_directory_that_others_can_write_to_is_refused_before_it_listens() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let refused = Agent::builder().args(["--state-dir", path]).try_start().expect_err("it does not listen");
    assert!(!refused.status.success() && refused.log.contains(path), "{refused}");
}
