//! A process that is made ahead of its start: whatever becomes of it, the start is as one without.

use std::time::Duration;

use telexec_tests::{Subtree, is_root};
use tokio::time::timeout;

use super::keeper;

/// What such agents in Python begin with.
const PREPARING: &str = r#"
import fcntl, subprocess
directory = sys.argv[2]
def cgroup(name):
    path = f"{directory}/{name}"
    os.makedirs(path, exist_ok=True)
    return path
def prepare(path): ask(struct.pack("<B", 12) + text(path.encode()))
def members(path):
    with open(path + "/cgroup.procs") as file: return [int(pid) for pid in file]
def until(holds):
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)
def waits_in(path):
    until(lambda: members(path))
    [pid] = members(path)
    return pid
def starters():
    children = subprocess.run(["pgrep", "-P", str(os.getppid()), "telexec-starter"], capture_output=True, text=True).stdout
    # what waits has the same name
    is_in = lambda pid: os.path.basename(directory) in open(f"/proc/{pid}/cgroup").read()
    return [int(pid) for pid in children.split() if not is_in(pid)]
def runs_in(id, path, *argv, **more): return runs(id, *argv, cgroup=path.encode(), **more)
def says(id, path, expected, *argv, **more):
    runs_in(id, path, *argv, **more)
    assert heard() == ("exited", id, 1, 0, 0)
    assert os.read(out, 100) == expected
    release(id)
ready()
"#;

async fn holds(agent: &str) {
    let Some(subtree) = Subtree::new(0).filter(|_| is_root()) else { return };
    let (mut keeper, lives) = keeper(&[], &format!("{PREPARING}{agent}"));
    let output = timeout(Duration::from_secs(60), keeper.arg(subtree.path()).kill_on_drop(true).output());
    let output = output.await.expect("it ends").unwrap();
    assert!(output.status.success(), "{output:?}");
    drop(lives);
}

#[tokio::test]
async fn a_start_in_its_cgroup_gets_it() {
    holds(
        r#"
# it waits for a second
got = 0
for id in range(50):
    leaf = cgroup(f"leaf{id}")
    prepare(leaf)
    pid = waits_in(leaf)
    text_ = b"echo $A; test -z \"$(ls /proc/self/fd | grep -v '^[0123]$')\" && read line < /proc/self/cgroup; umask; exit 7"
    got += runs_in(id, leaf, b"/bin/sh", b"-c", text_, env=[b"A=b"]) == pid
    assert heard() == ("exited", id, 1, 0, 7)
    assert os.read(out, 100) == b"b\n0022\n"
    release(id)
    until(lambda: not members(leaf))
    os.rmdir(leaf)
assert len(starters()) <= 1 and got > 25, got
prepare(leaf := cgroup("leaf"))
waits_in(leaf)
until(lambda: not members(leaf) and not starters())
says(50, leaf, b"hi\n", b"/bin/echo", b"hi")
until(lambda: not members(leaf))
# also where it is not there yet, or nothing was asked for
for id in range(100, 150):
    leaf = cgroup(f"leaf{id}")
    if id % 2: prepare(leaf)
    says(id, leaf, b"hi\n", b"/bin/echo", b"hi")
    until(lambda: not members(leaf))
    os.rmdir(leaf)
stopping()
"#,
    )
    .await;
}

#[tokio::test]
async fn a_start_elsewhere_leaves_it_alone() {
    holds(
        r#"
leaf, other = cgroup("leaf"), cgroup("other")
for id in range(0, 40, 2):
    prepare(leaf)
    pid = waits_in(leaf)
    # nor does it make way for another one
    prepare(other)
    says(id, other, b"1\n", b"/bin/echo", b"1")
    got = runs_in(id + 1, leaf, b"/bin/sleep", b"300")
    os.kill(got, 9)
    assert heard() == ("exited", id + 1, 0, 0, 9)
    until(lambda: not members(leaf) and not members(other))
    # it waits for a second
    if got == pid: break
else: sys.exit("it was not there any more")
# ended by the agent, it is as if there had been none
prepare(leaf)
pid = waits_in(leaf)
with open(leaf + "/cgroup.kill", "w") as file: file.write("1")
until(lambda: not os.path.exists(f"/proc/{pid}"))
# not there: some kernels kill what is born in a cgroup that was killed once
says(103, other, b"3\n", b"/bin/echo", b"3")
prepare(other)
assert waits_in(other) != pid
stopping()
"#,
    )
    .await;
}

