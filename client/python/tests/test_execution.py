"""Commands that are followed while they run."""

import threading
import time

import pytest
from conftest import MARK, processes, until

import telexec


def collected(execution: telexec.Execution) -> bytes:
    return b"".join(event.data for event in execution if event.stream == "stdout")


def test_a_conversation(agent: telexec.Agent) -> None:
    with agent.start("while read line; do echo got $line; echo err >&2; done; exit 5") as execution:
        execution.write("one\n")
        events = [next(execution), next(execution)]
        assert sorted((event.stream, event.data) for event in events) == [("stderr", b"err\n"), ("stdout", b"got one\n")]
        assert sorted(event.position for event in events)[0] == 0
        execution.write(b"two\n")
        execution.close_input()
        assert collected(execution) == b"got two\n"
        assert execution.wait().exit_code == 5
        assert execution.wait().cause == "exited"
        assert list(execution) == []


def test_signals(agent: telexec.Agent) -> None:
    with agent.start("trap 'echo int; exit 1' INT; echo ready; while :; do sleep 0.05; done") as execution:
        next(execution)
        execution.signal("INT")
        assert collected(execution) == b"int\n"
        assert execution.wait().exit_code == 1
    with pytest.raises(telexec.Invalid, match="not a signal"):
        execution.signal("NOPE")


def test_leaving_the_block_ends_the_tree(agent: telexec.Agent, mark: str) -> None:
    with agent.start("sleep 1000 & setsid sleep 1000 & echo ready; wait", env={MARK: mark}) as execution:
        next(execution)
        # not while one becomes its program
        until(lambda: len(processes(mark)) == 3, "all run")
    assert processes(mark) == []
    with pytest.raises(telexec.Error, match="attach"):
        next(execution)


def test_losing_it_ends_the_tree(agent: telexec.Agent, mark: str) -> None:
    execution = agent.start("echo ready; sleep 1000", env={MARK: mark})
    next(execution)
    del execution
    until(lambda: not processes(mark), "it is ended")


def test_detached_runs_on_and_is_attached_to(agent: telexec.Agent, mark: str) -> None:
    labels = {"test": mark}
    with agent.start("echo one; read x; read y; echo $x", env={MARK: mark}, labels=labels, detach=True) as execution:
        next(execution)
    assert processes(mark)
    info = agent.get(execution.id)
    assert (info.state, info.labels, info.argv, info.exit) == ("running", labels, None, None)
    assert [info.id for info in agent.list(labels=labels)] == [execution.id]
    with agent.attach(execution.id) as attached:
        assert next(attached).data == b"one\n"
        attached.write("two\n")
        attached.write("three\n")
        event = next(attached)
        assert (event.data, event.position) == (b"two\n", 4)
        assert attached.wait().exit_code == 0
    with agent.attach(execution.id, position=4) as attached:
        assert collected(attached) == b"two\n"
    assert agent.list(labels=labels) == []
    [info] = agent.list(labels=labels, all=True)
    assert info.state == "exited" and info.exit is not None and info.exit.exit_code == 0


def test_unknown_executions(agent: telexec.Agent) -> None:
    for ask in (agent.get, agent.attach):
        with pytest.raises(telexec.NotFound, match="no execution nope"):
            ask("nope")
    with pytest.raises(telexec.Error, match="position"):
        agent.attach(agent.run("echo hi", id=f"past-{time.time_ns()}").exit.id, position=1000)


def test_output_that_is_not_read_slows_the_command_down(agent: telexec.Agent, mark: str) -> None:
    def resident() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096

    before = resident()
    with agent.start(["yes"], env={MARK: mark}) as execution:
        written = -1
        # it stands still once all buffers are full
        while written != (written := agent.get(execution.id).position):
            time.sleep(1)
        assert written < 64 * 1024 * 1024
        assert resident() - before < 64 * 1024 * 1024
        assert next(execution).data.startswith(b"y\ny\n")


def test_exact_output_of_a_slow_reader(agent: telexec.Agent) -> None:
    position = 0
    with agent.start(["seq", "1000000"]) as execution:
        parts = []
        for event in execution:
            assert event.position == position
            position += len(event.data)
            parts.append(event.data)
        assert execution.wait().exit_code == 0
    assert b"".join(parts) == b"".join(b"%d\n" % number for number in range(1, 1_000_001))


def test_threads_run_at_once(agent: telexec.Agent) -> None:
    def run() -> None:
        assert agent.run("echo go; sleep 1").exit_code == 0

    threads = [threading.Thread(target=run) for _ in range(20)]
    ticks = 0
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        ticks += 1
        time.sleep(0.01)
    # the GIL was free while they waited
    assert ticks > 20
