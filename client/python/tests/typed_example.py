"""What users write, for mypy --strict: see test_typing.py."""

import asyncio
from typing import Any, assert_type

import telexec
import telexec.aio


def blocking(target: str) -> bytes:
    agent = telexec.connect(target, cert="a.pem", key="a.key", ca="ca.pem", connect_timeout=3, reconnect=5)
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
    agent.files.make_directory("/tmp/a", 0o700, parents=True)
    agent.files.rename("/tmp/a", "/tmp/b", replace=True)
    assert_type(agent.files.glob("/etc", "*.conf").matches, list[telexec.FileInfo])
    assert_type(agent.files.search("/etc", "nameserver", glob="*.conf", max_matches=3), telexec.Found[telexec.Line])
    assert_type(telexec.__version__, str)
    with agent.files.watch("/etc") as watch:
        for change in watch:
            assert_type(change.path, str | None)
    with agent.forward("db:5432", listen="127.0.0.1:0") as forward, agent.dial("db:5432") as connection:
        host, port = forward.address
        connection.write(f"{host} {port}")
        assert_type(connection.read(), bytes)
    for outcome in telexec.fleet(["web[1-3]"], connect_timeout=3).run("uptime", 8, timeout=3, text=True, reconnect=5):
        assert_type(outcome.result, telexec.Result[str] | None)
        assert_type(outcome.error, telexec.Error | None)
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
    async with agent.reverse("localhost:80") as forward, agent.dial("unix:///run/db") as connection:
        assert_type(forward, telexec.aio.Forward)
        assert_type(await connection.read(3), bytes)
    async for outcome in telexec.aio.fleet("@web").run(["uptime"]):
        assert_type(outcome, telexec.Outcome[bytes])
    await agent.files.rename("a", "b")
    assert_type((await agent.files.search("/etc", "a")).matches[0].text, bytes)
    attached = await agent.attach(execution.id, position=3)
    assert_type(attached, telexec.aio.Execution)
    results = await asyncio.gather(*(agent.run("true", text=True) for _ in range(3)))
    assert_type(results, list[telexec.Result[str]])
    return results[0].stdout
