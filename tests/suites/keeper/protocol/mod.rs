//! A keeper, and an agent that asks for what none would.

mod agent_user;
mod ahead;
mod held;
mod reexec;

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use futures_util::future::join_all;
use telexec_tests::{Syslog, is_root, program, until};
use tokio::time::timeout;

/// What an agent in Python begins with: its end of the socket, and messages as the keeper reads them.
const PRELUDE: &str = r#"
import array, os, socket, struct, sys, time
number, version = os.environ["TELEXEC_KEEPER"].split(":")
assert version == "9", version
keeper = socket.socket(fileno=int(number))
keeper.settimeout(20)
lives = sys.argv[1]
def life():
    with open(lives, "a") as file:
        file.write("x")
    return os.path.getsize(lives)
def text(value): return struct.pack("<I", len(value)) + value
def texts(values): return struct.pack("<I", len(values)) + b"".join(map(text, values))
def start(id, *argv, flags=0, joins=0, held=0, limit=2**64 - 1, by=2**64 - 1, purpose=b"test", env=(), cgroup=b"", ids=b""):
    return struct.pack("<BQBBBQQ", 3, id, flags, joins, held, limit, by) + ids + text(purpose) + text(b"/") + text(cgroup) + texts([argv[0]]) + texts(argv) + texts(env)
def ask(message, *descriptors): socket.send_fds(keeper, [message], descriptors)
def ready(): ask(b"\0")
def stopping(): ask(b"\1")
def release(id): ask(struct.pack("<BQ", 6, id))
def outlives(id): ask(struct.pack("<BQ", 4, id))
def forget(id): ask(struct.pack("<BQ", 8, id))
def close(id, number): ask(struct.pack("<BQB", 7, id, number))
# of what an earlier agent has left: (id, pid, numbers, descriptors) of each, and how some have ended
def left():
    all, ends = [], []
    while True:
        message, descriptors, _, _ = socket.recv_fds(keeper, 100, 16)
        if message == b"\4": return all, ends
        if message[0] == 3:
            id, pid, present = struct.unpack_from("<QiH", message, 1)
            all.append((id, pid, [number for number in range(16) if present >> number & 1], descriptors))
        else: ends.append(struct.unpack_from("<BQBBi", message))
def heard():
    message = keeper.recv(100)
    kind, id = struct.unpack_from("<BQ", message)
    if kind == 0: return "started", id, *struct.unpack_from("<i", message, 9)
    if kind == 1: return "not started", id, *struct.unpack_from("<Bi", message, 9)
    return "exited", id, *struct.unpack_from("<BBi", message, 9)
handed_over, ended = left()
out, into = os.pipe()
def runs(id, *argv, held=(), **more):
    ask(start(id, *argv, held=len(held), **more), into, into, *held)
    kind, started, pid = heard()
    assert (kind, started) == ("started", id), (kind, started)
    return pid
"#;

/// Runs a keeper with this agent, which is started again if it crashes, and says how often it has lived.
async fn keep(agent: &str) -> (Output, u64) {
    keep_as(&[], agent).await
}

/// With these arguments.
async fn keep_as(arguments: &[&str], agent: &str) -> (Output, u64) {
    let (mut keeper, directory) = keeper(arguments, agent);
    let output = timeout(Duration::from_secs(60), keeper.kill_on_drop(true).output());
    let output = output.await.expect("it ends").unwrap();
    (output, std::fs::metadata(directory.path().join("lives")).map_or(0, |file| file.len()))
}

/// It is to be started; and the directory in which its agents count their lives.
fn keeper(arguments: &[&str], agent: &str) -> (tokio::process::Command, tempfile::TempDir) {
    keeper_of(Command::new(program("telexec-keeper")), arguments, agent)
}

fn keeper_of(mut keeper: Command, arguments: &[&str], agent: &str) -> (tokio::process::Command, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    // also for an agent that is not root
    std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    keeper.args(arguments).args(["/usr/bin/env", "python3", "-c", &format!("{PRELUDE}{agent}")]);
    keeper.arg(directory.path().join("lives"));
    keeper.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    (keeper.into(), directory)
}

async fn holds(agent: &str) {
    let (output, lives) = keep(agent).await;
    assert!(output.status.success() && lives <= 1, "{lives} lives, {output:?}");
}

