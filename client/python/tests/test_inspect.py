"""The sandbox of Inspect: its own checks, unmodified, one by one.

They make a user. So as root the agent has a mount namespace of its own, where /etc and /home are copies.
"""

from __future__ import annotations

import os
import pathlib
import shlex
import subprocess
from collections.abc import AsyncIterator, Iterator

import pytest
from conftest import PROGRAMS, Daemon, until

pytest.importorskip("inspect_ai")

from inspect_ai.util import OutputLimitExceededError  # noqa: E402
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv  # noqa: E402
from inspect_ai.util._sandbox.self_check import *  # noqa: E402, F403

from telexec.inspect import TelexecSandboxConfig, TelexecSandboxEnvironment  # noqa: E402

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.getuid() != 0, reason="only an agent of root can change users"),
]

#: Copies in the agent's own mount namespace.
_APART = """
set -e
cp -a /etc "$0/etc"
mkdir "$0/home"
mount --bind "$0/etc" /etc
mount --bind "$0/home" /home
exec "$@"
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def target(home: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("inspect")
    uri = f"unix://{directory}/agent.sock"
    words = [PROGRAMS / "telexecd", "--listen", uri]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", _APART, directory, *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, cwd=directory,
        )  # fmt: skip
    until(lambda: b"listening on" in (directory / "log").read_bytes() or process.poll() is not None, "the agent listens")
    assert process.poll() is None, (directory / "log").read_text()
    yield uri
    process.terminate()
    process.wait()


@pytest.fixture
async def sandbox_env(target: str) -> AsyncIterator[TelexecSandboxEnvironment]:
    kind = registry_find_sandboxenv("telexec")
    assert kind is TelexecSandboxEnvironment
    config = kind.config_deserialize({"target": target})
    environments = await kind.sample_init("task", config, {})
    yield environments["default"].as_type(TelexecSandboxEnvironment)
    await kind.sample_cleanup("task", config, environments, False)


async def test_the_default_user_is_not_root(sandbox_env: TelexecSandboxEnvironment, target: str) -> None:
    assert (await sandbox_env.exec(["id", "-un"])).stdout == "nobody\n"
    assert (await sandbox_env.exec(["id", "-un"], user="root")).stdout == "root\n"
    assert (await sandbox_env.exec(["id", "-un"], user="0")).stdout == "root\n"
    config = TelexecSandboxConfig(target=target, user="daemon")
    others = await TelexecSandboxEnvironment.sample_init("task", config, {})
    assert (await others["default"].exec(["id", "-un"])).stdout == "daemon\n"
    await TelexecSandboxEnvironment.sample_cleanup("task", config, others, False)


async def test_a_sample_leaves_nothing(target: str) -> None:
    config = TelexecSandboxConfig(target=target)
    environments = await TelexecSandboxEnvironment.sample_init("task", config, {})
    sandbox = environments["default"]
    started = await sandbox.exec(["sh", "-c", "sleep 1000 >&- 2>&- & echo $!; pwd"])
    pid, directory = started.stdout.split()
    assert (await sandbox.exec(["touch", "root"], user="root")).success
    assert pathlib.Path(directory).is_dir()
    await TelexecSandboxEnvironment.sample_cleanup("task", config, environments, False)
    assert not pathlib.Path(directory).exists()
    until(lambda: not pathlib.Path(f"/proc/{pid}").exists(), "it is ended")


async def test_large_output_is_an_error(sandbox_env: TelexecSandboxEnvironment) -> None:
    with pytest.raises(OutputLimitExceededError):
        await sandbox_env.exec(["head", "-c", "20000000", "/dev/zero"])
    assert len((await sandbox_env.exec(["head", "-c", "10000000", "/dev/zero"])).stdout) == 10_000_000


async def test_its_connection_has_the_credentials(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(daemon.directory)
    credentials = {name: os.path.relpath(path) for name, path in daemon.credentials().items()}
    config = TelexecSandboxConfig(target=f"127.0.0.1:{daemon.port}", server_name="127.0.0.1", **credentials)
    environments = await TelexecSandboxEnvironment.sample_init("task", config, {})
    telexec, *words = shlex.split((await environments["default"].connection()).command)
    # there is no terminal here
    words.remove("-it")
    said = subprocess.run([PROGRAMS / telexec, *words, "-c", "id -un; pwd"], cwd="/", capture_output=True, text=True)
    assert said.stdout.startswith("nobody\n/tmp/inspect-"), said.stderr
    await TelexecSandboxEnvironment.sample_cleanup("task", config, environments, False)


def test_an_evaluation_runs_in_it(target: str, tmp_path: pathlib.Path) -> None:
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ChatMessageAssistant
    from inspect_ai.solver import Generate, Solver, TaskState, solver
    from inspect_ai.util import sandbox

    @solver
    def asks() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            found = await sandbox().exec(["sh", "-c", "id -un; cat given; pwd"])
            state.messages.append(ChatMessageAssistant(content=found.stdout))
            return state

        return solve

    samples = [Sample(input=f"{number}", files={"given": f"file {number}\n"}) for number in range(5)]
    task = Task(dataset=samples, solver=asks(), sandbox=("telexec", TelexecSandboxConfig(target=target)))
    [log] = eval(task, model="mockllm/model", log_dir=str(tmp_path), display="none")
    assert log.status == "success" and log.samples is not None, log.error
    said = [sample.messages[-1].text.split("\n") for sample in log.samples]
    assert [(user, given) for user, given, *_ in said] == [("nobody", f"file {number}") for number in range(5)]
    directories = {directory for _, _, directory, *_ in said}
    assert len(directories) == 5 and not any(pathlib.Path(directory).exists() for directory in directories)
