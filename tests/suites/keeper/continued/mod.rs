//! Executions that outlive an agent which is killed.

mod callers;
mod ends;
mod streams;

use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use telexec_executor::{
    Attach, Command, CommandBuilder, Event, Execution, ExecutionId, ExecutionState, Executor, ExitCause, Exited,
    OnDisconnect, OutputStream,
};
use telexec_tests::{
    Agent, AgentBuilder, Hierarchy, Holdings, is_root, program, rounds, run, settled, until, until_output, within,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout};
use tokio::sync::RwLock;

use super::{crash_and_wait, hand_over_and_wait, has_no_starter};

fn detached(text: &str) -> CommandBuilder {
    Command::shell(text).on_disconnect(OnDisconnect::Detach)
}

/// Starts it, and waits until it has written a first line; dropping the execution may end it.
async fn started(agent: &Agent, command: CommandBuilder) -> Execution {
    let mut execution = within(agent.executor().await.execute(command.build().unwrap())).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    execution
}

/// How it ends for an agent that has not started it.
async fn end(agent: &Agent, id: &ExecutionId) -> Exited {
    rest(&agent.executor().await, id, 0).await.2
}

/// What it prints from this position on to each stream, and how it ends.
async fn rest(executor: &impl Executor, id: &ExecutionId, position: u64) -> (String, String, Exited) {
    let execution = within(executor.attach(id, Attach::position(position))).await.unwrap();
    collect(execution, position).await
}

