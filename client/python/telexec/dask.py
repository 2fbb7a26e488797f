"""A Dask cluster whose scheduler and workers run on machines that telexec reaches.

    from dask.distributed import Client
    from telexec.dask import TelexecCluster

    with TelexecCluster(["web1", "web2"], n_workers=4) as cluster, Client(cluster) as client:
        print(client.submit(sum, range(10)).result())

The program `telexec` starts each process and follows it: a lost connection is made up for. What ends this program, SIGKILL
too, ends the cluster. A worker whose process ends, or whose machine is lost, is replaced, on another machine if there is one.
`close()` lets workers and scheduler end in order, and leaves no process on any machine that can be reached.

The scheduler and the workers talk to each other, and this program to the scheduler, over the network: telexec does not
carry that. `distributed` must be installed for `python` on each target, in the version that this program has.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import logging
import re
import time
import uuid
from collections.abc import Container, Mapping, Sequence

from distributed.core import Status
from distributed.deploy.spec import ProcessInterface, SpecCluster

__all__ = ["TelexecCluster"]

logger = logging.getLogger(__name__)

#: How long a target that failed is used only if there is no other.
AVOIDED_SECONDS = 60.0
#: Between attempts to replace workers where no target could run one.
RETRY_SECONDS = 5.0
#: How long a process may take to end in order, once its standard input has ended.
ORDERLY_END_SECONDS = 15.0
#: How long an end may take after that: SIGTERM, the grace of the agent, SIGKILL.
END_SECONDS = 60.0
#: Of a process's output, for the error when it fails.
LAST_LINES = 20

#: Runs a module until that ends, or standard input does: the program that started it is gone then.
_WATCHED = """
import os, runpy, signal, sys, threading
def watch():
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
# for SIGTERM before Dask has its own handler, and after it has restored this one on its way to its exit
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
threading.Thread(target=watch, daemon=True).start()
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""

_SCHEDULER_ADDRESS = re.compile(r"Scheduler at:\s+(\S+)")


class _Failed(Exception):
    """A process was not started, or ended before it was ready."""


class _Targets:
    """Where processes run: the target with the fewest, and those that failed lately last."""

    def __init__(self, names: Sequence[str]):
        if isinstance(names, str) or not names:
            raise ValueError("targets: a list with at least one name is needed")
        self._running = {name: 0 for name in names}
        self._avoided: dict[str, float] = {}

    def take(self, tried: Container[str]) -> str | None:
        """One for another process; `None`: all were tried."""

        def rank(name: str) -> tuple[bool, int]:
            return time.monotonic() < self._avoided.get(name, 0), self._running[name]

        name = min((name for name in self._running if name not in tried), key=rank, default=None)
        if name is not None:
            self._running[name] += 1
        return name

    def give_back(self, name: str, failed: bool) -> None:
        self._running[name] -= 1
        if failed:
            self._avoided[name] = time.monotonic() + AVOIDED_SECONDS


class _Command:
    """A command on a target, as long as the program `telexec` that follows it runs."""

    def __init__(self, target: str):
        self.target = target
        self.lines: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._partial = ""
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, words: Sequence[str]) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *words,
            # is open as long as this program lives
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # a Ctrl-C at the terminal is for this program, which then closes the cluster
            start_new_session=True,
            limit=16 * 1024 * 1024,
        )
        self._following = asyncio.ensure_future(self._follow())

    async def _follow(self) -> None:
        async def events() -> None:
            async for line in self._process.stdout:
                self._event(json.loads(line))

        async def messages() -> None:
            async for line in self._process.stderr:
                self._line(line.decode(errors="replace").rstrip("\n"))

        try:
            await asyncio.gather(events(), messages())
        finally:
            code = await self._process.wait()
            if not self.started.done():
                self.started.set_exception(_Failed(f"{self.target}: {self.said() or f'exit code {code}'}"))
                self.started.exception()  # it may be that nobody waits
            self.ended.set_result(code)

    def _event(self, event: Mapping) -> None:
        if event["event"] == "started":
            self.started.set_result(None)
        elif event["event"] == "stdout":
            *whole, self._partial = (self._partial + event.get("text", "")).split("\n")
            for line in whole:
                self._line(line)

    def _line(self, line: str) -> None:
        self.lines.append(line)
        logger.debug("%s: %s", self.target, line)
        self.heard(line)

    def heard(self, line: str) -> None:
        """Another line of the process, or of telexec."""

    def said(self) -> str:
        return "\n".join(self.lines)

    async def end(self) -> None:
        """Lets it end in order, ends what is left with all its processes, and waits for that."""
        if self._process is None:
            return
        if self.started.done():
            # which it sees
            self._process.stdin.close()
            await self._ends_within(ORDERLY_END_SECONDS)
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            if not await self._ends_within(END_SECONDS):
                logger.warning("%s: not known to have ended: %s", self.target, self.said())
                self._process.kill()
        await asyncio.wait([self._following])

    async def _ends_within(self, seconds: float) -> bool:
        await asyncio.wait([self.ended], timeout=seconds)
        return self.ended.done()


