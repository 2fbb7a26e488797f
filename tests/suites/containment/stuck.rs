//! Processes whose memory does not answer those who read it, such as their environment in /proc.

use std::io::{BufRead, BufReader};
use std::process::{Command as Program, Stdio};
use std::time::Duration;

use telexec_executor::{Command, CommandBuilder, Executor, ExitCause, ListQuery, Signal};
use telexec_tests::{
    Agent, Gate, HeldEnvironment, MARK, StuckProcess, directory, exit_of, is_root, marker, processes_with, run, until,
    until_output, within,
};

/// An agent in a mount namespace of its own; `None`: it cannot be had here.
fn agent(containment: &str) -> Option<Agent> {
    let builder = Agent::builder().through(["unshare", "--mount"]).config(format!("containment = {containment:?}"));
    let agent = if is_root() { builder.try_start().ok() } else { None };
    if agent.is_none() {
        eprintln!("skipped: no {containment} here, or not root");
    }
    agent
}

/// Two processes, one of them in another session.
fn two() -> CommandBuilder {
    Command::shell("setsid sleep 300 & sleep 300").kill_grace(Duration::ZERO)
}

/// Ends, a timeout, lists and gets.
async fn all_goes_on(executor: &impl Executor) {
    let timed_out = run(executor, two().timeout(Duration::from_millis(100))).await.unwrap().exited;
    assert_eq!((timed_out.cause, timed_out.surviving_processes), (ExitCause::TimedOut, 0));
    let lingering = run(executor, Command::shell("setsid sleep 300 >/dev/null 2>&1 &")).await.unwrap();
    assert_eq!(lingering.exited.surviving_processes, 1);
    let id = lingering.started.id;
    assert_eq!(within(executor.get(&id)).await.unwrap().processes, 1);
    assert_eq!(within(executor.list(ListQuery::default())).await.unwrap().executions.len(), 1);
    within(executor.signal(&id, Signal::KILL)).await.unwrap();
    until("the survivor has ended", async || within(executor.get(&id)).await.unwrap().processes == 0).await;
    let cancelled = within(executor.execute(two().build().unwrap())).await.unwrap();
    let id = cancelled.id().clone();
    drop(cancelled);
    until("it has ended", async || within(executor.get(&id)).await.unwrap().exited.is_some()).await;
}

