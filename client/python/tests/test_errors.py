"""Errors say which argument is wrong and what is expected, in the words of this package."""

import asyncio
import pathlib
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from conftest import PROGRAMS, Daemon, until
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
    for run in (agent.run, agent.start, telexec.fleet(agent.target).run):
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
            (lambda: telexec.connect("a", reconnect="5"), "'reconnect'"),  # type: ignore[arg-type]
            (lambda: telexec.fleet(5), "'targets': expected str or a sequence of str, not int"),  # type: ignore[arg-type]
            (lambda: any_agent.files.rename("a", 5), "'to'"),
            (lambda: telexec.fleet("a", key=5), "'key'"),  # type: ignore[arg-type]
            (lambda: telexec.fleet("a").run("true", max_parallel="5"), "'max_parallel': expected int, not str"),  # type: ignore[call-overload]
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


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"cwd": "relative"}, "cwd: is not an absolute path"),
    ({"id": "a b"}, "id: must match"),
    ({"env": {"A=": ""}}, "env: has a name with '='"),
    ({"command": ["a", "b\0"]}, r"command\[1\]: contains a NUL byte"),
    ({"command": []}, "command: names no program"),
    ({"command": ["a"], "shell": "sh"}, "shell: is for a command that is a str, not a list"),
    ({"command": ["a"], "login": True}, "login: is for a command that is a str, not a list"),
    ({"limits": telexec.Limits(memory=0)}, "limits.memory: is not positive"),
    ({"limits": telexec.Limits(processes=0)}, "limits.processes: is not positive"),
    ({"terminal": (0, 1)}, "terminal.columns: is not from 1 to 65535"),
    ({"labels": {"/": ""}}, "labels: has a key"),
    ({"max_output": -1}, "max_output: can't convert negative int"),
    ({"limits": telexec.Limits(memory=1 << 80)}, "limits: memory: int too big"),
    ({"timeout": 1e300}, "timeout: 1e300 is not a number of seconds"),
    ({"terminal": (80, 24, 1)}, "terminal: expected tuple of length 2"),
]


@pytest.mark.parametrize(("wrong", "text"), WRONG)
def test_values_of_commands(agent: telexec.Agent, wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(telexec.Invalid, match=f"^{text}"):
        agent.run(**{"command": "true", **wrong})


def test_no_error_speaks_of_flags(daemon: Daemon, agent: telexec.Agent) -> None:
    with pytest.raises(telexec.Invalid, match="^cert, key and ca must be given together; missing: key and ca, as keywords"):
        telexec.connect(f"127.0.0.1:{daemon.port}", cert=daemon.certs / "client.pem")
    agent.run("true", id="taken")
    with pytest.raises(telexec.NotStarted, match="choose another id"):
        agent.run("false", id="taken")
    with pytest.raises(telexec.Invalid, match="input: 'utf-8' codec can't encode"):
        agent.run("true", input="\udcff")
    with pytest.raises(telexec.Invalid, match="reconnect: -1.0 is not a number of seconds"):
        telexec.connect(agent.target, reconnect=-1)


def test_keywords_that_there_are_not(agent: telexec.Agent) -> None:
    any_telexec: Any = telexec
    any_agent: Any = agent
    for call, name in [
        (lambda: any_telexec.connect("a", foo=1), "connect"),
        (lambda: any_telexec.fleet("a", foo=1), "fleet"),
        (lambda: any_telexec.fleet("a").run("true", foo=1), "Fleet.run"),
        (lambda: any_agent.start("true", text=True), "Agent.start"),
        (lambda: any_agent.files.glob("/", "*", foo=1), "Files.glob"),
        (lambda: any_agent.list(foo=1), "Agent.list"),
    ]:
        with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument"):
            call()


def test_what_agents_say_is_in_the_words_of_this_package(agent: telexec.Agent, tmp_path: pathlib.Path) -> None:
    with agent.start("sleep 1", input="data") as execution:
        with pytest.raises(telexec.Error, match=r"does not accept input, since it was started by run\(\), or with input="):
            execution.write("more")
    for call, text in [
        (lambda: agent.files.write("", ""), "path: is missing"),
        (lambda: agent.files.write(tmp_path / "a", "", mode=0o77777), "mode: has bits beyond"),
        (lambda: agent.files.rename(tmp_path / "a", ""), "to: is missing"),
        (lambda: agent.dial("a" * 300 + ":1"), "address: is neither an address nor a name"),
        (lambda: agent.reverse("127.0.0.1:1", "a" * 300 + ":1"), "listen: is neither an address nor a name"),
    ]:
        with pytest.raises(telexec.Invalid, match=f"^{text}"):
            call()


@pytest.mark.usefixtures("configured")
def test_targets_that_are_none(tmp_path: pathlib.Path) -> None:
    for target, kind, text in [
        ("/run/x.sock", telexec.Invalid, "unix:///run/x.sock"),
        ("root@web1", telexec.Invalid, 'use "web1", and give user= to the command'),
        ("@web", telexec.Invalid, "is not one target: use telexec.fleet"),
        ("local", telexec.Invalid, "without an agent: use subprocess, or run telexecd"),
        ("nats://h/web1", telexec.Invalid, "by way of NATS: connect to the agent's own address"),
        ("nats+tls://h/web1", telexec.Invalid, "by way of NATS: connect to the agent's own address"),
        ("away", telexec.Invalid, "^away: only the program `telexec` reaches agents by way of NATS"),
        ("10.0.0.1:7443", telexec.Unreachable, "needs TLS"),
        (f"unix://{tmp_path}/none.sock", telexec.Unreachable, "is unreachable: No such file or directory .os error 2.$"),
    ]:
        with pytest.raises(kind, match=text):
            telexec.connect(target, connect_timeout=5)
    for target in ("local", "nats://h/web1"):
        with pytest.raises(telexec.Invalid, match="only the program"):
            telexec.fleet(["web1", target])
    [outcome] = telexec.fleet("away").run("true")
    assert isinstance(outcome.error, telexec.Invalid) and "by way of NATS" in str(outcome.error)


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


def test_what_has_to_be_approved_has_an_id(tmp_path: pathlib.Path) -> None:
    policy = tmp_path / "policy.cedar"
    policy.write_text('@id("a") @approval("5m") permit(principal, action in Action::"start", resource);')
    uri, log = f"unix://{tmp_path}/agent.sock", tmp_path / "log"
    words = [PROGRAMS / "telexecd", "--listen", uri, "--policy", policy]
    with log.open("wb") as output, subprocess.Popen(words, stdout=output, stderr=output, cwd=tmp_path) as agent:
        try:
            until(lambda: "listening on" in log.read_text(), "the agent listens")
            with pytest.raises(telexec.Refused, match="another identity's approval") as refused:
                telexec.connect(uri).run("true")
            assert refused.value.approval_id is not None and refused.value.approval_id in str(refused.value)
        finally:
            agent.terminate()