class _Process(ProcessInterface):
    """The scheduler or a worker."""

    def __init__(self, cluster: TelexecCluster, name=None):
        super().__init__(name=name)
        self.name = name
        self._owner = cluster
        self._command: _Command | None = None

    def _words(self) -> list[str]:
        """The module to run, and its arguments."""
        raise NotImplementedError

    async def _ready(self, command: _Command) -> None:
        await command.started

    async def start(self):
        failures: dict[str, str] = {}
        while (target := self._owner._targets.take(failures)) is not None:
            try:
                self._command = await self._started_on(target)
            except _Failed as failed:
                failures[target] = str(failed)
                continue
            self._watching = asyncio.ensure_future(self._watch())
            await super().start()
            return
        self.status = Status.failed
        raise RuntimeError("no target could run it:\n" + "\n".join(failures.values()))

    async def _started_on(self, target: str) -> _Command:
        command = _Command(target)
        try:
            await command.start(self._owner._telexec(target, self._words()))
            await self._ready(command)
            return command
        except BaseException as error:
            self._owner._targets.give_back(target, failed=isinstance(error, _Failed))
            await command.end()
            raise

    async def _watch(self) -> None:
        code = await self._command.ended
        # a worker that is retired ends by itself
        is_lost = self.status == Status.running and self._owner._wants(self)
        self._owner._targets.give_back(self._command.target, failed=is_lost)
        if self.status == Status.running:
            await super().close()
        if is_lost:
            self._owner._lost(self, code)

    async def close(self):
        if self.status == Status.closed:
            return
        self.status = Status.closing
        if self._command is not None:
            await self._command.end()
            await self._watching
        await super().close()


class _Scheduler(_Process):
    """The scheduler; its address is what it says."""

    def _words(self) -> list[str]:
        return ["distributed.cli.dask_scheduler", *self._owner._scheduler_flags]

    async def _ready(self, command: _Command) -> None:
        address = asyncio.get_running_loop().create_future()

        def heard(line: str) -> None:
            found = _SCHEDULER_ADDRESS.search(line)
            if found and not address.done():
                address.set_result(found[1])

        command.heard = heard
        done, _ = await asyncio.wait([address, command.ended], return_when=asyncio.FIRST_COMPLETED)
        if address not in done:
            raise _Failed(f"{command.target}: the scheduler ended:\n{command.said()}")
        self.address = address.result()


class _Worker(_Process):
    """A worker; the scheduler knows it by its name."""

    def __init__(self, scheduler: str, cluster: TelexecCluster, name=None):
        super().__init__(cluster, name)
        self._scheduler = scheduler

    def _words(self) -> list[str]:
        words = ["distributed.cli.dask_worker", self._scheduler, "--name", str(self.name), "--no-dashboard"]
        return [*words, *self._owner._worker_flags]


class TelexecCluster(SpecCluster):
    """A Dask cluster on these targets: what `telexec` takes for a target, such as the names of its configuration.

    The scheduler runs on the first target that can run it, on a free port unless `scheduler_flags` name one. Workers are
    spread evenly; `scale` and `adapt` work as in other clusters.

    targets: names of targets
    n_workers: workers to begin with
    python: the program on the targets
    worker_flags, scheduler_flags: of `dask worker` and `dask scheduler`, such as `["--nthreads", "2"]`
    exec_flags: of `telexec exec`, such as `["--user", "dask", "--memory", "8G"]`
    reconnect: how long a lost connection to an agent is tried again before the process counts as lost
    telexec: the program here
    asynchronous, loop, security, silence_logs, name, shutdown_on_close: as of `SpecCluster`
    """

    def __init__(
        self,
        targets: Sequence[str],
        n_workers: int = 0,
        *,
        python: str = "python3",
        worker_flags: Sequence[str] = (),
        scheduler_flags: Sequence[str] = ("--port", "0", "--no-dashboard"),
        exec_flags: Sequence[str] = (),
        reconnect: str = "30s",
        telexec: str = "telexec",
        **options,
    ):
        self._targets = _Targets(targets)
        self._python = python
        self._worker_flags = list(worker_flags)
        self._scheduler_flags = list(scheduler_flags)
        self._program = [telexec, "exec", "-i", "--json", "--merge", "--descendants=kill", f"--reconnect={reconnect}"]
        self._exec_flags = list(exec_flags)
        self._label = f"dask={uuid.uuid4().hex[:12]}"
        self._retry: asyncio.TimerHandle | None = None
        worker = {"cls": _Worker, "options": {"cluster": self}}
        super().__init__(
            workers={number: worker for number in range(n_workers)},
            scheduler={"cls": _Scheduler, "options": {"cluster": self}},
            worker=worker,
            **options,
        )

    def _telexec(self, target: str, words: Sequence[str]) -> list[str]:
        flags = [f"--label={self._label}", *self._exec_flags]
        return [*self._program, *flags, target, "--", self._python, "-c", _WATCHED, *words]

    def _wants(self, process: _Process) -> bool:
        return self.status == Status.running and (process is self.scheduler or process.name in self.worker_spec)

    def _lost(self, process: _Process, code: int) -> None:
        """A process has ended, and nobody has asked for that."""
        said = process._command.said()
        logger.warning("%s on %s has ended (exit code %s): %s", process.name, process._command.target, code, said)
        if self.workers.get(process.name) is process:
            del self.workers[process.name]
            self._restore_in(0)

    def _restore_in(self, seconds: float) -> None:
        if self._retry is None:
            start = lambda: self._futures.add(asyncio.ensure_future(self._restore()))
            self._retry = asyncio.get_running_loop().call_later(seconds, start)

    async def _restore(self) -> None:
        """Starts what is missing, until all of it runs."""
        self._retry = None
        if self.status != Status.running:
            return
        try:
            # where only its agent was lost, the old worker still has the name
            missing = [name for name in self.worker_spec if name not in self.workers]
            await self.scheduler_comm.retire_workers(names=missing, close_workers=True, remove=True)
            await self._correct_state()
        except Exception as error:
            logger.warning("workers could not be replaced: %s", error)
            for name, worker in list(self.workers.items()):
                if worker.status in (Status.failed, Status.created):
                    worker.status = Status.closed
                    del self.workers[name]
            self._restore_in(RETRY_SECONDS)

    async def _close(self):
        if self._retry is not None:
            self._retry.cancel()
        await super()._close()
