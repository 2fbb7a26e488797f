"""What users write, for mypy --strict: see test_typing.py."""

import asyncio
from typing import Any, assert_type

import telexec
import telexec.aio


def blocking(target: str) -> bytes:
    agent = telexec.connect(target, cert="a.pem", key="a.key", ca="ca.pem", connect_timeout=3)
    assert_type(agent, telexec.Agent)
    limits = telexec.Limits(memory=1 << 30, cpus=0.5)
    result = agent.run(["make"], timeout=3, env={"A": "b"}, limits=limits, check=True)
    assert_type(result, telexec.Result[bytes])
    assert_type(agent.run("make", text=True).check().stdout, str)
    text = len(target) > 3
    assert_type(agent.run("make", text=text), telexec.Result[Any])
    with agent.start("make", detach=True, user="build") as execution:
        for event in execution:
            assert_type(event, telexec.Event)
            if event.stream == "stderr":
                execution.signal("INT")
        execution.write(b"data")
        assert_type(execution.wait().exit_code, int)
    assert_type(agent.list(), list[telexec.Info])
    with agent.files.watch("/etc") as watch:
        for change in watch:
            assert_type(change.path, str | None)
    try:
        agent.files.read("/etc/motd")
    except FileNotFoundError:
        pass
    except telexec.CommandFailed as failed:
        print(failed.result.stderr)
    return result.stdout


async def asynchronous(target: str) -> str:
    agent = await telexec.aio.connect(target)
    async with agent.start("make") as execution:
        async for event in execution:
            assert_type(event.data, bytes)
        assert_type(await execution.wait(), telexec.Exit)
    attached = await agent.attach(execution.id, position=3)
    assert_type(attached, telexec.aio.Execution)
    results = await asyncio.gather(*(agent.run("true", text=True) for _ in range(3)))
    assert_type(results, list[telexec.Result[str]])
    return results[0].stdout
