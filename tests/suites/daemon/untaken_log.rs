//! Standard error that does not take the log: closed, full, limited, or a pipe that is not read.

use std::fs::File;
use std::io::{PipeReader, Read, pipe};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use telexec_client::{Agent, ConnectOptions, RemoteExecutor, Target};
use telexec_executor::{Command, Executor, ExecutorError};
use telexec_tests::{ask, dial, program, run, until, within};
use tempfile::TempDir;

/// An agent whose standard error is the test's own affair; killed when dropped.
struct Unlogged {
    child: Child,
    directory: TempDir,
}

impl Unlogged {
    /// Started from a shell that does this first.
    fn start(stderr: impl Into<OwnedFd>, first: &str) -> Self {
        let directory = telexec_tests::directory();
        let config = directory.path().join("telexecd.toml");
        std::fs::write(&config, "log_commands = true").unwrap();
        let at = |name: &str| format!("unix://{}/{name}", directory.path().display());
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &format!("{first}; exec \"$@\""), "sh"]).arg(program("telexecd"));
        command.args(["--listen", &at("agent.sock"), "--metrics-listen", &at("metrics.sock"), "--config"]).arg(&config);
        command.arg("--state-dir").arg(directory.path().join("state"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr.into()).env("TELEXECD_KEEPER", "off");
        Self { child: command.spawn().unwrap(), directory }
    }

    fn uri(&self, name: &str) -> String {
        format!("unix://{}/{name}", self.directory.path().display())
    }

    async fn executor(&self) -> RemoteExecutor {
        let target: Target = self.uri("agent.sock").parse().unwrap();
        let mut connected = None;
        until("it answers", async || {
            connected = Agent::connect(&target, ConnectOptions::default()).await.ok();
            connected.is_some()
        })
        .await;
        connected.unwrap().executor()
    }

    /// How many lines of its log are lost.
    async fn dropped(&self) -> u64 {
        let answer = ask(dial(&self.uri("metrics.sock")).await, "GET /metrics").await;
        let value = answer.lines().find_map(|line| line.strip_prefix("telexec_log_dropped_lines_total "));
        value.expect(&answer).parse::<f64>().unwrap() as u64
    }

    async fn terminate(mut self) {
        kill_process(Pid::from_raw(self.child.id().try_into().unwrap()).unwrap(), Signal::TERM).unwrap();
        let mut status = None;
        until("it has ended", async || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        assert_eq!(status.unwrap().code(), Some(0));
    }
}

impl Drop for Unlogged {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command whose text, which is logged, is so long that a pipe holds none of it.
fn wordy() -> telexec_executor::CommandBuilder {
    Command::shell(format!("echo out; exit 3 # {}", "x".repeat(100_000)))
}

/// Commands run as ever, those that fail to start get an error, and all of them are remembered.
async fn serves(executor: &RemoteExecutor, commands: usize) {
    for _ in 0..commands {
        let outcome = run(executor, wordy()).await.unwrap();
        assert_eq!((outcome.text(), outcome.exited.exit_code()), ("out\n", 3));
        let info = within(executor.get(&outcome.started.id)).await.unwrap();
        assert_eq!(info.exited.as_ref(), Some(&outcome.exited));
    }
    let missing = run(executor, Command::argv(["/no/such/program"])).await.unwrap_err();
    assert!(matches!(missing, ExecutorError::Spawn(_)), "{missing}");
}

/// Reads up to the line that says where it listens.
fn until_it_listens(log: &mut PipeReader) {
    let (mut text, mut byte) = (Vec::new(), [0]);
    while !String::from_utf8_lossy(&text).contains("listening on") || !text.ends_with(b"\n") {
        log.read_exact(&mut byte).unwrap();
        text.extend(byte);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_cannot_be_written_changes_nothing() {
    let closed = || {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        OwnedFd::from(writer)
    };
    let file = |path: &str| OwnedFd::from(File::options().write(true).create(true).truncate(false).open(path).unwrap());
    let directory = telexec_tests::directory();
    let log = directory.path().join("log").to_str().unwrap().to_owned();
    for (stderr, first) in
        [(closed(), ":"), (file("/dev/full"), ":"), (file(&log), "ulimit -f 0"), (closed(), "exec 2>&-")]
    {
        let agent = Unlogged::start(stderr, first);
        serves(&agent.executor().await, 3).await;
        // without a descriptor it has /dev/null, which takes all
        assert_eq!(agent.dropped().await > 0, first != "exec 2>&-", "{first}");
        agent.terminate().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_closed_while_it_serves_changes_nothing() {
    let (mut log, writer) = pipe().unwrap();
    let agent = Unlogged::start(writer, ":");
    until_it_listens(&mut log);
    let executor = agent.executor().await;
    serves(&executor, 1).await;
    drop(log);
    serves(&executor, 3).await;
    agent.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_nobody_reads_holds_up_nothing() {
    let (_unread, writer) = pipe().unwrap();
    let agent = Unlogged::start(writer, ":");
    serves(&agent.executor().await, 20).await;
    assert!(agent.dropped().await > 0);
    agent.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_log_has_lost_is_reported_once_there_is_room() {
    let (mut log, writer) = pipe().unwrap();
    let agent = Unlogged::start(writer, ":");
    let executor = agent.executor().await;
    serves(&executor, 20).await;
    let dropped = agent.dropped().await;
    assert!(dropped > 0);
    let read = Arc::new(Mutex::new(Vec::new()));
    let reader = std::thread::spawn({
        let read = Arc::clone(&read);
        move || {
            let mut chunk = [0; 65536];
            while let Ok(length @ 1..) = log.read(&mut chunk) {
                read.lock().unwrap().extend_from_slice(&chunk[..length]);
            }
        }
    });
    let text = || String::from_utf8_lossy(&read.lock().unwrap()).into_owned();
    until("that is logged", async || text().contains(&format!("log lines were dropped total={dropped}"))).await;
    serves(&executor, 1).await;
    agent.terminate().await;
    reader.join().unwrap();
    // in their order, to the last one
    let text = text();
    let last = text.lines().last().unwrap();
    assert!(text.contains("\nlistening on unix://") && last.contains("shutting down"), "{last}");
    assert_eq!(text.matches("log lines were dropped").count(), 1);
}
