//! An agent that is not root, and asks for what would make it more than that.

use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use telexec_tests::{Subtree, is_root, within};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::keeper;

/// Of whom nothing else runs.
const UID: u32 = 5;

/// What such agents in Python begin with.
const SEPARATE: &str = r#"
import signal
assert os.getresuid() == (UID,) * 3 and os.getresgid() == (60, 60, 60) and os.getgroups() == [60]
CHOWN, CREDENTIALS = 64, 8
DAEMON = struct.pack("<III", 1, 1, 0)
EXECUTIONS = DIRECTORY + "/executions"
leaf = EXECUTIONS + "/leaf"
if not os.path.exists(leaf): os.mkdir(leaf)
def runs_in(id, *argv, files=(), **more):
    ask(start(id, *argv, **{"cgroup": leaf.encode(), **more}), into, into, *files)
    return heard()
def send(pid, number): ask(struct.pack("<Bi", 11, number), os.pidfd_open(pid))
def refused(id, step, *argv, **more):
    answer = runs_in(id, *argv, **more)
    assert answer == ("not started", id, step, 1), answer
CGROUP, SETUID = 2, 10
# it is started again, whatever it ends with, until its keeper is asked to end
if life() > 1:
    ready()
    print("again", flush=True)
    time.sleep(60)
ready()
"#;

async fn holds(agent: &str) {
    holds_as(UID, agent).await;
}

/// Runs such an agent, which says at last that all was as it expects. `victim` is a process that is none of its business.
async fn holds_as(uid: u32, agent: &str) {
    let Some(subtree) = Subtree::of_agent_user(uid).filter(|_| is_root()) else { return };
    let directory = subtree.path().to_str().unwrap();
    let mut victim = Command::new("sleep").arg("300").spawn().unwrap();
    let values = [("DIRECTORY", directory), ("VICTIM", &victim.id().to_string())];
    let ids = format!("{uid}:60:60");
    let values: String = values.iter().map(|(name, value)| format!("{name} = {value:?}\n")).collect();
    let arguments = ["--command-users", "0:0:;1:1:", "--agent-user", &ids, directory];
    let (mut keeper, _lives) =
        keeper(&arguments, &format!("UID = {uid}\n{values}{SEPARATE}{agent}\nprint('held', flush=True)"));
    let mut keeper = keeper.kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(keeper.stdout.take().unwrap()).lines();
    let mut said = Vec::new();
    while said.last().is_none_or(|line| line != "again") {
        said.extend(within(lines.next_line()).await.unwrap());
    }
    let pid = Pid::from_raw(i32::try_from(keeper.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let output = within(keeper.wait_with_output()).await.unwrap();
    assert_eq!(said, ["held", "again"], "{output:?}");
    assert!(victim.try_wait().unwrap().is_none(), "it runs on");
    victim.kill().unwrap();
    victim.wait().unwrap();
}

#[tokio::test]
async fn commands_run_in_their_cgroups_and_as_others() {
    holds(
        r#"
kind, id, pid = runs_in(1, b"/bin/sh", b"-c", b"id -u; echo again > /dev/stdout", flags=CREDENTIALS, ids=DAEMON)
assert kind == "started" and heard() == ("exited", 1, 1, 0, 0)
assert os.read(out, 100) == b"1\nagain\n"
# as itself, as others than were allowed, and elsewhere
refused(2, SETUID, b"/bin/true", flags=CREDENTIALS, ids=struct.pack("<III", UID, 60, 0))
refused(3, SETUID, b"/bin/true", flags=CREDENTIALS, ids=struct.pack("<III", 2, 2, 0))
above, agents, far = DIRECTORY, DIRECTORY + "/agent", os.path.dirname(DIRECTORY)
for path in ("", above, agents, far, EXECUTIONS, leaf + "/..", leaf + "/../../agent", leaf + "/../..", "leaf", "/proc/self"):
    id, step, *_ = runs_in(4, b"/bin/true", cgroup=path.encode())[1:]
    assert (id, step) == (4, CGROUP), path
ask(start(5, b"/bin/true", joins=1, cgroup=leaf.encode()), into, into, os.open("/tmp", os.O_RDONLY))
assert heard() == ("not started", 5, CGROUP, 1)
"#,
    )
    .await;
}

/// Also one that has left its cgroup for another, as a login does.
#[tokio::test]
async fn what_it_started_is_signalled_and_nothing_else() {
    holds(
        r#"
def ends_by(id, number, pid):
    send(pid, number)
    assert heard() == ("exited", id, 0, 0, number)
pid = runs_in(1, b"/bin/sleep", b"300")[2]
ends_by(1, signal.SIGUSR1, pid)
pid = runs_in(2, b"/bin/sleep", b"300", flags=CREDENTIALS, ids=DAEMON)[2]
ends_by(2, signal.SIGTERM, pid)
away = b"echo $$ > %s/cgroup.procs; echo away; exec sleep 300" % os.path.dirname(DIRECTORY).encode()
pid = runs_in(3, b"/bin/sh", b"-c", away)[2]
assert os.read(out, 100) == b"away\n"
ends_by(3, signal.SIGKILL, pid)
for other in (int(VICTIM), os.getppid(), 1):
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, 0, -1, 1000): send(other, number)
ask(struct.pack("<Bi", 11, 9))
ask(struct.pack("<Bi", 11, 9), os.open("/dev/null", os.O_RDONLY))
ask(struct.pack("<Bi", 11, 9), os.open(f"/proc/{VICTIM}", os.O_RDONLY))
# the keeper is there
assert runs_in(9, b"/bin/true")[0] == "started"
"#,
    )
    .await;
}

#[tokio::test]
async fn nothing_is_given_away_that_is_not_its_own() {
    holds(
        r#"
def file(name, mode=0o600, content=b""):
    path = f"{lives}.{name}"
    made = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(made, content)
    os.fchmod(made, mode)
    return made
def gives(id, given):
    ask(start(id, b"/bin/true", flags=CHOWN | CREDENTIALS, ids=DAEMON, cgroup=leaf.encode()), into, into, given)
    return heard()
own = file("own", 0o640)
assert gives(1, own)[0] == "started" and heard()[0] == "exited"
assert (os.fstat(own).st_uid, os.fstat(own).st_gid) == (1, 60)
linked = file("linked")
os.link(f"{lives}.linked", f"{lives}.other")
fifo = f"{lives}.fifo"
os.mkfifo(fifo, 0o600)
others = [file("open", 0o644), file("writable", 0o620), file("program", 0o700), file("setuid", 0o4600), file("full", content=b"x"),
    linked, os.open("/etc/passwd", os.O_RDONLY), os.open("/tmp", os.O_RDONLY), os.memfd_create("x"), os.open(fifo, os.O_RDWR), own]
for id, other in enumerate(others):
    before = os.fstat(other).st_uid
    assert gives(10 + id, other) == ("not started", 10 + id, SETUID, 1), id
    assert os.fstat(other).st_uid == before
# nor is anything the terminal of a command but the other side of one of its own
for id, other in enumerate((os.open("/dev/null", os.O_RDWR), os.openpty()[0], into)):
    ask(start(60 + id, b"/bin/true", flags=1 | CREDENTIALS, ids=DAEMON, cgroup=leaf.encode()), other)
    assert heard()[:2] == ("not started", 60 + id)
ask(start(70, b"/bin/true", flags=1 | CREDENTIALS, ids=DAEMON, cgroup=leaf.encode()), os.openpty()[1])
assert heard()[0] == "started" and heard()[0] == "exited"
# nor as a stream
passwd = os.open("/etc/passwd", os.O_RDONLY)
ask(start(50, b"/bin/true", flags=2 | CREDENTIALS, ids=DAEMON, cgroup=leaf.encode()), passwd, into, into)
assert heard()[0] == "started" and heard()[0] == "exited"
assert os.fstat(passwd).st_uid == 0
"#,
    )
    .await;
}

/// What is slow to close is closed elsewhere; and a busy file holds up its own start alone.
#[tokio::test]
async fn what_it_passes_holds_nothing_up() {
    holds(
        r#"
def lingering():
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    client.setblocking(False)
    try:
        while True: client.send(b"x" * 65536)
    except BlockingIOError: pass
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 30000))
    return listener, client
listener, client = lingering()
assert runs_in(1, b"/bin/sleep", b"300", held=1, files=[client.fileno()])[0] == "started"
passed = socket.dup(client.fileno())
client.detach()
os.close(passed)
close(1, 0)
assert runs_in(2, b"/bin/true")[0] == "started" and heard()[0] == "exited"
"#,
    )
    .await;
}