#[tokio::test]
async fn what_it_cannot_become_is_reported_as_ever() {
    holds(
        r#"
leaf = cgroup("leaf")
prepare(leaf)
waits_in(leaf)
ask(start(1, b"/no/such/program", cgroup=leaf.encode()), into, into)
assert heard() == ("not started", 1, 12, 2)
until(lambda: not members(leaf))
# a long one
prepare(leaf)
waits_in(leaf)
long = b"A=" + b"x" * 100_000
file = os.memfd_create("start", os.MFD_ALLOW_SEALING)
message = start(2, b"/bin/sh", b"-c", b"echo ${#A}", env=[long, b"C" + long, b"D" + long], cgroup=leaf.encode())
os.write(file, message)
fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
ask(struct.pack("<BQQ", 2, 2, len(message)), into, into, file)
assert heard()[:2] == ("started", 2)
assert heard() == ("exited", 2, 1, 0, 0)
assert os.read(out, 100) == b"100000\n"
until(lambda: not members(leaf))
# one that has ended is not taken for the command
for id in range(10, 40):
    prepare(leaf)
    pid = waits_in(leaf)
    os.kill(pid, 9)
    until(lambda: pid not in members(leaf))
    says(id, leaf, b"hi\n", b"/bin/echo", b"hi")
    until(lambda: not members(leaf))
# no such cgroup, and one that is none
prepare(directory + "/missing")
prepare("/tmp")
says(3, leaf, b"3\n", b"/bin/echo", b"3")
stopping()
"#,
    )
    .await;
}

#[tokio::test]
async fn where_the_starter_is_killed_or_stuck_starts_do_without() {
    holds(
        r#"
leaf, other = cgroup("leaf"), cgroup("other")
def kill_starter():
    for pid in starters(): os.kill(pid, 9)
    until(lambda: not starters())
prepare(leaf)
waits_in(leaf)
kill_starter()
says(1, leaf, b"1\n", b"/bin/echo", b"1")
until(lambda: not members(leaf))
says(2, leaf, b"2\n", b"/bin/echo", b"2")
kill_starter()
prepare(leaf)
says(3, leaf, b"3\n", b"/bin/echo", b"3")
# one that does not do anything
until(lambda: not members(leaf))
prepare(leaf)
waits_in(leaf)
for pid in starters(): os.kill(pid, 19)
says(30, leaf, b"30\n", b"/bin/echo", b"30")
prepare(leaf)
says(31, leaf, b"31\n", b"/bin/echo", b"31")
# what waits does not do anything, nor does its starter; and is killed meanwhile
for id, others in ((33, starters), (34, lambda: [])):
    # another one each time: some kernels kill what is born in a cgroup that was killed once
    stuck = cgroup(f"stuck{id}")
    # the starter may just have ended
    until(lambda: prepare(stuck) or members(stuck))
    pid = waits_in(stuck)
    for stopped in [pid, *others()]: os.kill(stopped, 19)
    ask(start(id, b"/bin/echo", b"never", cgroup=stuck.encode()), into, into)
    os.kill(pid, 9)
    answer = heard()
    # one that was ended before, by its age, is not the one that was stopped
    if answer[0] == "started":
        assert heard() == ("exited", id, 1, 0, 0) and os.read(out, 100) == b"never\n"
        release(id)
    else: assert answer == ("not started", id, 0, 11), answer
    until(lambda: not os.path.exists(f"/proc/{pid}"))
says(35, leaf, b"35\n", b"/bin/echo", b"35")
# one that is held up before it says so
def freeze(value):
    with open(leaf + "/cgroup.freeze", "w") as file: file.write(value)
until(lambda: not members(leaf))
freeze("1")
prepare(leaf)
waits_in(leaf)
ask(start(4, b"/bin/echo", b"4", cgroup=leaf.encode()), into, into)
says(5, other, b"5\n", b"/bin/echo", b"5")
ask(struct.pack("<BQ", 5, 4))
# by then it may be one that the keeper has made
match heard():
    case ("not started", 4, 0, 125): pass
    case ("started", 4, _): assert heard() == ("exited", 4, 0, 0, 9)
    case other: sys.exit(str(other))
freeze("0")
until(lambda: not members(leaf))
says(6, leaf, b"6\n", b"/bin/echo", b"6")
stopping()
"#,
    )
    .await;
}

