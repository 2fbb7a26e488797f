#!/usr/bin/env python3
"""A warm pool of sandboxes, each of which is a virtual machine of deploy/vm that serves one tenant and is thrown away.

    async with WarmPool(Config(image=Path("target/vm")), size=2, limit=3) as pool:
        async with pool.sandbox() as agent:
            print(await agent.run(["uname", "-a"], text=True))

As a program it measures the time from a request to its first output: see --help.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import telexec.aio


class BootFailed(Exception):
    """A machine did not become ready, or ended before anyone used it."""


class NoMachine(Exception):
    """There is no machine for a request: too many boots in a row have failed, or the pool is closed."""


@dataclass(frozen=True)
class Config:
    """How machines are booted. Times are in seconds."""

    #: What deploy/vm/build made; its agent listens on vsock://any:7443, and says so on the console.
    image: Path
    boot: Path = Path(__file__).resolve().parents[2] / "deploy/vm/boot"
    memory_mib: int = 256
    cpus: int = 1
    #: Whether it reaches the network, and with it what listens on this machine's loopback.
    network: bool = False
    #: From the start to the first command that has run.
    boot_timeout: float = 120
    #: For the answer that a machine gives before it is handed out.
    health_timeout: float = 5
    #: So many boots in a row fail before requests do.
    attempts: int = 3
    #: Before the second attempt; doubled before each further one, up to the maximum.
    backoff: float = 0.5
    max_backoff: float = 30


class Machine:
    """A virtual machine from its boot to its end: see `booted`."""

    #: Of a machine that has booted.
    agent: telexec.aio.Agent

    def __init__(self, config: Config, directory: Path) -> None:
        self._config = config
        self._vsock = directory / "vsock"
        self._console = b""
        #: Its agent listens, or never will.
        self._listens = asyncio.Event()
        #: The hypervisor has ended.
        self.ended = asyncio.Event()
        #: It is in the pool no more: it was taken, or has ended.
        self.left = asyncio.Event()
        #: Nobody needs it any more.
        self.released = asyncio.Event()
        options = ["--vsock", str(self._vsock), "--memory", str(config.memory_mib), "--cpus", str(config.cpus)]
        if not config.network:
            options.append("--isolated")
        self._process = subprocess.Popen(
            # ended also when this program is killed
            ["setpriv", "--pdeathsig", "TERM", config.boot, *options, config.image],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(directory)},
            # out of reach of the terminal's Ctrl-C, and a group to kill
            start_new_session=True,
        )
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            raise
        assert self._process.stdout is not None
        self._output = self._process.stdout
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pidfd, self._has_ended)
        loop.add_reader(self._output, self._read_console)

    def _has_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        for event in (self._listens, self.ended, self.left):
            event.set()

    def _read_console(self) -> None:
        data = os.read(self._output.fileno(), 1 << 16)
        if not data:
            asyncio.get_running_loop().remove_reader(self._output)
        console = self._console + data
        if b"listening on vsock:" in console:
            self._listens.set()
        # whoever is root in the machine may write there without end
        self._console = console[-2000:]

    async def ready(self) -> None:
        """Waits until a command has run. What is slow only once, such as reading the program, is then behind it."""
        try:
            async with asyncio.timeout(self._config.boot_timeout):
                # vhost-device-vsock 0.3.0 now and then hangs if connections come while its machine boots
                await self._listens.wait()
                while not await self._connected():
                    if self.ended.is_set():
                        raise BootFailed(f"the machine has ended. {self.last_words()}")
                    await asyncio.sleep(0.05)
                await self.agent.run(["true"], check=True)
                await self.agent.list()
        except TimeoutError:
            raise BootFailed(f"not ready after {self._config.boot_timeout:g} s. {self.last_words()}") from None

    async def _connected(self) -> bool:
        try:
            self.agent = await telexec.aio.connect(f"vsock-uds://{self._vsock}:7443", connect_timeout=5)
        except telexec.Unreachable:
            return False
        return True

    async def answers(self) -> bool:
        """Whether it may be handed out."""
        try:
            async with asyncio.timeout(self._config.health_timeout):
                await self.agent.list()
        except (TimeoutError, telexec.Error):
            return False
        return not self.ended.is_set()

    def last_words(self) -> str:
        return "Its console: " + self._console.decode(errors="backslashreplace").strip()

    async def end(self) -> None:
        """Ends it with all its processes, at once if this is cancelled."""
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
            async with asyncio.timeout(3):
                await self.ended.wait()
        except (TimeoutError, ProcessLookupError):
            pass
        finally:
            # safe, since a number is not given to another group before its process was waited for
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            asyncio.get_running_loop().remove_reader(self._pidfd)
            asyncio.get_running_loop().remove_reader(self._output)
            os.close(self._pidfd)
            self._output.close()


@contextlib.asynccontextmanager
async def booted(config: Config) -> AsyncIterator[Machine]:
    """Boots a machine, and throws it away after the block."""
    # only this user may enter it, and so connect to the machine
    with tempfile.TemporaryDirectory(prefix="warm-pool-", ignore_cleanup_errors=True) as directory:
        machine = Machine(config, Path(directory))
        try:
            await machine.ready()
            yield machine
        finally:
            await machine.end()


class WarmPool:
    """Machines that are ready before they are asked for.

    `size` machines are booted ahead. At most `limit` exist at a time, those that boot and end included; when all are
    used, requests wait.
    """

    def __init__(self, config: Config, *, size: int = 2, limit: int = 4) -> None:
        if not 1 <= size <= limit:
            raise ValueError(f"size is {size}, and must be from 1 to limit, which is {limit}")
        self._config = config
        self._size = size
        self._limit = limit
        self._log = logging.getLogger(__name__)
        self._ahead = asyncio.Semaphore(size)
        self._ready: deque[Machine] = deque()
        self._changed = asyncio.Condition()
        self._failures = 0
        self._failure: Exception | None = None
        self._retry_at = 0.0
        self._keepers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> WarmPool:
        self._keepers = [asyncio.create_task(self._keep()) for _ in range(self._limit)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends all machines, also those that are used."""
        for keeper in self._keepers:
            keeper.cancel()
        self._ready.clear()
        self._failure = NoMachine("the pool is closed")
        try:
            # waits for all of them also when it is cancelled
            await asyncio.gather(*self._keepers, return_exceptions=True)
        finally:
            async with self._changed:
                self._changed.notify_all()

    @contextlib.asynccontextmanager
    async def sandbox(self) -> AsyncIterator[telexec.aio.Agent]:
        """Hands a machine out, which ends after the block, however the block ends."""
        machine = await self._take()
        try:
            yield machine.agent
        finally:
            # its keeper does the rest: nothing here waits, so nothing can be cancelled
            machine.released.set()

    async def filled(self) -> None:
        """Waits until `size` machines are ready."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._ready) >= self._size or self._failure)
            if self._failure is not None:
                raise NoMachine(str(self._failure)) from self._failure

    async def _take(self) -> Machine:
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._ready or self._failure)
                if not self._ready:
                    raise NoMachine(str(self._failure)) from self._failure
                machine = self._ready.popleft()
                machine.left.set()
            good = False
            try:
                good = await machine.answers()
            finally:
                # neither it nor one whose request was cancelled goes back
                if not good:
                    machine.released.set()
            if good:
                return machine
            self._log.warning("a machine in the pool does not answer, and is replaced")

    async def _keep(self) -> None:
        """Has one machine after the other: there are never more machines than keepers."""
        while True:
            try:
                await self._one_machine()
            # whatever it was, requests are told instead of waiting without end
            except Exception as error:
                await self._failed(error)

    async def _one_machine(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            # until the machine is taken
            ahead = await stack.enter_async_context(contextlib.AsyncExitStack())
            await ahead.enter_async_context(self._ahead)
            while (wait := self._retry_at - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            machine = await stack.enter_async_context(booted(self._config))
            async with self._changed:
                self._failures, self._failure = 0, None
                self._ready.append(machine)
                self._changed.notify_all()
            await machine.left.wait()
            if machine in self._ready:
                self._ready.remove(machine)
                raise BootFailed(f"the machine has ended in the pool. {machine.last_words()}")
            await ahead.aclose()
            await machine.released.wait()

    async def _failed(self, error: Exception) -> None:
        self._failures += 1
        # the exponent is bounded: it would be too large for a float one day
        wait = min(self._config.max_backoff, self._config.backoff * 2 ** min(self._failures - 1, 30))
        self._retry_at = time.monotonic() + wait
        self._log.warning("attempt %d to have a machine failed, the next is in %g s: %s", self._failures, wait, error)
        if self._failures >= self._config.attempts:
            async with self._changed:
                self._failure = BootFailed(f"{self._failures} boots in a row have failed, the last one: {error}")
                self._changed.notify_all()


async def first_output(agent: telexec.aio.Agent) -> None:
    async with agent.start(["echo", "first"]) as execution:
        async for _ in execution:
            return
    raise RuntimeError("the command has ended without output")


async def measure_cold(config: Config, count: int) -> list[float]:
    """Times from requests to their first output, each of which boots its machine."""
    times = []
    for _ in range(count):
        began = time.monotonic()
        async with booted(config) as machine:
            await first_output(machine.agent)
            times.append(time.monotonic() - began)
    return times


async def measure_warm(pool: WarmPool, count: int) -> list[float]:
    """Times from requests to their first output, with the pool filled before each."""
    times = []
    for _ in range(count):
        await pool.filled()
        began = time.monotonic()
        async with pool.sandbox() as agent:
            await first_output(agent)
            times.append(time.monotonic() - began)
    return times


def row(name: str, times: Sequence[float]) -> str:
    """The percentiles are of those that were measured: nothing is interpolated."""
    ordered = sorted(times)
    percentiles = [ordered[max(0, math.ceil(len(ordered) * part / 100) - 1)] for part in (0, 50, 90, 99, 100)]
    return f"{name:4} {len(ordered):5}" + "".join(f" {1000 * value:8.0f}" for value in percentiles)


async def measure(arguments: argparse.Namespace) -> None:
    task = asyncio.current_task()
    assert task is not None
    # as for Ctrl-C, so that machines end
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    config = Config(image=arguments.image, memory_mib=arguments.memory, cpus=arguments.cpus)
    print("from request to first output, in ms")
    print("         n      min      p50      p90      p99      max")
    if arguments.cold:
        print(row("cold", await measure_cold(config, arguments.cold)), flush=True)
    if arguments.warm:
        async with WarmPool(config, size=arguments.size, limit=arguments.limit) as pool:
            print(row("warm", await measure_warm(pool, arguments.warm)), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures the time from a request to its first output.")
    parser.add_argument("image", type=Path, help="what deploy/vm/build made")
    parser.add_argument("--size", type=int, default=2, help="machines that are booted ahead [default: 2]")
    parser.add_argument("--limit", type=int, default=3, help="machines at a time [default: 3]")
    parser.add_argument("--memory", type=int, default=256, metavar="MIB", help="of each machine [default: 256]")
    parser.add_argument("--cpus", type=int, default=1, help="of each machine [default: 1]")
    parser.add_argument("--cold", type=int, default=5, metavar="N", help="requests without the pool [default: 5]")
    parser.add_argument("--warm", type=int, default=10, metavar="N", help="requests to the pool [default: 10]")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(levelname)s: %(message)s")
    try:
        asyncio.run(measure(arguments))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    except (BootFailed, NoMachine, telexec.Error, OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
