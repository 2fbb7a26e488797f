//! Their input and output, and what comes with that.

use telexec_executor::{Command, ExecutionId, Executor, ExecutorError, ExitCause, Input, OnDisconnect, TerminalSize};
use telexec_tests::{Agent, Gate, Tmux, is_root, until, within};

use super::super::{crash_and_wait, hand_over_and_wait, serving};
use super::{detached, rest, started};

fn kept() -> Agent {
    Agent::builder().kept().start()
}

fn input(data: &'static str, offset: u64) -> Input {
    Input { data: data.into(), offset: Some(offset), ..Input::default() }
}

/// Waits until so much was read of what it has written.
async fn written(executor: &impl Executor, id: &ExecutionId, position: u64) {
    until("it has written that", async || executor.get(id).await.unwrap().position >= position).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn input_goes_on_where_it_was() {
    let agent = kept();
    let execution = started(&agent, detached("echo ready; cat; echo end").accepts_input(true)).await;
    let id = execution.id();
    assert_eq!(within(agent.executor().await.write_input(id, input("one\n", 0))).await.unwrap(), 4);
    crash_and_wait(&agent).await;
    let executor = agent.executor().await;
    let ahead = within(executor.write_input(id, input("far\n", 5))).await;
    assert!(matches!(ahead, Err(ExecutorError::OutOfRange { end: 4, .. })), "{ahead:?}");
    // repeated, as after a lost answer
    assert_eq!(within(executor.write_input(id, input("one\ntwo\n", 0))).await.unwrap(), 8);
    crash_and_wait(&agent).await;
    let executor = agent.executor().await;
    let last = Input { close: true, ..input("three\n", 8) };
    assert_eq!(within(executor.write_input(id, last.clone())).await.unwrap(), 14);
    let (stdout, _, exited) = rest(&executor, id, 0).await;
    assert_eq!((&*stdout, exited.cause), ("ready\none\ntwo\nthree\nend\n", ExitCause::Exited(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn input_that_was_closed_stays_closed() {
    let agent = kept();
    let gate = Gate::new();
    let text = format!("echo ready; cat; echo closed; {}; cat; echo end", gate.wait());
    let execution = started(&agent, detached(&text).accepts_input(true)).await;
    let (id, executor) = (execution.id(), agent.executor().await);
    within(executor.write_input(id, Input { close: true, ..input("in\n", 0) })).await.unwrap();
    written(&executor, id, "ready\nin\nclosed\n".len() as u64).await;
    crash_and_wait(&agent).await;
    let executor = agent.executor().await;
    let more = within(executor.write_input(id, input("more\n", 3))).await;
    assert!(matches!(more, Err(ExecutorError::FailedPrecondition { .. })), "{more:?}");
    // what it has got is no error
    let again = Input { close: true, ..input("in\n", 0) };
    assert_eq!(within(executor.write_input(id, again)).await.unwrap(), 3);
    let _open = gate.open();
    assert_eq!(rest(&executor, id, 0).await.0, "ready\nin\nclosed\nend\n");
}

/// The pipe to the command has a part of it, and the rest is still to come.
#[tokio::test(flavor = "multi_thread")]
async fn what_its_input_starts_with_is_whole() {
    let agent = kept();
    let gate = Gate::new();
    let stdin: String = (0..300_000).map(|number| format!("{number}\n")).collect();
    let text = format!("echo ready; {}; cat", gate.wait());
    let execution = started(&agent, detached(&text).stdin(stdin.clone())).await;
    crash_and_wait(&agent).await;
    crash_and_wait(&agent).await;
    let _open = gate.open();
    let (stdout, _, exited) = rest(&agent.executor().await, execution.id(), 6).await;
    assert!(stdout == stdin, "{} bytes of {}", stdout.len(), stdin.len());
    assert_eq!(exited.cause, ExitCause::Exited(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_resized_and_typed_into() {
    let agent = kept();
    let size = |columns, rows| TerminalSize::new(columns, rows).unwrap();
    let text = "stty -echo -onlcr; stty size; echo ready; read line; echo got $line; stty size; cat; echo end";
    let execution = started(&agent, detached(text).terminal(size(80, 24)).accepts_input(true)).await;
    let id = execution.id();
    crash_and_wait(&agent).await;
    let executor = agent.executor().await;
    within(executor.resize(id, size(100, 40))).await.unwrap();
    within(executor.write_input(id, input("typed\r", 0))).await.unwrap();
    written(&executor, id, "24 80\nready\ngot typed\n40 100\n".len() as u64).await;
    crash_and_wait(&agent).await;
    let executor = agent.executor().await;
    let last = Input { close: true, ..input("typed\rmore\r", 0) };
    assert_eq!(within(executor.write_input(id, last)).await.unwrap(), 11);
    let (stdout, _, exited) = rest(&executor, id, 0).await;
    assert_eq!(stdout, "24 80\nready\ngot typed\n40 100\nmore\nend\n");
    assert_eq!(exited.cause, ExitCause::Exited(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_sits_at_a_terminal_goes_on_typing() {
    let agent = kept();
    let tmux = Tmux::open(&[("T", agent.uri())]).await;
    let settings = tmux.settings().await;
    tmux.line("clear; telexec exec -it -e PS1=remote: $T -- bash --norc --noprofile -i; echo code=$?");
    until("the line is taken", async || !tmux.screen().contains("clear;")).await;
    tmux.shows("remote:").await;
    tmux.line("kept=variable");
    for round in 1..=3 {
        crash_and_wait(&agent).await;
        tmux.line(&format!("echo $kept {round}"));
        tmux.shows(&format!("\nvariable {round}\n")).await;
    }
    tmux.line("exit 5");
    tmux.shows("code=5\n").await;
    assert_eq!(tmux.settings().await, settings);
}

/// Copies a byte from its standard input to its output, and holds the lock of that until the next one comes.
const LOCKED: &str = "import os, socket
here, there = socket.socketpair()
os.write(1, b'ready\\n')
if os.fork() == 0:
    here.close()
    while os.read(0, 1): there.send(b'x')
    os._exit(0)
there.close()
while os.splice(here.fileno(), 1, 4096): pass
os.write(1, b'done\\n')";

/// A thread of the agent waits for the lock of a stream, which no signal ends.
fn is_held_up(agent: i32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{agent}/task")).unwrap();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
    stats.into_iter().any(|stat| stat.contains("(stream) D "))
}

/// Waits until a thread is held up; false: all that was written so far was read.
async fn holds_up(agent: &Agent, id: &ExecutionId, position: u64) -> bool {
    let (serving, executor) = (serving(agent).unwrap(), agent.executor().await);
    until("it was read, or cannot be", async || {
        is_held_up(serving) || executor.get(id).await.unwrap().position >= position
    })
    .await;
    is_held_up(serving)
}

/// `by`: what executes it.
async fn holds_up_no_next_agent(agent: Agent, by: &[&str], next: impl AsyncFn(&Agent)) {
    let command = Command::argv(by.iter().chain(&["python3", "-c", LOCKED]).copied());
    let command = command.on_disconnect(OnDisconnect::Detach).accepts_input(true);
    let executor = agent.executor().await;
    let execution = within(executor.execute(command.build().unwrap())).await.unwrap();
    let (id, mut bytes) = (execution.id(), 0);
    while !holds_up(&agent, id, "ready\n".len() as u64 + bytes).await {
        within(executor.write_input(id, input("x", bytes))).await.unwrap();
        bytes += 1;
    }
    next(&agent).await;
    let executor = agent.executor().await;
    within(executor.write_input(id, Input { close: true, ..input("", bytes) })).await.unwrap();
    let (stdout, _, exited) = rest(&executor, id, 0).await;
    let expected = format!("ready\n{}done\n", "x".repeat(usize::try_from(bytes).unwrap()));
    assert_eq!(stdout, expected, "{}", agent.log());
    assert_eq!(exited.cause, ExitCause::Exited(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_up_an_agent_that_crashes_holds_up_no_next_one() {
    holds_up_no_next_agent(kept(), &[], crash_and_wait).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_up_an_agent_that_hands_over_holds_up_no_next_one() {
    holds_up_no_next_agent(kept(), &[], hand_over_and_wait).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_one_in_another_session_where_there_are_no_cgroups() {
    let agent = Agent::builder().kept().config("containment = \"process-group\"").start();
    holds_up_no_next_agent(agent, &["setsid", "-w"], crash_and_wait).await;
}

/// Writes from memory that it never gets: pausing it does not have it let go of the lock.
const LOCKED_FOR_GOOD: &str = "import ctypes, fcntl, mmap, os, platform, struct
libc = ctypes.CDLL(None)
faults = libc.syscall({'x86_64': 323, 'aarch64': 282}[platform.machine()], os.O_CLOEXEC)
fcntl.ioctl(faults, 0xc018aa3f, struct.pack('QQQ', 0xaa, 0, 0))
memory = mmap.mmap(-1, 65536, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
fcntl.ioctl(faults, 0xc020aa00, struct.pack('QQQQ', address, 65536, 1, 0))
os.write(1, b'ready\\n')
libc.write(1, ctypes.c_void_p(address), 4096)";

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_be_paused_is_killed_and_nobody_else() {
    if !is_root() {
        eprintln!("skipped: userfaultfd(2) is for root");
        return;
    }
    let (agent, gate) = (kept(), Gate::new());
    let other = started(&agent, detached(&format!("echo ready; {}; echo after", gate.wait()))).await;
    let executor = agent.executor().await;
    loop {
        let command = Command::argv(["python3", "-c", LOCKED_FOR_GOOD]).on_disconnect(OnDisconnect::Detach);
        let execution = within(executor.execute(command.build().unwrap())).await.unwrap();
        if holds_up(&agent, execution.id(), "ready\n".len() as u64).await {
            break;
        }
    }
    crash_and_wait(&agent).await;
    let _open = gate.open();
    let (stdout, _, exited) = rest(&agent.executor().await, other.id(), 0).await;
    assert_eq!((&*stdout, exited.cause), ("ready\nafter\n", ExitCause::Exited(0)), "{}", agent.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn merged_output_stays_in_its_order() {
    let (agent, gate) = (kept(), Gate::new());
    let numbers = "for i in $(seq 500); do echo $i; echo $i >&2; done";
    let text = format!("echo ready; {numbers}; {}; {numbers}", gate.wait());
    let execution = started(&agent, detached(&text).merge_output(true)).await;
    crash_and_wait(&agent).await;
    let _open = gate.open();
    let (stdout, stderr, exited) = rest(&agent.executor().await, execution.id(), 6).await;
    let expected: String = (1..=500).chain(1..=500).map(|number| format!("{number}\n{number}\n")).collect();
    assert!(stdout == expected && stderr.is_empty(), "{stdout}, {stderr}");
    assert_eq!(exited.cause, ExitCause::Exited(0));
}

/// Each is as without a crash.
#[tokio::test(flavor = "multi_thread")]
async fn there_is_no_more_output_than_there_may_be() {
    let agent = kept();
    let mut totals = Vec::new();
    for crashes in [false, true] {
        let gates = [Gate::new(), Gate::new()];
        let [one, two] = gates.each_ref().map(Gate::wait);
        let text = format!("echo ready; seq 1000; {one}; seq 1000 >&2; {two}; seq 1000; seq 5000 >&2; exit 3");
        let execution = started(&agent, detached(&text).max_output_bytes(5000)).await;
        let id = execution.id();
        let mut open = Vec::new();
        for (gate, position) in gates.iter().zip([6 + 3893, 6 + 2 * 3893]) {
            written(&agent.executor().await, id, position).await;
            if crashes {
                crash_and_wait(&agent).await;
            }
            open.push(gate.open());
        }
        let (stdout, stderr, exited) = rest(&agent.executor().await, id, 0).await;
        assert_eq!(exited.cause, ExitCause::Exited(3));
        assert_eq!(
            (stdout.len() as u64, exited.stdout.bytes),
            (exited.stdout.bytes - exited.stdout.dropped_bytes, 6 + 2 * 3893)
        );
        assert_eq!(stderr.len() as u64, exited.stderr.bytes - exited.stderr.dropped_bytes);
        totals.push((stdout, stderr, exited.stdout, exited.stderr));
    }
    assert_eq!(totals[0], totals[1]);
    assert!(totals[0].3.dropped_bytes > 0, "{:?}", totals[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_it_ends_is_reported() {
    let agent = kept();
    let gate = Gate::new();
    let text = format!("cd /usr; echo ready; {}; cd /var; exit 4", gate.wait());
    let execution = started(&agent, detached(&text).report_working_directory(true)).await;
    crash_and_wait(&agent).await;
    let _open = gate.open();
    let (_, _, exited) = rest(&agent.executor().await, execution.id(), 0).await;
    assert_eq!((exited.cause, exited.working_directory.as_deref()), (ExitCause::Exited(4), Some("/var")));
    crash_and_wait(&agent).await;
    assert_eq!(rest(&agent.executor().await, execution.id(), 0).await.2, exited);
}