/// With the flag of a start, or of the keeper whatever the agent asks for.
#[tokio::test]
async fn privileges_cannot_be_gained_where_that_is_forbidden() {
    let agent = r#"
ready()
def said(id, flags):
    runs(id, b"/bin/sh", b"-c", b"grep NoNewPrivs: /proc/self/status", env=[b"PATH=/usr/bin:/bin"], flags=flags)
    assert heard() == ("exited", id, 1, 0, 0)
    release(id)
    return os.read(out, 100)
expected = b"NoNewPrivs:\t%d\n"
assert said(1, 4) == expected % 1
assert said(2, 0) == expected % int(sys.argv[2])
stopping()
"#;
    for (arguments, expected) in [(&[][..], "0"), (&["--no-new-privileges"][..], "1")] {
        let (mut keeper, directory) = keeper(arguments, agent);
        let output = timeout(Duration::from_secs(60), keeper.arg(expected).kill_on_drop(true).output());
        let output = output.await.expect("it ends").unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        drop(directory);
    }
}

#[tokio::test]
async fn it_says_what_becomes_of_what_it_starts() {
    holds(
        r#"
ready()
pid = runs(1, b"/bin/sh", b"-c", b"echo $A $PPID; exit 7", env=[b"A=b"])
assert heard() == ("exited", 1, 1, 0, 7)
assert os.read(out, 100) == b"b %d\n" % os.getppid()
# it is there until it is released
assert os.path.exists(f"/proc/{pid}")
release(1)
while os.path.exists(f"/proc/{pid}"): time.sleep(0.01)
pid = runs(2, b"/bin/sleep", b"300")
os.kill(pid, 9)
assert heard() == ("exited", 2, 0, 0, 9)
ask(start(3, b"/no/such/program"), into, into)
assert heard() == ("not started", 3, 12, 2)
# and with all three streams
given, giving = os.pipe()
ask(start(4, b"/bin/cat", flags=2), given, into, into)
assert heard()[0] == "started"
os.write(giving, b"through")
os.close(giving)
assert heard() == ("exited", 4, 1, 0, 0)
assert os.read(out, 100) == b"through"
stopping()
"#,
    )
    .await;
}

#[tokio::test]
async fn what_is_longer_than_a_message_comes_in_a_file() {
    holds(
        r#"
import fcntl
ready()
message = start(1, b"/bin/sh", b"-c", b"echo ${#A}", env=[b"A=" + b"x" * 100_000])
file = os.memfd_create("start", os.MFD_ALLOW_SEALING)
os.write(file, message)
in_file = struct.pack("<BQQ", 2, 1, len(message))
F_ADD_SEALS = 1033
fcntl.fcntl(file, F_ADD_SEALS, 2 | 4 | 8)
ask(in_file, into, into, file)
assert heard()[:2] == ("started", 1)
assert heard() == ("exited", 1, 1, 0, 0)
assert os.read(out, 100) == b"100000\n"
stopping()
"#,
    )
    .await;
}

/// It holds up nobody: the reports wait.
#[tokio::test]
async fn an_agent_that_does_not_listen_loses_nothing() {
    holds(
        r#"
ready()
many = 600
for id in range(many):
    ask(start(id, b"/bin/true"), into, into)
seen = {}
while sum(len(kinds) for kinds in seen.values()) < 2 * many:
    kind, id, *rest = heard()
    seen.setdefault(id, []).append(kind)
assert all(kinds == ["started", "exited"] for kinds in seen.values()) and len(seen) == many
for id in range(many): release(id)
stopping()
"#,
    )
    .await;
}

/// An error, and the keeper goes on.
/// Whoever waited for it has given up.
#[tokio::test]
async fn what_comes_too_late_is_not_started() {
    let agent = r#"
import time
ready()
now = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
ask(start(1, b"/bin/true", by=now - 1), into, into)
assert heard() == ("not started", 1, 0, 125), "ECANCELED"
runs(2, b"/bin/true", by=now + 60_000_000)
assert heard() == ("exited", 2, 1, 0, 0)
release(2)
stopping()
"#;
    holds(agent).await;
}

#[tokio::test]
async fn what_cannot_be_started_is_refused() {
    holds(
        r#"
ready()
# no cgroup, and none at all
ask(start(1, b"/bin/true", cgroup=b"/tmp"), into, into)
assert heard()[:3] == ("not started", 1, 2)
ask(start(1, b"/bin/true", cgroup=b"/no/such/cgroup"), into, into)
assert heard()[:3] == ("not started", 1, 2)
# descriptors that are missing, as where there is no room for them
ask(start(2, b"/bin/true"), into)
assert heard()[:3] == ("not started", 2, 0)
ask(struct.pack("<BQQ", 2, 3, 10))
assert heard()[:3] == ("not started", 3, 0)
# one that hangs on its way does not hold up others, and can be cancelled
os.mkfifo(lives + ".fifo")
ask(start(4, lives.encode() + b".fifo"), into, into)
assert heard()[:3] == ("not started", 4, 12)
assert runs(5, b"/bin/true") > 0
assert heard()[:2] == ("exited", 5)
# unknown ones
for kind in (4, 5, 6, 8): ask(struct.pack("<BQ", kind, 99))
assert runs(6, b"/bin/true") > 0
stopping()
"#,
    )
    .await;
}

