"""Errors say which argument is wrong and what is expected, in the words of this package."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Daemon
from test_aio import run

import telexec
import telexec.aio

STR_MAPPING = "expected a mapping of str to str"
TYPES: list[tuple[dict[str, Any], str]] = [
    ({"command": 5}, "'command': expected str or a sequence of str, not int"),
    ({"command": b"true"}, "'command': expected str or a sequence of str, not bytes"),
    ({"command": ["echo", 5]}, "'command': expected str or a sequence of str, but item 1 is int"),
    ({"env": {"A": 1}}, f"'env': {STR_MAPPING}, but the value of \"A\" is int"),
    ({"env": {1: "A"}}, f"'env': {STR_MAPPING}, but a key is int"),
    ({"env": "A=1"}, f"'env': {STR_MAPPING}, not str"),
    ({"labels": {"A": None}}, f"'labels': {STR_MAPPING}, but the value of \"A\" is NoneType"),
    ({"timeout": "5"}, "'timeout': must be real number, not str"),
    ({"kill_grace": []}, "'kill_grace': must be real number, not list"),
    ({"limits": {"memory": 5}}, "'limits': expected Limits, not dict"),
    ({"limits": telexec.Limits(memory="1G")}, "'limits': memory: 'str' object cannot be interpreted"),  # type: ignore[arg-type]
    ({"cwd": 5}, "'cwd': 'int' object is not an instance of 'str'"),
    ({"terminal": 80}, "'terminal': 'int' object is not an instance of 'tuple'"),
    ({"detach": "yes"}, "'detach': 'str' object is not an instance of 'bool'"),
    ({"input": 5}, "'input': expected str or bytes, not int"),
    ({"tiemout": 5}, ".run() got an unexpected keyword argument 'tiemout'"),
]


@pytest.mark.parametrize(("wrong", "text"), TYPES)
def test_types_of_commands(agent: telexec.Agent, wrong: dict[str, Any], text: str) -> None:
    for run in (agent.run, agent.start):
        with pytest.raises(TypeError) as caught:
            run(**{"command": "true", **wrong})  # type: ignore[operator]
        assert text.replace(".run", f".{run.__name__}") in str(caught.value)


def test_types_of_other_arguments(agent: telexec.Agent) -> None:
    any_agent: Any = agent
    with agent.start("cat") as execution:
        followed: Any = execution
        calls: list[tuple[Callable[[], Any], str]] = [
            (lambda: followed.write(5), "'data': expected str or bytes, not int"),
            (lambda: followed.signal(None), "'signal': expected str or int, not NoneType"),
            (lambda: any_agent.attach("a", "b"), "'position'"),
            (lambda: any_agent.get(5), "'id'"),
            (lambda: any_agent.list(labels=["a"]), f"'labels': {STR_MAPPING}, not list"),
            (lambda: any_agent.dial(80), "'address'"),
            (lambda: any_agent.forward(80), "'to'"),
            (lambda: any_agent.files.read(5), "'path'"),
            (lambda: any_agent.files.write("/x", 5), "'data': expected str or bytes, not int"),
            (lambda: any_agent.files.write("/x", "", mode="rw"), "'mode'"),
            (lambda: telexec.connect(5), "'target'"),  # type: ignore[arg-type]
            (lambda: telexec.connect("a", cert=5), "'cert'"),  # type: ignore[arg-type]
            (lambda: telexec.connect("a", connect_timeout="5"), "'connect_timeout'"),  # type: ignore[arg-type]
        ]
        for call, text in calls:
            with pytest.raises(TypeError) as caught:
                call()
            assert f"argument {text}" in str(caught.value)


def test_types_in_asyncio(daemon: Daemon) -> None:
    async def work(agent: telexec.aio.Agent) -> None:
        for call in (agent.run, agent.start):
            with pytest.raises(TypeError, match="argument 'env': expected a mapping"):
                await call("true", env={"A": 1})  # type: ignore[dict-item]

    run(daemon, work)


@pytest.mark.parametrize("when_converted", [False, True])
def test_a_panic_is_an_error(when_converted: bool) -> None:
    """Neither a blocking call, nor an await, nor a race waits forever."""
    from telexec import _telexec

    panicking = getattr(_telexec, "panicking", None)
    if panicking is None:
        pytest.skip("only a debug build has a call that panics")

    async def awaited() -> None:
        await panicking(when_converted)

    race = _telexec.Race()
    race.add(1, panicking(when_converted))
    for call in (panicking(when_converted).wait, lambda: asyncio.run(asyncio.wait_for(awaited(), 60))):
        with pytest.raises(telexec.Error, match="internal error in telexec: on purpose"):
            call()
    ended = race.next(0).wait()
    assert ended is not None and "internal error" in str(ended[2])
