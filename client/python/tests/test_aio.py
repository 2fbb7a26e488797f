"""The same for asyncio."""

import asyncio
import gc

import pytest
from conftest import LIMIT_SECONDS, MARK, Daemon, processes

import telexec
import telexec.aio


def run(daemon: Daemon, work) -> None:  # type: ignore[no-untyped-def]
    async def limited() -> None:
        agent = await telexec.aio.connect(daemon.uri)
        await asyncio.wait_for(work(agent), LIMIT_SECONDS)

    asyncio.run(limited())


def test_all_of_it(daemon: Daemon, tmp_path) -> None:  # type: ignore[no-untyped-def]
    async def work(agent: telexec.aio.Agent) -> None:
        result = await agent.run("cat; exit 3", input="a", text=True)
        assert (result.exit_code, result.stdout) == (3, "a")
        with pytest.raises(telexec.CommandFailed):
            await agent.run("exit 3", check=True)
        with pytest.raises(telexec.NotStarted):
            await agent.run(["/no/program"])
        async with agent.start("read x; echo $x; read x; exit 4") as execution:
            await execution.write("one\n")
            assert [event.data async for event in limited(execution, 1)] == [b"one\n"]
            assert (await agent.get(execution.id)).state == "running"
            assert execution.id in [info.id for info in await agent.list()]
            await execution.close_input()
            assert [event async for event in execution] == []
            assert (await execution.wait()).exit_code == 4
        async with agent.attach(execution.id) as attached:
            assert [event.data async for event in attached] == [b"one\n"]
        execution = await agent.start("trap 'exit 9' USR1; echo ready; while :; do sleep 0.05; done")
        await anext(execution)
        await execution.signal("USR1")
        assert (await execution.wait()).exit_code == 9
        await execution.close()
        assert (await agent.files.write(tmp_path / "a", "data")).size == 4
        assert await agent.files.read(tmp_path / "a") == b"data"
        async with agent.files.watch(tmp_path) as watch:
            await agent.files.remove(tmp_path / "a")
            assert (await anext(watch)).change == "removed"
        with pytest.raises(FileNotFoundError):
            await agent.files.info(tmp_path / "a")
        assert await agent.files.list(tmp_path) == []
        await agent.files.make_directory(tmp_path / "b/c", parents=True)
        await agent.files.rename(tmp_path / "b", tmp_path / "d")
        await agent.files.write(tmp_path / "d/c/file", "one\ntwo\n")
        assert [info.size for info in (await agent.files.glob(tmp_path, "f*")).matches] == [8]
        assert [line.number for line in (await agent.files.search(tmp_path, "two")).matches] == [2]

    run(daemon, work)


async def limited(execution: telexec.aio.Execution, count: int):  # type: ignore[no-untyped-def]
    for _ in range(count):
        yield await anext(execution)


def test_a_cancelled_task_ends_the_tree(daemon: Daemon, mark: str) -> None:
    async def work(agent: telexec.aio.Agent) -> None:
        command = "sleep 1000 & setsid sleep 1000 & wait"
        running = asyncio.create_task(agent.run(command, env={MARK: mark}))
        while len(processes(mark)) < 3:
            await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        while processes(mark):
            await asyncio.sleep(0.02)

        entered = asyncio.Event()

        async def follow() -> None:
            async with agent.start(command, env={MARK: mark}) as execution:
                entered.set()
                async for _ in execution:
                    pass

        following = asyncio.create_task(follow())
        await entered.wait()
        while len(processes(mark)) < 3:
            await asyncio.sleep(0.02)
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
        assert processes(mark) == []

    run(daemon, work)


def test_a_task_that_is_cancelled_at_any_time_leaves_nothing(daemon: Daemon, mark: str) -> None:
    async def work(agent: telexec.aio.Agent) -> None:
        for delay in range(40):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(agent.run("sleep 1000", env={MARK: mark}), delay / 2000)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(delay / 2000):
                    async with agent.start("sleep 1000", env={MARK: mark}) as execution:
                        await execution.wait()
        gc.collect()
        while processes(mark):
            await asyncio.sleep(0.02)

    run(daemon, work)


def test_timeouts_lose_no_output(daemon: Daemon) -> None:
    async def work(agent: telexec.aio.Agent) -> None:
        parts = []
        async with agent.start("for i in $(seq 300); do echo $i; sleep 0.002; done") as execution:
            while True:
                try:
                    parts.append((await asyncio.wait_for(anext(execution), 0.001)).data)
                except TimeoutError:
                    continue
                except StopAsyncIteration:
                    break
        assert b"".join(parts) == b"".join(b"%d\n" % number for number in range(1, 301))

    run(daemon, work)


def test_five_hundred_at_once(daemon: Daemon) -> None:
    async def work(agent: telexec.aio.Agent) -> None:
        runs = (agent.run(f"echo {number}; sleep 2", text=True) for number in range(500))
        results = await asyncio.gather(*runs)
        assert [int(result.stdout) for result in results] == list(range(500))

    run(daemon, work)


def test_one_loop_after_another(daemon: Daemon) -> None:
    async def work(agent: telexec.aio.Agent) -> None:
        assert (await agent.run("echo a")).stdout == b"a\n"

    for _ in range(3):
        run(daemon, work)