/// Each is the end of one agent, and not of its keeper.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_does_not_hold_to_the_protocol_is_ended() {
    let kept = |message: &str| {
        let agent = format!(
            r#"
import fcntl
fifo, sealed = os.pipe()[0], os.memfd_create("start", os.MFD_ALLOW_SEALING)
os.write(sealed, b"\0")
fcntl.fcntl(sealed, 1033, 2 | 4 | 8)
ready()
if life() == 1:
    pid = runs(1, b"/bin/sleep", b"300")
    with open(lives + ".pid", "w") as file: file.write(str(pid))
    ask({message})
    time.sleep(20)
    sys.exit("it was not ended")
pid = open(lives + ".pid").read()
while os.path.exists(f"/proc/{{pid}}"): time.sleep(0.01)
stopping()
"#
        );
        async move { keep(&agent).await }
    };
    let wrong = [
        // as if it were gone
        r#"b"""#,
        r#"b"\7""#,
        r#"b"\xff" * 1000"#,
        r#"b"x" * 100_000"#,
        r#"b"\3""#,
        r#"b"\0\0""#,
        r#"start(2, b"/bin/true") + b"x", into, into"#,
        // a stream for what has a terminal, and an unknown flag
        r#"start(2, b"/bin/true", flags=1 | 2), into"#,
        r#"start(2, b"/bin/true", flags=128), into, into"#,
        r#"start(2, b"/bin/true", flags=128), into, into"#,
        // an id that is in use
        r#"start(1, b"/bin/true"), into, into"#,
        // a file that could hold it up; one that is shorter; one with something else in it; a very long one
        r#"struct.pack("<BQQ", 2, 2, 10), into, into, fifo"#,
        r#"struct.pack("<BQQ", 2, 2, 100), into, into, sealed"#,
        r#"struct.pack("<BQQ", 2, 2, 1), into, into, sealed"#,
        r#"struct.pack("<BQQ", 2, 2, 1 << 60), into, into, sealed"#,
    ];
    for (message, (output, lives)) in wrong.iter().zip(join_all(wrong.map(kept)).await) {
        assert!(output.status.success() && lives == 2, "{message}: {lives} lives, {output:?}");
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(log.matches("violated the protocol").count(), 1, "{message}: {log}");
    }
}

