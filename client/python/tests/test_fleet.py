"""A command on many targets."""

import asyncio
import pathlib
from collections.abc import Iterator

import pytest
from conftest import MARK, Daemon, processes, until
from test_process import ended, program

import telexec
import telexec.aio


@pytest.fixture
def targets(daemon: Daemon, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """`n1` to `n3` are the agent, `gone` is none."""
    lines = [f"[targets.n{number}]\naddress = '{daemon.uri}'\n" for number in (1, 2, 3)]
    lines += [f"[targets.gone]\naddress = 'unix://{tmp_path}/none'\n", "[groups]\nn = ['n[1-2]']\nloop = ['gone', '@n']\n"]
    (tmp_path / "config.toml").write_text("".join(lines))
    monkeypatch.setenv("TELEXEC_CONFIG", str(tmp_path / "config.toml"))
    yield ["n1", "n2", "n3"]


@pytest.mark.usefixtures("targets")
def test_targets_are_sets() -> None:
    assert telexec.fleet("n[1-3]").targets == ["n1", "n2", "n3"]
    assert telexec.fleet(["@n", "n3,n1", "web[01-02]"]).targets == ["n1", "n2", "n3", "web01", "web02"]
    assert telexec.fleet("@all").targets == ["gone", "n1", "n2", "n3"]
    assert list(telexec.fleet([]).run("true")) == []
    for wrong in ("@none", "n[1-", "n[3-1]", "ssh://h"):
        with pytest.raises(telexec.Invalid):
            telexec.fleet(wrong)
    with pytest.raises(telexec.Invalid, match="max_parallel"):
        telexec.fleet("n1").run("true", max_parallel=0)


@pytest.mark.parametrize("max_parallel", [1, 2, 32])
def test_one_that_fails_stops_no_other(targets: list[str], max_parallel: int) -> None:
    outcomes = list(telexec.fleet(["gone", *targets]).run("echo out; exit 3", max_parallel, text=True))
    assert sorted(outcome.target for outcome in outcomes) == ["gone", *targets]
    for outcome in outcomes:
        if outcome.target == "gone":
            assert outcome.result is None and isinstance(outcome.error, telexec.Unreachable)
        else:
            assert outcome.error is None and outcome.result is not None
            assert (outcome.result.stdout, outcome.result.exit_code) == ("out\n", 3)
    for outcome in telexec.fleet(targets).run("exit 3", check=True):
        assert isinstance(outcome.error, telexec.CommandFailed)
    for outcome in telexec.fleet(targets).run(["/none"]):
        assert isinstance(outcome.error, telexec.NotStarted)


def test_the_configuration_is_read_once(targets: list[str], tmp_path: pathlib.Path) -> None:
    fleet = telexec.fleet(targets)
    (tmp_path / "config.toml").unlink()
    assert [outcome.error for outcome in fleet.run("true")] == [None, None, None]
    with pytest.raises(telexec.Invalid, match="cannot read"):
        telexec.fleet(targets)


def test_results_come_as_they_end(targets: list[str], tmp_path: pathlib.Path) -> None:
    # the one that makes the directory waits for a file
    text = f"mkdir {tmp_path}/first 2>&- || exit 0; while ! [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 1"
    codes = []
    for outcome in telexec.fleet(targets).run(text):
        assert outcome.result is not None
        codes.append(outcome.result.exit_code)
        if len(codes) == 2:
            (tmp_path / "go").touch()
    assert codes == [0, 0, 1]


def test_leaving_the_loop_ends_the_rest(targets: list[str], tmp_path: pathlib.Path, mark: str) -> None:
    text = f"mkdir {tmp_path}/first 2>&- && exit; sleep 1000"
    for _ in telexec.fleet(targets).run(text, env={MARK: mark}):
        break
    until(lambda: not processes(mark), "they are ended")
    with telexec.fleet(targets).run("sleep 1000", env={MARK: mark}) as runs:
        until(lambda: len(processes(mark)) >= 3, "they run")
    until(lambda: not processes(mark), "they are ended")
    assert list(runs) == []


def test_asyncio(targets: list[str], tmp_path: pathlib.Path, mark: str) -> None:
    async def main() -> None:
        found = []
        async for outcome in telexec.aio.fleet("n[1-3],gone").run("echo out", 2, text=True):
            found.append((outcome.target, outcome.result and outcome.result.stdout))
        assert sorted(found) == [("gone", None), *((target, "out\n") for target in targets)]
        text = f"mkdir {tmp_path}/first 2>&- && exit; sleep 1000"
        async for _ in telexec.aio.fleet(targets).run(text, env={MARK: mark}):
            break
        await asyncio.to_thread(until, lambda: not processes(mark), "they are ended")
        async with telexec.aio.fleet(targets).run("sleep 1000", env={MARK: mark}):
            await asyncio.to_thread(until, lambda: len(processes(mark)) >= 3, "they run")
        await asyncio.to_thread(until, lambda: not processes(mark), "they are ended")

    asyncio.run(main())


def test_a_program_that_ends_leaves_nothing(daemon: Daemon, mark: str) -> None:
    text = f"""
        runs = telexec.fleet({daemon.uri!r}).run("echo; sleep 1000", env=env)
        import time
        while not agent.list(): time.sleep(0.02)
    """
    assert ended(program(daemon, mark, text)) == (0, "", "")
    until(lambda: not processes(mark), "it is ended")