#[tokio::test]
async fn it_ends_with_its_agent() {
    holds(
        r#"
leaf, other = cgroup("leaf"), cgroup("other")
match life():
    case 1:
        prepare(leaf)
        waits_in(leaf)
        os.kill(os.getpid(), 9)
    case 2:
        until(lambda: not members(leaf))
        # on its way when the agent ends
        with open(other + "/cgroup.freeze", "w") as file: file.write("1")
        prepare(other)
        waits_in(other)
        ask(start(1, b"/bin/sleep", b"300", cgroup=other.encode(), flags=32), into, into)
        os.kill(os.getpid(), 9)
    case _:
        assert handed_over == []
        until(lambda: not members(other))
        prepare(leaf)
        waits_in(leaf)
        stopping()
"#,
    )
    .await;
}

#[tokio::test]
async fn starts_wait_for_their_turn_but_not_long() {
    holds(
        r#"
STOP, CONTINUE, KEEPER = 19, 18, os.getppid()
def cancel(id): ask(struct.pack("<BQ", 5, id))
def start_in(path, id, *argv): ask(start(id, *argv, cgroup=path.encode()), into, into)
def at_once(*asks):
    os.kill(KEEPER, STOP)
    for one in asks: one()
    os.kill(KEEPER, CONTINUE)
held_up, other = cgroup("held_up"), cgroup("other")
def state(pid): return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
def hold_up(id):
    prepare(held_up)
    pid = waits_in(held_up)
    # until then it has not said which process it is
    until(lambda: state(pid) == "S")
    os.kill(pid, STOP)
    start_in(held_up, id, b"/bin/true")
    return pid
if life() == 2:
    # what waited for its turn when its agent ended was not started
    until(lambda: not members(other) and not members(held_up))
    stopping()
    sys.exit()
pid = hold_up(1)
at_once(lambda: start_in(other, 2, b"/bin/false"), lambda: cancel(2))
assert heard()[:2] == ("not started", 2) and not members(other)
# these do not end before the first one runs
says(3, other, b"3\n", b"/bin/echo", b"3")
says(4, other, b"4\n", b"/bin/echo", b"4")
os.kill(pid, CONTINUE)
assert heard() == ("started", 1, pid) and heard() == ("exited", 1, 1, 0, 0)
release(1)
# more than may wait
leaves = {id: cgroup(f"leaf{id}") for id in range(10, 30)}
at_once(*(lambda id=id: start_in(leaves[id], id, b"/bin/sh", b"-c", b"exit %d" % id) for id in leaves))
seen = {}
while sum(map(len, seen.values())) < 2 * len(leaves):
    kind, id, *how = heard()
    seen.setdefault(id, []).append((kind, how if kind == "exited" else None))
assert seen == {id: [("started", None), ("exited", [1, 0, id])] for id in leaves}, seen
for id in leaves: release(id)
hold_up(50)
os.kill(KEEPER, STOP)
for id in range(51, 56): start_in(other, id, b"/bin/sleep", b"300")
subprocess.Popen(["sh", "-c", f"while [ -e /proc/{os.getpid()}/fd/0 ]; do :; done; kill -CONT {KEEPER}"], start_new_session=True)
os.kill(os.getpid(), 9)
"#,
    )
    .await;
}
