"""What is returned and raised can be compared, copied, and sent to other processes."""

import concurrent.futures
import copy
import multiprocessing
import pathlib
import pickle
from typing import Any

import pytest
from conftest import Daemon

import telexec


def copies(value: Any) -> list[Any]:
    return [copy.copy(value), copy.deepcopy(value), *(pickle.loads(pickle.dumps(value, n)) for n in range(2, 6))]


def test_values(agent: telexec.Agent, tmp_path: pathlib.Path) -> None:
    result = agent.run("echo out", labels={"a": "b"}, text=True)
    with agent.start("echo out", labels={"a": "b"}) as execution:
        event = next(execution)
        execution.wait()
    info = agent.get(execution.id)
    with agent.files.watch(tmp_path) as watch:
        file = agent.files.write(tmp_path / "a", "data")
        change = next(watch)
    limits = telexec.Limits(memory=1 << 30, cpus=0.5)
    [outcome] = telexec.fleet(agent.target).run("exit 3")
    assert info.exit is not None
    for value in (result, result.exit, result.exit.usage, event, info, info.exit, file, change, limits, outcome):
        for copied in copies(value):
            assert type(copied) is type(value) and copied == value and repr(copied) == repr(value)
        assert value != "another" and repr(value).startswith(type(value).__name__ + "(")
    assert repr(event) == "Event(stream='stdout', data=b'out\\n', position=0)"
    assert repr(limits) == "Limits(memory=1073741824, processes=None, cpus=0.5)"
    assert limits != telexec.Limits(memory=1 << 30) and hash(limits) == hash(copy.copy(limits))
    assert f"id={execution.id!r}, command='echo out', argv=None" in repr(info)
    with pytest.raises(AttributeError):
        event.data = b""  # type: ignore[misc]


def raised(call: Any) -> telexec.Error:
    with pytest.raises(telexec.Error) as caught:
        call()
    return caught.value


def test_exceptions(agent: telexec.Agent, tmp_path: pathlib.Path) -> None:
    failures = [
        raised(lambda: agent.run("echo out; exit 3", check=True)),
        raised(lambda: agent.run("echo out; sleep 1000", check=True, timeout=0.3)),
        raised(lambda: agent.run(["/no/program"])),
        raised(lambda: agent.files.read(tmp_path / "none")),
        raised(lambda: agent.files.list("/proc/1/mem")),
        raised(lambda: agent.dial("127.0.0.1:1")),
        raised(lambda: agent.dial("no-such-host.invalid:1")),
        raised(lambda: agent.get("none")),
        raised(lambda: agent.run("true", cwd="relative")),
        raised(lambda: telexec.connect(f"unix://{tmp_path}/none")),
        telexec.Lost("lost"),
        telexec.Refused("refused"),
    ]
    kinds = {type(failure).__mro__[1 if type(failure).__name__.startswith("_") else 0] for failure in failures}
    assert {telexec.CommandFailed, telexec.TimedOut, telexec.FileError, telexec.ForwardError} <= kinds
    names = ("result", "errno", "strerror", "filename", "address", "stage")
    for failure in failures:
        failure.add_note("a note")
        for copied in copies(failure):
            assert type(copied) is type(failure) and str(copied) == str(failure)
            assert copied.__notes__ == ["a note"]
            for name in names:
                assert getattr(copied, name, None) == getattr(failure, name, None), name


def test_other_processes(daemon: Daemon) -> None:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(_run, daemon.uri, telexec.Limits(processes=50)).result().stdout == b"out\n"
        failure = pool.submit(_run, daemon.uri, None, "exit 3").exception()
    assert isinstance(failure, telexec.CommandFailed) and failure.result.exit_code == 3


def _run(target: str, limits: telexec.Limits | None, command: str = "echo out") -> telexec.Result[bytes]:
    options: telexec.Options = {} if limits is None else {"limits": limits}
    return telexec.connect(target).run(command, check=True, **options)
