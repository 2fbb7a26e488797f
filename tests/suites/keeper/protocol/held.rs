//! What the keeper holds for the next agent.

use super::keep;

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

/// For an agent that is killed, and whose next lives go on from there.
async fn holds_for(expected: u64, agent: &str) {
    let (output, lives) = keep(&format!("{HOLDS}{agent}")).await;
    assert!(output.status.success() && lives == expected, "{lives} lives, {output:?}");
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
    assert heard() == ("not started", 3, 12, 2)
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
# it would outlive the keeper too
os.kill(noted()[0], signal.SIGKILL)
stopping()
"#,
    )
    .await;
}
