"""Connections that are lost."""

import asyncio
import os
import pathlib
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from conftest import MARK, Daemon, processes, until

import telexec
import telexec.aio

CUTS = 10
LINES = 100_000
PART = b"".join(b"%d\n" % number for number in range(1, LINES + 1))


class Proxy:
    """A Unix socket whose connections can be cut."""

    def __init__(self, path: pathlib.Path, to: pathlib.Path):
        self.uri = f"unix://{path}"
        self.to = to
        self.connections: list[socket.socket] = []
        self.accepted = 0
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(str(self.to))
            self.connections += [near, far]
            self.accepted += 1
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                other.sendall(data)
        except OSError:
            pass
        for end in (one, other):
            end.close()

    def cut(self) -> None:
        connections, self.connections = self.connections, []
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.cut()


@pytest.fixture
def proxy(daemon: Daemon, tmp_path: pathlib.Path) -> Iterator[Proxy]:
    proxy = Proxy(tmp_path / "proxy.sock", daemon.socket)
    yield proxy
    proxy.close()


def test_output_is_exact_through_ten_cuts(proxy: Proxy) -> None:
    agent = telexec.connect(proxy.uri)
    parts: list[bytes] = []
    with agent.start(f"for part in $(seq {CUTS + 1}); do seq {LINES}; sleep 0.3; done") as execution:
        for cuts in range(CUTS):
            # also until there is a connection again, which reading makes
            while sum(map(len, parts)) <= cuts * len(PART) or proxy.accepted <= cuts:
                parts.append(next(execution).data)
            # in the middle of a part, or between two: what follows comes by another connection
            proxy.cut()
        parts += [event.data for event in execution]
        assert execution.wait().exit_code == 0
    assert proxy.accepted > CUTS
    assert b"".join(parts) == PART * (CUTS + 1)


def test_input_is_exact_through_cuts(proxy: Proxy) -> None:
    agent = telexec.connect(proxy.uri)
    with agent.start(["sha256sum"]) as execution:
        for number in range(CUTS):
            execution.write(b"%d\n" % number * 50_000)
            proxy.cut()
        execution.close_input()
        output = b"".join(event.data for event in execution)
    text = b"".join(b"%d\n" % number * 50_000 for number in range(CUTS))
    assert output == telexec.connect(proxy.uri).run(["sha256sum"], input=text).stdout


def test_a_run_survives_cuts(proxy: Proxy) -> None:
    agent = telexec.connect(proxy.uri)
    agent.run("true")
    cutting = [threading.Timer(0.2 * number, proxy.cut) for number in range(1, 6)]
    for timer in cutting:
        timer.start()
    result = agent.run("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.2; done", text=True)
    assert result.stdout.split() == [str(number) for number in range(1, 9)]


def test_leaving_a_block_behind_a_cut_ends_the_command(proxy: Proxy, mark: str) -> None:
    agent = telexec.connect(proxy.uri)
    with agent.start("echo ready; sleep 1000", env={MARK: mark}) as execution:
        next(execution)
        proxy.cut()
    until(lambda: not processes(mark), "it is ended")


@pytest.fixture
def mortal(tmp_path: pathlib.Path, mark: str) -> Iterator[Daemon]:
    """An agent to be killed; what it leaves behind is ended too."""
    mortal = Daemon(tmp_path)
    yield mortal
    mortal.process.kill()
    mortal.process.wait()
    for pid in processes(mark):
        os.kill(pid, signal.SIGKILL)


def killed_once_it_runs(mortal: Daemon, mark: str) -> None:
    until(lambda: bool(processes(mark)), "it runs")
    mortal.process.kill()


@pytest.mark.parametrize("reconnect", [0, 0.5])
def test_a_lost_agent_is_waited_for_as_long_as_was_asked(mortal: Daemon, mark: str, reconnect: float) -> None:
    agent = telexec.connect(mortal.uri, reconnect=reconnect)
    with agent.start("sleep 1000", env={MARK: mark}) as execution:
        killed_once_it_runs(mortal, mark)
        began = time.monotonic()
        with pytest.raises(telexec.Lost):
            next(execution)
        with pytest.raises((telexec.Lost, telexec.Unreachable)):
            execution.write("data")
    # less than without it
    assert time.monotonic() - began < 25


def test_a_lost_agent_in_asyncio_and_of_a_fleet(mortal: Daemon, mark: str) -> None:
    async def main() -> None:
        agent = await telexec.aio.connect(mortal.uri, reconnect=0.5)
        running = [asyncio.create_task(agent.run("sleep 1000", env={MARK: mark}))]
        async with telexec.aio.fleet(mortal.uri).run("sleep 1000", env={MARK: mark}, reconnect=0.5) as runs:
            await asyncio.to_thread(until, lambda: len(processes(mark)) >= 2, "they run")
            mortal.process.kill()
            with pytest.raises(telexec.Lost):
                await running[0]
            assert isinstance((await anext(runs)).error, telexec.Lost)

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 25


def test_a_lost_agent_of_a_blocking_fleet(mortal: Daemon, mark: str) -> None:
    threading.Thread(target=killed_once_it_runs, args=(mortal, mark)).start()
    [outcome] = telexec.fleet(mortal.uri).run("sleep 1000", env={MARK: mark}, reconnect=0)
    assert isinstance(outcome.error, telexec.Lost)