/// More than a message may have, of which the kernel would close the rest.
#[tokio::test]
async fn too_much_at_once_is_the_end_of_it_alone() {
    holds(
        r#"
print("held", flush=True)
ask(start(1, b"/bin/true", cgroup=leaf.encode()), *[into] * 41)
time.sleep(20)
sys.exit("it was not ended")
"#,
    )
    .await;
}

/// It stays where it is, and so does what it leaves there.
#[tokio::test]
async fn it_does_not_leave_its_cgroup_and_leaves_nothing_in_it() {
    // it stops all of its user
    holds_as(
        45_005,
        r#"
for path in (leaf, EXECUTIONS, DIRECTORY):
    try:
        with open(path + "/cgroup.procs", "w") as file: file.write("0")
        sys.exit(f"it is in {path}")
    except PermissionError: pass
for path in (DIRECTORY + "/other", DIRECTORY + "/agent/other"):
    try:
        os.mkdir(path)
        sys.exit(f"it has made {path}")
    except PermissionError: pass
try:
    os.open(DIRECTORY + "/agent/cgroup.freeze", os.O_WRONLY)
    sys.exit("it can be frozen")
except PermissionError: pass
assert os.getsid(0) == os.getpid() != os.getppid()
# it would stop the next one on its way
agent = os.getpid()
if os.fork() == 0:
    while os.getppid() == agent: pass
    while True: os.kill(-1, signal.SIGSTOP)
"#,
    )
    .await;
}
