"""The sandbox `telexec` of Inspect (inspect-ai): samples run on machines with telexec agents.

    Task(..., sandbox=("telexec", TelexecSandboxConfig(target="vm1", user="sandbox")))

A sample has a directory of its own on the target, which is removed with it, and what it runs is ended with it. It is not
kept apart from others otherwise: that is for the target, such as a virtual machine for each sample, and for its agent's policy.
"""

from __future__ import annotations

import errno
import os
import posixpath
import shlex
import signal
import uuid
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel

from . import aio
from ._command import Options, Result
from ._errors import Lost, NotFound, NotStarted, Refused, Unreachable

__all__ = ["TelexecSandboxConfig", "TelexecSandboxEnvironment"]

#: As a shell reports a program that it cannot run, or does not find.
_NOT_FOUND = 127
#: This plus n: killed by signal n.
_SIGNAL_BASE = 128
_LABEL = "inspect-sandbox"
#: Other users that `exec` names start in it too.
_MAKE = 'made=$(mktemp -d "$1") && chmod 755 "$made" && echo "$made"'


class TelexecSandboxConfig(BaseModel, frozen=True):
    """Where samples run."""

    #: As `telexec.connect` takes it.
    target: str
    #: Runs what names no user, and owns the sample's directory.
    user: str = "nobody"
    #: Where the directories of samples are made.
    directory: str = "/tmp"
    #: These as `telexec.connect` takes them.
    cert: str | None = None
    key: str | None = None
    ca: str | None = None
    server_name: str | None = None


@sandboxenv(name="telexec")
class TelexecSandboxEnvironment(SandboxEnvironment):
    """A directory on a target."""

    def __init__(self, agent: aio.Agent, config: TelexecSandboxConfig, label: str, directory: str):
        super().__init__()
        self._agent = agent
        self._config = config
        self._label = label
        self._directory = directory

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return TelexecSandboxConfig(**config)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        config = _config(config)
        label = uuid.uuid4().hex
        try:
            agent = await aio.connect(
                config.target, cert=config.cert, key=config.key, ca=config.ca, server_name=config.server_name
            )
            command = ["/bin/sh", "-c", _MAKE, "sh", posixpath.join(config.directory, "inspect-XXXXXXXX")]
            made = await agent.run(command, user=config.user, cwd="/", text=True, check=True)
        except (Unreachable, Lost) as error:
            raise SandboxUnavailableError(str(error)) from error
        return {"default": cls(agent, config, label, made.stdout.rstrip("\n"))}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            await environment.as_type(TelexecSandboxEnvironment)._clean_up()

    async def _clean_up(self) -> None:
        for info in await self._agent.list(labels={_LABEL: self._label}):
            try:
                async with self._agent.attach(info.id, info.position) as execution:
                    await execution.signal("KILL")
            except NotFound:
                pass
        remove = ["rm", "-rf", "--", self._directory]
        if (await self._agent.run(remove, user=self._config.user, cwd="/")).exit_code != 0:
            # root has made something in it
            await self._agent.run(remove, user="root", cwd="/")

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        options: Options = {
            "cwd": self._path(cwd or "."),
            "user": await self._user(user) if user else self._config.user,
            # of both streams
            "max_output": 2 * limit + 1,
            "labels": {_LABEL: self._label},
            "env": {**({} if user else {"HOME": self._directory}), **(env or {})},
        }
        if timeout:
            options["timeout"] = timeout
        try:
            result = await self._agent.run(cmd, input=input, **options)
        except NotStarted as error:
            return _not_started(error, cmd)
        except Refused as error:
            raise (SandboxUserUnsupportedError if user else PermissionError)(str(error)) from error
        except (Unreachable, Lost) as error:
            raise SandboxUnavailableError(str(error)) from error
        return _exec_result(result, limit, timeout)

    async def _user(self, user: str) -> str:
        """The name of a user that may be a number."""
        if not user.isdecimal():
            return user
        found = await self._agent.run(["getent", "passwd", user], user=self._config.user, cwd="/", text=True)
        if found.exit_code != 0:
            raise SandboxUserUnsupportedError(f"{self._config.target}: no user has the number {user}")
        return found.stdout.split(":")[0]

    async def write_file(self, file: str, contents: str | bytes) -> None:
        path = self._path(file)
        # a file that is replaced by another of its name needs no permission itself
        command = ["/bin/sh", "-c", '[ ! -e "$1" ] || [ -w "$1" ]', "sh", path]
        try:
            if (await self._agent.run(command, user=self._config.user, cwd="/")).exit_code != 0:
                raise PermissionError(errno.EACCES, "not writable", file)
            await self._agent.files.write(path, contents, user=self._config.user, make_parents=True)
        except (Unreachable, Lost) as error:
            raise SandboxUnavailableError(str(error)) from error

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            data = await self._agent.files.read(self._path(file), user=self._config.user, length=limit + 1)
        except (Unreachable, Lost) as error:
            raise SandboxUnavailableError(str(error)) from error
        if len(data) > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else data

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        words = ["telexec", "exec", "-it", "-u", user or self._config.user, "-w", self._directory]
        words += [*_flags(self._config), self._config.target]
        return SandboxConnection(type="telexec", command=shlex.join(words))

    def _path(self, path: str) -> str:
        return posixpath.join(self._directory, path)


def _config(config: SandboxEnvironmentConfigType | None) -> TelexecSandboxConfig:
    if isinstance(config, TelexecSandboxConfig):
        return config
    if isinstance(config, str):
        return TelexecSandboxConfig(target=config)
    raise ValueError('the sandbox "telexec" needs a target: sandbox=("telexec", TelexecSandboxConfig(target=...))')


def _flags(config: TelexecSandboxConfig) -> list[str]:
    """What the program `telexec` needs to connect as this package does. It has the same configuration and environment."""
    paths = {"--cert": config.cert, "--key": config.key, "--ca": config.ca}
    # whoever calls it may do so in another directory
    given = {flag: os.path.abspath(path) for flag, path in paths.items() if path}
    if config.server_name:
        given["--server-name"] = config.server_name
    return [word for flag in given.items() for word in flag]


def _not_started(error: NotStarted, cmd: list[str]) -> ExecResult[str]:
    if error.stage == "exec" and error.errno == errno.EACCES:
        raise PermissionError(errno.EACCES, str(error), cmd[0]) from error
    return ExecResult(success=False, returncode=_NOT_FOUND, stdout="", stderr=f"{error}\n")


def _exec_result(result: Result[bytes], limit: int, timeout: int | None) -> ExecResult[str]:
    stdout, stderr = (data[:limit].decode(errors="replace") for data in (result.stdout, result.stderr))
    if result.cause == "timed_out":
        raise TimeoutError(f"the command timed out after {timeout or result.exit.wall_time} s")
    if max(len(result.stdout), len(result.stderr)) > limit:
        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, stdout or stderr)
    return ExecResult(success=result.exit_code == 0, returncode=_code(result), stdout=stdout, stderr=stderr)


def _code(result: Result[bytes]) -> int:
    """As a shell reports it."""
    if result.signal is None:
        return result.exit_code
    try:
        return _SIGNAL_BASE + signal.Signals[result.signal].value
    except KeyError:
        return -1
