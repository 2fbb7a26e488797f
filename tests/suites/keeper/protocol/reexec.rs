//! An agent that hands over: the program on disk takes the place of the keeper's own.

use std::process::Command;
use std::time::Duration;

use telexec_tests::program;
use tokio::time::timeout;

use super::{keep, keeper_of};

/// The keeper by its process, as an agent sees it.
const KEEPER: &str = r#"
parent = os.getppid()
def keeps():
    files = os.listdir(f"/proc/{parent}/fd")
    children = open(f"/proc/{parent}/task/{parent}/children").read().split()
    return len(files), sorted(set(children) - {str(os.getpid())})
def arguments(): return open(f"/proc/{parent}/cmdline", "rb").read().split(b"\0")
def hand_over():
    ask(b"\x09")
    sys.exit(0)
def scores(): return "".join(open(f"/proc/{pid}/oom_score_adj").read() for pid in (parent, "self"))
def reap(id): ask(struct.pack("<BQ", 10, id))
SURVIVES = 32
"#;

#[tokio::test]
async fn what_it_holds_is_held_by_its_next_program() {
    let agent = r#"
lived = life()
if lived == 1:
    ready()
    assert arguments()[1] != b"--state-fd"
    with open(lives + ".scores", "w") as file: file.write(scores())
    for id, argv in [(1, [b"/bin/sleep", b"300"]), (2, [b"/bin/sh", b"-c", b"exit 7"]), (3, [b"/bin/true"]), (4, [b"/bin/true"])]:
        file = os.memfd_create("held")
        os.write(file, b"held for %d" % id)
        pid = runs(id, *argv, flags=SURVIVES, held=[file, out])
        if id == 1:
            with open(lives + ".pid", "w") as file: file.write(str(pid))
        else: assert heard()[:2] == ("exited", id)
    reap(3)
    release(4)
    # it ends with this agent
    runs(5, b"/bin/sleep", b"300")
    hand_over()
sleeper = int(open(lives + ".pid").read())
assert arguments()[1] == b"--state-fd" and b"(deleted)" not in os.readlink(f"/proc/{parent}/exe").encode()
found = {id: (pid, numbers) for id, pid, numbers, descriptors in handed_over}
assert found[1] == (sleeper, [0, 1]) and found[2][1] == [0, 1], found
assert found[3] == (0, [0, 1]) and found[4] == (0, [0]) and len(found) == 4, found
for id, _, _, descriptors in handed_over:
    assert os.pread(descriptors[0], 100, 0) == b"held for %d" % id
if not ended: assert heard() == ("exited", 2, 1, 0, 7)
else: assert [end[1:] for end in ended] == [(2, 1, 0, 7)], ended
assert scores() == open(lives + ".scores").read(), scores()
ready()
until = time.monotonic() + 10
while keeps()[1] != sorted(map(str, [sleeper, found[2][0]])):
    assert time.monotonic() < until, keeps()
if lived == 2:
    with open(lives + ".files", "w") as file: file.write(str(keeps()[0]))
if lived < 30: hand_over()
while keeps()[0] != int(open(lives + ".files").read()): assert time.monotonic() < until, os.listdir(f"/proc/{parent}/fd")
os.kill(sleeper, 9)
assert heard() == ("exited", 1, 0, 0, 9)
for id in (1, 2): release(id)
for id in (1, 2, 3, 4): forget(id)
while keeps()[1]: time.sleep(0.01)
assert runs(9, b"/bin/true") and heard()[:2] == ("exited", 9)
stopping()
"#;
    let (output, lives) = keep(&format!("{KEEPER}{agent}")).await;
    assert!(output.status.success() && lives == 30, "{lives} lives, {output:?}");
}

/// What is past it is killed by the keeper, where no agent does that.
#[tokio::test]
async fn a_time_limit_is_held_to_by_its_next_program() {
    let agent = r#"
lived = life()
if lived == 1:
    ready()
    # one that ends in time, and one that does not
    runs(1, b"/bin/true", limit=60_000_000)
    assert heard() == ("exited", 1, 1, 0, 0)
    runs(2, b"/bin/sh", b"-c", b"trap '' TERM; sleep 300; sleep 300", limit=1_000_000)
    assert heard() == ("exited", 2, 0, 0, 9)
    runs(3, b"/bin/sleep", b"300", flags=SURVIVES, held=[out])
    runs(4, b"/bin/sleep", b"300", flags=SURVIVES, held=[out], limit=2**63)
    runs(5, b"/bin/sleep", b"300", flags=SURVIVES, held=[out], limit=6_000_000)
    hand_over()
pids = {id: pid for id, pid, _, _ in handed_over}
assert arguments()[1] == b"--state-fd" and sorted(pids) == [3, 4, 5], pids
if lived == 2:
    assert not ended
    ready()
    assert heard() == ("exited", 5, 0, 0, 9)
    hand_over()
if not ended: assert heard() == ("exited", 5, 0, 0, 9)
else: assert [end[1:] for end in ended] == [(5, 0, 0, 9)], ended
ready()
for id in (3, 4):
    os.kill(pids[id], 9)
    assert heard() == ("exited", id, 0, 0, 9)
for id in (3, 4, 5): release(id), forget(id)
stopping()
"#;
    let (output, lives) = keep(&format!("{KEEPER}{agent}")).await;
    assert!(output.status.success() && lives == 3, "{lives} lives, {output:?}");
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(log.matches("past its timeout: the agent did not end it").count(), 2, "{log}");
}

#[tokio::test]
async fn a_program_that_cannot_be_run_takes_no_place() {
    let agent = r#"
if life() == 1:
    ready()
    pid = runs(1, b"/bin/sleep", b"300", flags=SURVIVES, held=[out])
    os.unlink(arguments()[0])
    hand_over()
[(id, pid, numbers, _)] = handed_over
assert (id, numbers) == (1, [0]) and arguments()[1] != b"--state-fd", arguments()
# what was to be inherited is not the agent's
paths = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
files = [os.readlink(path) for path in paths if os.path.islink(path)]
assert not any("pidfd" in file or "memfd" in file for file in files), files
ready()
os.kill(pid, 9)
assert heard() == ("exited", 1, 0, 0, 9)
stopping()
"#;
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("telexec-keeper");
    std::fs::copy(program("telexec-keeper"), &copy).unwrap();
    let (mut keeper, _lives) = keeper_of(Command::new(copy), &[], &format!("{KEEPER}{agent}"));
    let output = timeout(Duration::from_secs(60), keeper.kill_on_drop(true).output()).await.expect("it ends").unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && log.contains("goes on with its old program: cannot run"), "{log}");
}

#[test]
fn what_is_no_state_is_refused() {
    let keeper = |arguments: &[&str]| Command::new(program("telexec-keeper")).args(arguments).output().unwrap();
    for (arguments, code, error) in [
        (&["--state-fd", "999", "/bin/true"][..], 1, "descriptor 999 was not inherited"),
        (&["--state-fd", "0", "/bin/true"], 1, "descriptor 0 was not inherited"),
        (&["--state-fd", "x", "/bin/true"], 64, "is started by telexecd"),
        (&["--state-fd", "0"], 64, "is started by telexecd"),
    ] {
        let output = keeper(arguments);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && log.contains(error), "{arguments:?}: {output:?}");
    }
}