async fn a_stuck_process_holds_up_nobody(containment: &str) {
    let Some(mut agent) = agent(containment) else { return };
    let executor = agent.executor().await;
    let strangers: Vec<_> = (0..2).map(|_| StuckProcess::new(&agent)).collect();
    all_goes_on(&executor).await;
    let log = agent.log();
    assert!(!log.contains("takes too long"), "{log}");
    // each is found out once
    for stranger in &strangers {
        let warning = format!("since its memory does not answer pid={}\n", stranger.id());
        assert_eq!(log.matches(&warning).count(), 1, "{log}");
    }
    assert!(agent.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_process_holds_up_nobody_with_cgroup_v2() {
    a_stuck_process_holds_up_nobody("cgroup-v2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_process_holds_up_nobody_with_cgroup_v1() {
    a_stuck_process_holds_up_nobody("cgroup-v1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_process_holds_up_nobody_with_process_group() {
    a_stuck_process_holds_up_nobody("process-group").await;
}

/// Text for a shell that leaves an orphan in a session of its own, whose environment alone shows whose it is, and continues.
const ORPHAN: &str = "(setsid sh -c 'echo > there; exec sleep 300' >/dev/null 2>&1 &)
    until [ -e there ]; do sleep 0.01; done; echo ready; ";

/// The environment of such an orphan does not answer before the agent has said so; then, it does.
async fn an_orphan_that_answers_late_is_found(forced: bool) {
    let Some(mut agent) = agent("process-group") else { return };
    let (executor, mark, directory, gate) = (agent.executor().await, marker(), directory(), Gate::new());
    let command = Command::shell(format!("{ORPHAN}{}", gate.wait())).kill_grace(Duration::ZERO);
    let command = command.env(MARK, &mark).working_directory(directory.path().to_str().unwrap()).build().unwrap();
    let mut execution = within(executor.execute(command)).await.unwrap();
    until_output(&mut execution, "ready\n").await;
    let (id, main) = (execution.id().clone(), execution.started().pid);
    let others = || processes_with(&mark).into_iter().filter(|process| process.pid.unsigned_abs() != main);
    let orphan = others().find(|process| process.name == "sleep" && process.session == process.pid).unwrap();
    let environment = HeldEnvironment::of(orphan.pid.unsigned_abs(), &agent);
    let exited = tokio::spawn(exit_of(execution));
    let _open = (!forced).then(|| gate.open());
    if forced {
        within(executor.signal(&id, Signal::KILL)).await.unwrap();
    }
    let warning = format!("since its memory does not answer pid={}\n", orphan.pid);
    until("it was given up", async || agent.log().contains(&warning)).await;
    environment.release();
    let exited = within(exited).await.unwrap();
    assert_eq!(exited.surviving_processes, u32::from(!forced));
    assert_eq!(others().count(), usize::from(!forced));
    if !forced {
        within(executor.signal(&id, Signal::KILL)).await.unwrap();
        until("the survivor has ended", async || others().count() == 0).await;
    }
    assert!(agent.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_that_answers_late_is_ended() {
    an_orphan_that_answers_late_is_found(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_that_answers_late_is_a_survivor() {
    an_orphan_that_answers_late_is_found(false).await;
}

/// A file system that never answers a read, and a process that waits for it in mmap(2), and so with its memory locked. Prints
/// the process's id, and ends with its input.
const STUCK: &str = r#"
import ctypes, os, signal, struct, sys, threading
signal.alarm(30)
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
NEWNS, PRIVATE = 0x20000, 0x4000 | 0x40000
check(libc.unshare(NEWNS))
check(libc.mount(None, b"/", None, PRIVATE, None))
fuse = os.open("/dev/fuse", os.O_RDWR)
options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % fuse
check(libc.mount(b"stuck", sys.argv[1].encode(), b"fuse", 0, options))
LOOKUP, FORGET, GETATTR, OPEN, READ, INIT, ENOSYS = 1, 2, 3, 14, 15, 26, 38
# how a file is opened the first time, and from then on
opened, DIRECT_IO = [0], 1
is_read, reads = os.pipe()
is_reading = threading.Event()
def attributes(node):
    mode, size = (0o40755, 0) if node == 1 else (0o100644, 1 << 20)
    return struct.pack("<QQQQQQ10I", node, size, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
def serve():
    while True:
        _, kind, number, node = struct.unpack_from("<IIQQ", os.read(fuse, 1 << 20))
        error, body = 0, b""
        if kind == INIT: body = struct.pack("<IIIIHHIIHHI28x", 7, 31, 65536, 0, 16, 12, 65536, 1, 1, 0, 0)
        elif kind == LOOKUP: body = struct.pack("<QQQQII", 2, 0, 1, 1, 0, 0) + attributes(2)
        elif kind == GETATTR: body = struct.pack("<QII", 1, 0, 0) + attributes(node)
        elif kind == OPEN: body = struct.pack("<QII", 1, opened.pop() if opened else DIRECT_IO, 0)
        elif kind == READ: os.write(reads, b"."); is_reading.set(); continue
        elif kind == FORGET: continue
        else: error = ENOSYS
        os.write(fuse, struct.pack("<IiQ", 16 + len(body), -error, number) + body)
# it has no file of its own open: it could not end before itself had answered
child = os.fork()
if child == 0:
    signal.alarm(30)
    os.close(fuse)
    cached, direct = [os.open(sys.argv[1] + "/file", os.O_RDONLY) for _ in range(2)]
    threading.Thread(target=os.read, args=(cached, 1), daemon=True).start()
    os.read(is_read, 1)
    # waits for the page that is being read, with all of its memory locked
    READABLE, PRIVATE = 1, 2
    libc.mmap(None, ctypes.c_size_t(4096), READABLE, PRIVATE, direct, ctypes.c_long(0))
threading.Thread(target=serve, daemon=True).start()
is_reading.wait()
while open(f"/proc/{child}/stat").read().rsplit(")", 1)[1].split()[0] != "D": pass
print(child, flush=True)
sys.stdin.read()
os.kill(child, signal.SIGKILL)
os._exit(0)
"#;

/// The same with a process that is stuck for everybody on the machine, and so for no longer than it takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_file_system_in_a_process_holds_up_nobody() {
    if !is_root() || !std::path::Path::new("/dev/fuse").exists() {
        eprintln!("skipped: no FUSE here, or not root");
        return;
    }
    let mut agent = Agent::builder().config("containment = \"process-group\"").start();
    let (executor, directory) = (agent.executor().await, directory());
    let mut program = Program::new("python3");
    program.args(["-c", STUCK]).arg(directory.path());
    let mut stuck = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut pid = String::new();
    BufReader::new(stuck.stdout.take().unwrap()).read_line(&mut pid).unwrap();
    assert!(pid.trim().parse::<u32>().is_ok(), "{pid:?}");
    all_goes_on(&executor).await;
    drop(stuck.stdin.take());
    assert!(stuck.wait().unwrap().success());
    assert!(agent.log().contains(&format!("since its memory does not answer pid={pid}")), "{}", agent.log());
    assert!(agent.terminate().await.success());
}