/// What the agent says of it is no line of its own.
#[tokio::test]
async fn starts_are_logged_if_that_is_asked_for() {
    let agent = r#"
ready()
with open(lives + ".pids", "w") as file:
    for id, purpose in enumerate([b"one", b"\n<86>telexec-keeper[1]: forged\r\x1b[0m\xff", b"x" * 20_000]):
        file.write("%d\n" % runs(id, b"/bin/true", purpose=purpose))
        assert heard()[:2] == ("exited", id)
stopping()
"#;
    let syslog = Syslog::new();
    let (mut keeper, directory) = keeper(&["--syslog", syslog.path().to_str().unwrap()], agent);
    let output = timeout(Duration::from_secs(60), keeper.kill_on_drop(true).output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{output:?}");
    let purposes =
        [r#""one""#, r#""\n<86>telexec-keeper[1]: forged\r\u{1b}[0m�""#, &format!("\"{}\"", "x".repeat(384))];
    let pids = std::fs::read_to_string(directory.path().join("lives.pids")).unwrap();
    let uid = rustix::process::geteuid();
    let start = |(pid, purpose)| format!("start of process {pid} as uid {uid} for {purpose}");
    let expected: Vec<_> = pids.lines().zip(purposes).map(start).collect();
    until("all are logged", async || syslog.lines().lines().count() == 3).await;
    let lines = syslog.lines();
    let logged: Vec<_> = lines.lines().map(|line| line.split_once("]: ").unwrap().1).collect();
    assert_eq!(logged, expected);
}

/// Also where the keeper has more files open than a command may have.
#[tokio::test]
async fn a_file_is_run_that_only_the_agent_has_open() {
    holds(
        r#"
ready()
many = 1100
for id in range(many):
    ask(start(id, b"/bin/sleep", b"60"), into, into)
    assert heard()[0] == "started"
true = os.open("/bin/true", os.O_PATH)
ask(start(many, b"/no/such/program", flags=16), into, into, true)
assert heard()[:2] == ("started", many)
assert heard() == ("exited", many, 1, 0, 0)
stopping()
"#,
    )
    .await;
}

#[tokio::test]
async fn nothing_is_started_as_others_than_those_that_it_was_given() {
    if !is_root() {
        return;
    }
    let agent = r#"
ready()
def as_user(id, uid, gid, *groups):
    ids = struct.pack("<III", uid, gid, len(groups)) + b"".join(struct.pack("<I", group) for group in groups)
    ask(start(id, b"/bin/true", flags=8, ids=ids), into, into)
    return heard()[0]
allowed = [(65534, 65534), (65534, 65534, 65534), (65534, 65533, 65533, 65534)]
refused = [(0, 0), (65534, 0), (65534, 65534, 0), (65534, 65534, 65533, 27), (1, 65534), (4294967295, 65534)]
for id, user in enumerate(allowed):
    assert as_user(id, *user) == "started", user
    assert heard()[0] == "exited"
for id, user in enumerate(refused):
    assert as_user(100 + id, *user) == "not started", user
# as the keeper itself
ask(start(200, b"/bin/true"), into, into)
assert heard() == ("not started", 200, 10, 1)
stopping()
"#;
    let (output, lives) = keep_as(&["--command-users", "65534:65534:65533;7:7:"], agent).await;
    assert!(output.status.success() && lives == 0, "{output:?}");
    // a dynamic user: with private directories, which are root's to give
    let agent = r#"
ready()
first, last = 0x78000000, 0x7ffdffff
def as_user(id, uid, gid, *groups):
    ids = struct.pack("<QIII", 1 << 20, uid, gid, len(groups)) + b"".join(struct.pack("<I", group) for group in groups)
    ask(start(id, b"/bin/sh", b"-c", b"echo $(id -u) $(stat -c %u%a /tmp) > /tmp/x; cat /tmp/x", flags=8 | 128, ids=ids), into, into)
    return heard()[0]
for id, uid in enumerate((first, last)):
    assert as_user(id, uid, uid) == "started", uid
    assert heard()[:4] == ("exited", id, 1, 0)
    assert os.read(out, 100) == b"%d %d700\n" % (uid, uid)
refused = [(first, 0), (first, first, 0), (first - 1, first - 1), (last + 1, last + 1), (0, 0)]
for id, user in enumerate(refused):
    assert as_user(100 + id, *user) == "not started", user
# the one not without the other
ids = struct.pack("<III", first, first, 0)
ask(start(200, b"/bin/true", flags=8, ids=ids), into, into)
assert heard() == ("not started", 200, 10, 1)
ask(start(201, b"/bin/true", flags=8 | 128, ids=struct.pack("<QIII", 1 << 20, 7, 7, 0)), into, into)
assert heard() == ("not started", 201, 10, 1)
ask(start(202, b"/bin/sh", b"-c", b"grep NoNewPrivs /proc/self/status", flags=8 | 128, ids=struct.pack("<Q", 1 << 20) + ids), into, into)
assert heard()[0] == "started" and heard()[:4] == ("exited", 202, 1, 0)
assert os.read(out, 100) == b"NoNewPrivs:\t1\n"
stopping()
"#;
    let (output, lives) = keep_as(&["--command-users", "7:7:;dynamic"], agent).await;
    assert!(output.status.success() && lives == 0, "{output:?}");
    let (output, _) = keep_as(&["--command-users", "nobody"], agent).await;
    assert_eq!(output.status.code(), Some(64), "{output:?}");
}

/// What does not get better is told to whoever has started the keeper.
#[tokio::test]
async fn agents_that_no_longer_serve_are_given_up() {
    let (output, lives) = keep("if life() == 1:\n    ready()\n    sys.exit(3)\nsys.exit(78)").await;
    assert_eq!((output.status.code(), lives), (Some(78), 2), "{output:?}");
    let (output, lives) = keep("if life() == 1:\n    ready()\nsys.exit(3)").await;
    assert_eq!((output.status.code(), lives), (Some(3), 11), "{output:?}");
}

#[test]
fn it_says_how_it_is_started() {
    let output = Command::new(program("telexec-keeper")).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("is started by telexecd"));
    for (flag, said) in [("--help", "is started by telexecd"), ("-V", env!("CARGO_PKG_VERSION"))] {
        let output = Command::new(program("telexec-keeper")).arg(flag).output().unwrap();
        assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains(said), "{output:?}");
    }
}

#[tokio::test]
async fn an_agent_that_never_serves_is_replaced() {
    let agent = r#"
match life():
    case 1:
        ready()
        os.kill(os.getpid(), 9)
    case 2: time.sleep(300)
    case _:
        ready()
        stopping()
"#;
    let (mut keeper, directory) = keeper(&[], agent);
    let output = timeout(Duration::from_secs(120), keeper.kill_on_drop(true).output()).await.expect("it ends").unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && log.contains("does not serve after 60 s"), "{log}");
    assert_eq!(std::fs::metadata(directory.path().join("lives")).unwrap().len(), 3);
}