async fn collect(mut execution: Execution, mut position: u64) -> (String, String, Exited) {
    use futures_util::StreamExt;

    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(event) = within(execution.next()).await {
        match event.unwrap() {
            Event::Output(output) => {
                assert_eq!(output.position, position);
                position += output.data.len() as u64;
                match output.stream {
                    OutputStream::Stdout => stdout.extend(output.data),
                    OutputStream::Stderr => stderr.extend(output.data),
                }
            }
            Event::Exited(exited) => {
                return (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap(), exited);
            }
            Event::Started(_) => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("no end")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detached_command_runs_on_and_its_output_and_end_are_whole() {
    for containment in ["cgroup-v2", "cgroup-v1", "process-group"] {
        let config = format!("containment = \"{containment}\"");
        let Ok(agent) = Agent::builder().kept().config(config).try_start() else { continue };
        let gate = tempfile::tempdir().unwrap();
        let (first, last) = (gate.path().join("first"), gate.path().join("last"));
        let wait = |file: &std::path::Path| format!("until [ -e {} ]; do sleep 0.01; done", file.display());
        let text = format!("echo a; echo b >&2; {}; echo c; {}; echo d >&2; exit 7", wait(&first), wait(&last));
        let executor = agent.executor().await;
        let command = detached(&text).labels([("key".to_owned(), "value".to_owned())]).build().unwrap();
        let mut execution = within(executor.execute(command)).await.unwrap();
        let id = execution.id().clone();
        until_output(&mut execution, "a\n").await;
        drop(execution);
        crash_and_wait(&agent).await;
        let executor = agent.executor().await;
        let info = within(executor.get(&id)).await.unwrap();
        assert_eq!((info.state, info.labels.get("key").map(String::as_str)), (ExecutionState::Running, Some("value")));
        std::fs::write(first, "").unwrap();
        until("it is read", async || executor.get(&id).await.unwrap().position == 6).await;
        crash_and_wait(&agent).await;
        std::fs::write(last, "").unwrap();
        let executor = agent.executor().await;
        let (stdout, stderr, exited) = rest(&executor, &id, 0).await;
        assert_eq!((&*stdout, &*stderr, exited.cause), ("a\nc\n", "b\nd\n", ExitCause::Exited(7)), "{}", agent.log());
        assert_eq!((exited.stdout.bytes, exited.stderr.bytes), (4, 4));
        // also its end
        crash_and_wait(&agent).await;
        let executor = agent.executor().await;
        assert_eq!(rest(&executor, &id, 2).await.2, exited);
        assert_eq!(within(executor.get(&id)).await.unwrap().state, ExecutionState::Exited);
    }
}

/// An agent that is killed every now and then, but not while a command is started.
struct Killed {
    agent: Agent,
    /// Every other time it hands over instead, and the keeper executes its program anew.
    hands_over: bool,
    kills: AtomicU32,
    starts: RwLock<()>,
}

impl Killed {
    /// Does this again and again, until it was killed so often.
    async fn amid(&self, kills: u32, work: impl AsyncFn()) {
        let worked = async {
            while self.kills.load(Ordering::Relaxed) < kills {
                let worked = tokio::time::timeout(Duration::from_secs(300), work()).await;
                worked.unwrap_or_else(|_| panic!("it hangs: {}", self.agent.log()));
            }
            // an agent that was killed meanwhile serves again
            drop(self.starts.read().await);
        };
        tokio::select! {
            () = worked => {}
            () = self.kill() => {}
        }
    }

    async fn kill(&self) {
        loop {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..1500))).await;
            let _no_start = self.starts.write().await;
            if self.kills.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) && self.hands_over {
                hand_over_and_wait(&self.agent).await;
            } else {
                crash_and_wait(&self.agent).await;
            }
        }
    }

    /// What `telexec` says of a command which first writes a line, and that line.
    async fn start(&self, args: &[&str], stdin: Stdio) -> (Child, BufReader<ChildStdout>, String) {
        let _no_kill = self.starts.read().await;
        let mut command = tokio::process::Command::new(program("telexec"));
        command.args(args).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        within(stdout.read_line(&mut line)).await.unwrap();
        (child, stdout, line)
    }

    /// Everything that a command writes after its first line, and how it ends.
    async fn all(&self, args: &[&str]) -> (Vec<u8>, String, Option<i32>) {
        let (child, mut stdout, _) = self.start(args, Stdio::null()).await;
        let mut all = Vec::new();
        let (read, output) = tokio::join!(stdout.read_to_end(&mut all), child.wait_with_output());
        let (_, output) = (read.unwrap(), output.unwrap());
        (all, String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code())
    }

    fn uri(&self) -> &str {
        self.agent.uri()
    }

    /// In pieces to both streams.
    async fn numbers_are_exact(&self) {
        let text =
            "echo; for i in $(seq 60); do seq ${i}000 ${i}799; seq ${i}000 ${i}899 >&2; sleep 0.02; done; exit 7";
        let (stdout, stderr, code) = self.all(&["exec", "--reconnect", "60s", self.uri(), "-c", text]).await;
        let numbers =
            |last| (1..=60).flat_map(move |i| (0..=last).map(move |n| format!("{i}{n:03}\n"))).collect::<String>();
        assert_eq!(code, Some(7), "{stderr}");
        assert!(stdout == numbers(799).into_bytes(), "standard output, of {} bytes", stdout.len());
        assert!(stderr == numbers(899), "standard error: {stderr}");
    }

    /// A hundred megabytes, in which each line is different.
    async fn much_is_exact(&self) {
        let text = "echo; seq -w 1 99999999 | head -c 100000000";
        let (stdout, stderr, code) = self.all(&["exec", "--reconnect", "60s", self.uri(), "-c", text]).await;
        assert_eq!((code, stdout.len()), (Some(0), 100_000_000), "{stderr}");
        let lines = stdout.chunks_exact(9).zip(1..);
        let wrong = lines.into_iter().find(|(line, n)| *line != format!("{n:08}\n").as_bytes());
        assert!(wrong.is_none(), "{wrong:?}");
    }

    async fn input_is_exact(&self) {
        let input: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
        let args = ["exec", "-i", "--reconnect", "60s", self.uri(), "-c", "echo; exec cat"];
        let (mut child, mut stdout, _) = self.start(&args, Stdio::piped()).await;
        let mut stdin = child.stdin.take().unwrap();
        let mut all = Vec::new();
        // each piece when the one before is back; if it fails, it says why
        for piece in input.chunks(100_000) {
            let back = all.len();
            all.resize(back + piece.len(), 0);
            if stdin.write_all(piece).await.is_err() || stdout.read_exact(&mut all[back..]).await.is_err() {
                break;
            }
        }
        drop(stdin);
        let (read, output) = tokio::join!(stdout.read_to_end(&mut all), child.wait_with_output());
        let (_, output) = (read.unwrap(), output.unwrap());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(all == input, "{} bytes of {}", all.len(), input.len());
    }

    async fn a_terminal_is_exact(&self) {
        let text = "stty -onlcr; echo; for i in $(seq 40); do seq ${i}000 ${i}399; sleep 0.03; done; exit 5";
        let (stdout, stderr, code) = self.all(&["exec", "-t", "--reconnect", "60s", self.uri(), "-c", text]).await;
        let expected: String = (1..=40).flat_map(|i| (0..=399).map(move |n| format!("{i}{n:03}\n"))).collect();
        assert_eq!(code, Some(5), "{stderr}");
        assert!(stdout == expected.into_bytes(), "{} bytes", stdout.len());
    }

    /// Nothing is to be seen of it until its end; and one that nobody follows, whose output goes to disk.
    async fn detached_ones_are_found_again(&self) {
        let (_, _, silent) = self.start(&["exec", "-d", self.uri(), "-c", "sleep 3; exit 4"], Stdio::null()).await;
        let (_, _, long) = self.start(&["exec", "-d", self.uri(), "-c", "seq 3000000; exit 6"], Stdio::null()).await;
        let (read, stderr, code) = self.attached(silent.trim()).await;
        assert_eq!((read.len(), code), (0, Some(4)), "{stderr}");
        let (read, stderr, code) = self.attached(long.trim()).await;
        let expected: String = (1..=3_000_000).map(|n| format!("{n}\n")).collect();
        assert_eq!(code, Some(6), "{stderr}");
        assert!(read == expected.as_bytes(), "{} bytes of {}", read.len(), expected.len());
    }

    async fn attached(&self, id: &str) -> (Vec<u8>, String, Option<i32>) {
        loop {
            let mut command = tokio::process::Command::new(program("telexec"));
            let output = command.args(["attach", "--reconnect", "60s", self.uri(), id]).output().await.unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            // who comes while no agent is there is told so
            if !(output.status.code() == Some(255) && said.contains("unreachable")) {
                return (output.stdout, said, output.status.code());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_runs_is_exact_through_agents_that_are_killed_at_any_moment() {
    is_exact_through_kills(Agent::builder().kept(), false, rounds(12)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_it_is_where_these_and_their_keeper_are_upgraded() {
    is_exact_through_kills(Agent::builder().kept(), true, rounds(6)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_it_is_where_these_have_a_user_of_their_own() {
    if is_root() && Hierarchy::Unified.usable().is_some() {
        is_exact_through_kills(Agent::builder().agent_user(), true, rounds(6)).await;
    }
}

async fn is_exact_through_kills(builder: AgentBuilder, hands_over: bool, kills: u32) {
    let agent = builder.config("retention_count = 20").start();
    let killed = Killed { agent, hands_over, kills: AtomicU32::new(0), starts: RwLock::new(()) };
    let look = || {
        let Holdings { descriptors, children, .. } = Holdings::of(killed.agent.pid());
        (descriptors, children)
    };
    let before = settled(look);
    let work = async || {
        tokio::join!(
            killed.numbers_are_exact(),
            killed.much_is_exact(),
            killed.input_is_exact(),
            killed.a_terminal_is_exact(),
            killed.detached_ones_are_found_again(),
        );
    };
    killed.amid(kills, work).await;
    let executor = killed.agent.executor().await;
    let is_as_before = async || {
        // the others are forgotten for it
        run(&executor, Command::argv(["true"])).await.unwrap();
        until("its starter has ended", async || has_no_starter(&killed.agent)).await;
        look() == before
    };
    until(&format!("as at the beginning, {before:?}"), is_as_before).await;
}
