"""Boots machines of the image that WARM_POOL_IMAGE names: tests/deploy/run warm-pool."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import telexec.aio

from pool import Config, NoMachine, WarmPool, row

HERE = Path(__file__).resolve().parent
IMAGE = Path(os.environ["WARM_POOL_IMAGE"])
#: Of each machine, in MiB: more than by default where the image has a larger agent, such as one that is not optimised.
MEMORY = int(os.environ.get("WARM_POOL_MEMORY", Config.memory_mib))


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the files of all machines are, and what their processes can be known by; nothing may be left of them."""
    # pytest's own are too long for Unix sockets
    with tempfile.TemporaryDirectory(prefix="wp.", dir="/tmp") as name:
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)
        assert processes(name) == []
        assert os.listdir(name) == []


def processes(directory: str | Path, program: str = "") -> list[int]:
    """Those with the directory in their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes()
        except OSError:
            continue
        if f"{directory}/".encode() in words and words.startswith(program.encode()):
            found.append(int(entry.parent.name))
    return found


def machines(directory: Path) -> list[int]:
    return processes(directory, "qemu-system")


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


async def host_is_out_of_reach(agent: telexec.aio.Agent) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = str(server.getsockname()[1])
        assert (await agent.run(["nc", "-w", "1", "10.0.2.2", port], timeout=10)).exit_code == 1
        with pytest.raises(BlockingIOError):
            server.accept()


async def tenant(pool: WarmPool, number: int) -> str:
    """Sees nothing of tenants before; returns which boot it had."""
    command = "cat /root/mark; echo $0 >/root/mark; cat /root/mark; echo error >&2; exit 3"
    async with pool.sandbox() as agent:
        result = await agent.run(["sh", "-c", command, str(number)], text=True)
        assert result.stdout == f"{number}\n"
        assert result.stderr == "cat: can't open '/root/mark': No such file or directory\nerror\n"
        assert result.exit_code == 3
        if number == 0:
            await host_is_out_of_reach(agent)
        return (await agent.run(["cat", "/proc/sys/kernel/random/boot_id"], text=True)).stdout


def script(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


async def until_filled(pool: WarmPool) -> None:
    while True:
        with contextlib.suppress(NoMachine):
            return await pool.filled()
        await asyncio.sleep(0.1)


def test_tenants_are_kept_apart_and_failures_made_up_for(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    repaired = tmp_path / "repaired"
    real = Config(image=IMAGE).boot
    boot = script(tmp_path / "boot", f'[ -e {repaired} ] && exec {real} "$@"', "echo no such disk >&2; exit 1")
    config = Config(image=IMAGE, boot=boot, memory_mib=MEMORY, backoff=0.1, attempts=3, health_timeout=3)
    most = [0]

    async def count_machines() -> None:
        while True:
            most.append(len(machines(directory)))
            await asyncio.sleep(0.2)

    async def test() -> None:
        counting = asyncio.create_task(count_machines())
        async with WarmPool(config, size=2, limit=3) as pool:
            with pytest.raises(NoMachine, match="^[34] boots in a row have failed, .* no such disk$"):
                await tenant(pool, 0)
            repaired.touch()
            await until_filled(pool)

            dies, hangs = machines(directory)
            os.kill(dies, signal.SIGKILL)
            while "has ended in the pool" not in caplog.text:
                await asyncio.sleep(0.05)
            os.kill(hangs, signal.SIGSTOP)
            boots = await asyncio.gather(*(tenant(pool, number) for number in range(4)))
            assert len(set(boots)) == 4
            assert "does not answer" in caplog.text
        with pytest.raises(NoMachine, match="^the pool is closed$"):
            await tenant(pool, 4)
        counting.cancel()

    asyncio.run(test())
    assert 2 <= max(most) <= 3


class FakeMachine:
    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.released = asyncio.Event()
        self.tenants = 0

    @property
    def agent(self) -> FakeMachine:
        return self

    async def answers(self) -> bool:
        await asyncio.sleep(random.uniform(0, 0.01))
        return random.random() < 0.9


def test_requests_are_cancelled_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    running: set[FakeMachine] = set()
    done = [0]

    @contextlib.asynccontextmanager
    async def booted(config: Config) -> AsyncIterator[FakeMachine]:
        machine = FakeMachine()
        running.add(machine)
        assert len(running) <= 5
        try:
            await asyncio.sleep(random.uniform(0, 0.01))
            if random.random() < 0.1:
                raise OSError("it does not boot")
            yield machine
        finally:
            try:
                await asyncio.sleep(random.uniform(0, 0.01))
            finally:
                running.remove(machine)

    async def request(pool: WarmPool) -> None:
        async with pool.sandbox() as agent:
            machine = cast(FakeMachine, agent)
            machine.tenants += 1
            assert machine.tenants == 1 and machine in running
            await asyncio.sleep(random.uniform(0, 0.01))
            assert machine in running
            done[0] += 1

    async def test() -> None:
        config = Config(image=IMAGE, backoff=0.001, attempts=20)
        async with WarmPool(config, size=3, limit=5) as pool:
            requests = [asyncio.create_task(request(pool)) for _ in range(500)]
            for each in requests[::2]:
                asyncio.get_running_loop().call_later(random.uniform(0, 1), each.cancel)
            results = await asyncio.gather(*requests, return_exceptions=True)
            assert all(result is None for result in results[1::2])
            assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
        assert not running and done[0] >= 250

    monkeypatch.setattr("pool.booted", booted)
    asyncio.run(asyncio.wait_for(test(), 30))


def test_a_boot_that_hangs(directory: Path, tmp_path: Path) -> None:
    # neither it nor its child ends when it is asked to
    boot = script(tmp_path / "boot", "trap '' TERM", f"sleep 1234 {directory}/ || sleep 1234")

    async def test() -> None:
        async with WarmPool(Config(image=IMAGE, boot=boot, boot_timeout=0.5, attempts=1), size=1, limit=1) as pool:
            with pytest.raises(NoMachine, match="not ready after 0.5 s"):
                await tenant(pool, 1)

    asyncio.run(test())


def test_a_limit_below_the_size() -> None:
    with pytest.raises(ValueError, match="size is 3"):
        WarmPool(Config(image=IMAGE), size=3, limit=2)


# the second Ctrl-C may find Python itself at its end
EXIT_CODES = {"INT": {130}, "INT INT": {130, -signal.SIGINT}, "TERM": {130}, "KILL": {-signal.SIGKILL}}


@pytest.mark.parametrize("signals", EXIT_CODES)
def test_the_program_is_ended(directory: Path, signals: str) -> None:
    words = [sys.executable, str(HERE / "pool.py"), "--memory", str(MEMORY), "--cold", "0", "--warm", "9", str(IMAGE)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as program:
        until(lambda: len(machines(directory)) == 2)
        for each in signals.split():
            program.send_signal(signal.Signals[f"SIG{each}"])
            time.sleep(0.02)
        assert program.wait(20) in EXIT_CODES[signals]
    if signals == "KILL":
        until(lambda: not processes(directory))
        # the only thing that is left
        for left in directory.glob("warm-pool-*"):
            shutil.rmtree(left)


def test_the_program_measures(directory: Path) -> None:
    words = [sys.executable, str(HERE / "pool.py"), "--memory", str(MEMORY), "--cold", "1", "--warm", "0", str(IMAGE)]
    # longer than a boot may take, which says then why it failed
    said = subprocess.run(words, capture_output=True, text=True, timeout=150, check=True).stdout
    name, count, *times = said.splitlines()[-1].split()
    assert (name, count) == ("cold", "1")
    assert len(times) == 5 and len(set(times)) == 1 and int(times[0]) > 0


def test_percentiles() -> None:
    assert row("warm", [0.004, 0.001, 0.003, 0.002]).split() == ["warm", "4", "1", "2", "4", "4", "4"]


def test_types() -> None:
    words = [sys.executable, "-m", "mypy", "--strict", "--cache-dir=/dev/null", "pool.py", "test_pool.py"]
    output = subprocess.run(words, capture_output=True, text=True, cwd=HERE)
    assert output.returncode == 0, output.stdout
