//! A keeper, and an agent that asks for what none would.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use futures_util::future::join_all;
use telexec_tests::{is_root, program};
use tokio::time::timeout;

/// What an agent in Python begins with: its end of the socket, and messages as the keeper reads them.
const PRELUDE: &str = r#"
import array, os, socket, struct, sys, time
number, version = os.environ["TELEXEC_KEEPER"].split(":")
assert version == "2", version
keeper = socket.socket(fileno=int(number))
keeper.settimeout(20)
lives = sys.argv[1]
def life():
    with open(lives, "a") as file:
        file.write("x")
    return os.path.getsize(lives)
def text(value): return struct.pack("<I", len(value)) + value
def texts(values): return struct.pack("<I", len(values)) + b"".join(map(text, values))
def start(id, *argv, flags=0, joins=0, held=0, env=()):
    return struct.pack("<BQBBB", 3, id, flags, joins, held) + text(b"/") + texts([argv[0]]) + texts(argv) + texts(env)
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

/// What agents in Python begin with that leave something to the next one.
const HOLDS: &str = r#"
SURVIVES = 32
def held(content):
    file = os.memfd_create("held")
    os.write(file, content)
    return file
def content(file): return os.pread(file, 100, 0)
# what the keeper has for this agent: the ids of processes that run, and of those that do not, with what is held
def has(): return [(id, pid > 0, numbers, [content(file) for file in files]) for id, pid, numbers, files in handed_over]
# once the keeper has done what it was asked for
def crash():
    ask(start(1 << 40, b"/no/such/program"), into, into)
    while heard()[:2] != ("not started", 1 << 40): pass
    os.kill(os.getpid(), 9)
def note(*values):
    with open(lives + ".noted", "w") as file: file.write(" ".join(map(str, values)))
def noted(): return [int(word) for word in open(lives + ".noted").read().split()]
def await_end_of(pid):
    while os.path.exists(f"/proc/{pid}"): time.sleep(0.01)
"#;

/// Runs a keeper with this agent, which is started again if it crashes, and says how often it has lived.
async fn keep(agent: &str) -> (Output, u64) {
    keep_as(&[], agent).await
}

/// With these arguments.
async fn keep_as(arguments: &[&str], agent: &str) -> (Output, u64) {
    let directory = tempfile::tempdir().unwrap();
    let lives = directory.path().join("lives");
    let mut keeper = Command::new(program("telexec-keeper"));
    keeper.args(arguments).args(["/usr/bin/env", "python3", "-c", &format!("{PRELUDE}{agent}")]).arg(&lives);
    keeper.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = timeout(Duration::from_secs(60), tokio::process::Command::from(keeper).kill_on_drop(true).output());
    let output = output.await.expect("it ends").unwrap();
    (output, std::fs::metadata(lives).map_or(0, |file| file.len()))
}

async fn holds(agent: &str) {
    let (output, lives) = keep(agent).await;
    assert!(output.status.success() && lives <= 1, "{lives} lives, {output:?}");
}

/// For an agent that is killed, and whose next lives go on from there.
async fn holds_for(expected: u64, agent: &str) {
    let (output, lives) = keep(&format!("{HOLDS}{agent}")).await;
    assert!(output.status.success() && lives == expected, "{lives} lives, {output:?}");
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
assert heard() == ("not started", 3, 10, 2)
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
#[tokio::test]
async fn what_cannot_be_started_is_refused() {
    holds(
        r#"
ready()
# a birthplace that is no cgroup
ask(start(1, b"/bin/true", flags=4), into, into, os.open("/tmp", os.O_RDONLY))
assert heard()[:3] == ("not started", 1, 2)
# descriptors that are missing, as where there is no room for them
ask(start(2, b"/bin/true"), into)
assert heard()[:3] == ("not started", 2, 0)
ask(struct.pack("<BQQ", 2, 3, 10))
assert heard()[:3] == ("not started", 3, 0)
# one that hangs on its way does not hold up others, and can be cancelled
os.mkfifo(lives + ".fifo")
ask(start(4, lives.encode() + b".fifo"), into, into)
assert heard()[:3] == ("not started", 4, 10)
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
        assert_eq!(log.matches("what cannot be asked for").count(), 1, "{message}: {log}");
    }
}

#[tokio::test]
async fn what_is_held_comes_back_with_its_process_and_how_that_has_ended() {
    holds_for(
        3,
        r#"
ready()
match life():
    case 1:
        assert (handed_over, ended) == ([], [])
        long = runs(7, b"/bin/sleep", b"300", flags=SURVIVES, held=[held(b"a"), held(b"b"), held(b"c")])
        short = runs(3, b"/bin/sh", b"-c", b"exit 5", flags=SURVIVES, held=[held(b"d")])
        assert heard() == ("exited", 3, 1, 0, 5)
        # and one that ends while no agent is there
        outlived = runs(5, b"/bin/sh", b"-c", b"kill -9 $$", held=[held(b"e")])
        assert heard() == ("exited", 5, 0, 0, 9)
        outlives(5)
        note(long, short, outlived)
        crash()
    case 2 | 3 as lived:
        long, short, outlived = noted()
        assert [one[:2] for one in handed_over] == [(3, short), (5, outlived), (7, long)], handed_over
        assert ended == [(2, 3, 1, 0, 5), (2, 5, 0, 0, 9)], ended
        files = {id: (numbers, [content(file) for file in files]) for id, _, numbers, files in handed_over}
        assert files == {7: ([0, 1, 2], [b"a", b"b", b"c"]), 3: ([0], [b"d"]), 5: ([0], [b"e"])}, files
        # it is the same file
        os.pwrite(handed_over[2][3][1], b"b", 0)
        assert all(os.path.exists(f"/proc/{pid}") for pid in noted())
        if lived == 2: crash()
        # they are this agent's as if it had started them
        os.kill(long, 9)
        assert heard() == ("exited", 7, 0, 0, 9)
        for id in (3, 5, 7): release(id)
        for pid in noted(): await_end_of(pid)
        stopping()
"#,
    )
    .await;
}

#[tokio::test]
async fn what_is_closed_released_or_forgotten_does_not_come_back() {
    holds_for(
        3,
        r#"
ready()
match life():
    case 1:
        for id in (1, 2, 3, 4):
            runs(id, b"/bin/sleep", b"300", flags=SURVIVES, held=[held(b"a"), held(b"b"), held(b"c")])
        close(1, 1)
        # again; and what there is not
        for number in (1, 3, 255): close(1, number)
        for number in (0, 1, 2): close(2, number)
        bound = runs(5, b"/bin/sleep", b"300", flags=SURVIVES, held=[held(b"a")])
        forget(5)
        ends = []
        for id in (11, 12, 13, 14):
            ends.append(runs(id, b"/bin/true", flags=SURVIVES, held=[held(b"a"), held(b"b")]))
            assert heard()[:2] == ("exited", id)
        # the first is the one that would stay
        close(14, 0)
        for id in (11, 12, 14): release(id)
        forget(12)
        forget(13)
        note(bound, *ends)
        crash()
    case 2:
        all = [b"a", b"b", b"c"]
        running = [(1, True, [0, 2], [b"a", b"c"]), (2, True, [], []), (3, True, [0, 1, 2], all), (4, True, [0, 1, 2], all)]
        assert has() == [*running, (11, False, [0], [b"a"])], has()
        assert ended == []
        for pid in noted(): await_end_of(pid)
        # also by an agent that has not started it
        forget(3)
        forget(11)
        close(4, 2)
        note(handed_over[2][1])
        crash()
    case 3:
        expected = [(1, True, [0, 2], [b"a", b"c"]), (2, True, [], []), (4, True, [0, 1], [b"a", b"b"])]
        assert has() == expected, has()
        for pid in noted(): await_end_of(pid)
        stopping()
"#,
    )
    .await;
}

#[tokio::test]
async fn what_is_bound_or_was_not_started_leaves_nothing() {
    holds_for(
        2,
        r#"
ready()
if life() == 1:
    bound = runs(1, b"/bin/sleep", b"300", held=[held(b"a")])
    # nothing is held for it
    empty = runs(2, b"/bin/sleep", b"300", flags=SURVIVES)
    ask(start(3, b"/no/such/program", flags=SURVIVES, held=1), into, into, held(b"a"))
    assert heard() == ("not started", 3, 10, 2)
    # it is held up on its way to its program
    os.mkfifo(lives + ".fifo")
    ask(start(4, lives.encode() + b".fifo", flags=SURVIVES, held=1), into, into, held(b"a"))
    note(bound, empty)
    crash()
assert has() == [], has()
for pid in noted(): await_end_of(pid)
for id in (1, 2, 3): assert runs(id, b"/bin/true") > 0 and heard()[:2] == ("exited", id)
stopping()
"#,
    )
    .await;
}

#[tokio::test]
async fn ids_of_what_is_held_are_in_use() {
    holds_for(
        4,
        r#"
lived = life()
ready()
if lived == 1:
    runs(1, b"/bin/sleep", b"300", flags=SURVIVES, held=[held(b"a")])
    runs(2, b"/bin/true", flags=SURVIVES, held=[held(b"b")])
    assert heard()[:2] == ("exited", 2)
    release(2)
    crash()
assert has() == [(1, True, [0], [b"a"]), (2, False, [0], [b"b"])], has()
if lived < 4:
    ask(start(lived - 1, b"/bin/true"), into, into)
    time.sleep(20)
    sys.exit("it was not ended")
forget(2)
assert runs(2, b"/bin/true") > 0
stopping()
"#,
    )
    .await;
}

/// As many as one message may have.
#[tokio::test]
async fn there_is_room_for_what_an_execution_has() {
    holds_for(
        2,
        r#"
ready()
if life() == 1:
    for id in range(300):
        runs(id, b"/bin/sleep", b"300", flags=SURVIVES, held=[held(b"%d %d" % (id, number)) for number in range(13)])
        for file in range(60, 2000):
            try: os.close(file)
            except OSError: break
    crash()
all = [(id, True, [*range(13)], [b"%d %d" % (id, number) for number in range(13)]) for id in range(300)]
assert has() == all
stopping()
"#,
    )
    .await;
}

/// Also where that is much, and the keeper comes to it only afterwards.
#[tokio::test]
async fn all_that_an_agent_asks_for_before_it_is_killed_is_done() {
    holds_for(
        2,
        r#"
import signal
ready()
if life() == 1:
    pid = runs(1, b"/bin/sleep", b"300", held=[held(b"a")])
    note(pid)
    keeper_pid, this = os.getppid(), os.getpid()
    if os.fork() == 0:
        os.kill(keeper_pid, signal.SIGSTOP)
        while open(f"/proc/{keeper_pid}/stat").read().split()[2] != "T": time.sleep(0.01)
        for id in range(50): release(1000 + id)
        outlives(1)
        os.kill(this, signal.SIGKILL)
        os.kill(keeper_pid, signal.SIGCONT)
        os._exit(0)
    time.sleep(20)
    sys.exit("it was not killed")
assert has() == [(1, True, [0], [b"a"])], has()
stopping()
"#,
    )
    .await;
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
    ask(struct.pack("<BQBBB", 3, id, 8, 0, 0) + ids + text(b"/") + texts([b"/bin/true"]) + texts([b"true"]) + texts([]), into, into)
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
assert heard() == ("not started", 200, 8, 1)
stopping()
"#;
    let (output, lives) = keep_as(&["--command-users", "65534:65534:65533;7:7:"], agent).await;
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
    assert!(String::from_utf8_lossy(&output.stderr).contains("telexecd --keeper on"));
}
