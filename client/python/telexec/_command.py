"""Commands and what came of them, for both kinds of API."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, AnyStr, Generic, TypedDict, Union

from . import _telexec
from ._arguments import wrong
from ._errors import CommandFailed, Invalid, TimedOut
from ._values import Exit, Limits

#: A shell's text, or a program and its arguments.
Program = Union[str, Sequence[str]]

#: Of an error message: the last line that the command wrote to standard error.
_MAX_LINE = 200


class Options(TypedDict, total=False):
    """How a command is run. What is not given is as the agent's configuration says.

    timeout: seconds until it is ended, with the cause "timed_out"
    kill_grace: seconds from SIGTERM to SIGKILL when it is ended
    env, clear_env: added to the environment of the agent's configuration, or in its place
    cwd, user, limits: its directory (absolute), who it runs as, `Limits`
    shell, login: for text, the shell (a name or a path), and whether it is a login shell
    terminal, merge: (columns, rows) of a terminal; standard error goes where standard output goes
    detach, kill_descendants: it runs on without a caller; nothing that it started runs on after it
    no_new_privileges: programs that it executes, such as sudo, cannot raise its privileges
    receipt: the agent signs what ran and how it ended, for `Exit.receipt`
    max_output: bytes of output after which the rest is dropped
    labels, reason, id: for lists, for the audit log, and a name: the same command under the same id runs once
    """

    #: Seconds until it is ended, with the cause "timed_out".
    timeout: float
    #: Added to the environment of the agent's configuration.
    env: Mapping[str, str]
    #: Only `env`, and nothing else.
    clear_env: bool
    #: An absolute path.
    cwd: str
    #: Who it runs as.
    user: str
    limits: Limits
    #: It runs on when nobody follows it any more.
    detach: bool
    #: Standard error goes where standard output goes: one stream, in the order of writing.
    merge: bool
    #: For text: a name or a path, such as "sh".
    shell: str
    login: bool
    #: Runs on a terminal of so many columns and rows.
    terminal: tuple[int, int]
    #: Seconds from SIGTERM to SIGKILL when it is ended.
    kill_grace: float
    #: Processes that it leaves behind are ended with it, after a normal exit too.
    kill_descendants: bool
    #: Programs that it executes, such as sudo, cannot raise its privileges.
    no_new_privileges: bool
    #: The agent signs what ran and how it ended: `Exit.receipt`.
    receipt: bool
    #: Bytes of output after which the rest is dropped.
    max_output: int
    labels: Mapping[str, str]
    #: Why, for the audit log.
    reason: str
    #: Names the execution. The same command under the same id runs once.
    id: str


@dataclasses.dataclass(frozen=True)
class Result(Generic[AnyStr]):
    """A command that was run to its end."""

    #: -1: it has none, see `cause`.
    exit_code: int
    stdout: AnyStr
    stderr: AnyStr
    #: "exited", "signaled", "timed_out", "cancelled", "out_of_memory", "deadline_exceeded" or "agent_shutdown".
    cause: str
    #: The signal that ended it, such as "SIGKILL".
    signal: str | None
    #: Times, memory and what else is known.
    exit: Exit = dataclasses.field(repr=False)

    def check(self) -> Result[AnyStr]:
        """Itself, if the exit code is 0; otherwise raises `CommandFailed` or `TimedOut`."""
        if self.exit_code == 0:
            return self
        if self.cause in ("timed_out", "deadline_exceeded"):
            raise TimedOut(f"the command timed out after {self.exit.wall_time:.1f} s", self)
        if self.cause == "exited":
            text = f"the command exited with code {self.exit_code}"
        else:
            text = f"the command ended: {self.cause.replace('_', ' ')}" + (f" by {self.signal}" if self.signal else "")
        raise CommandFailed(text + self._last_line(), self)

    def _last_line(self) -> str:
        text = _text(self.stderr)
        lines = text.rstrip().splitlines()
        return f": {lines[-1][:_MAX_LINE]}" if lines else ""


def _text(data: str | bytes) -> str:
    return data if isinstance(data, str) else data.decode(errors="replace")


def _bytes(keyword: str, data: str | bytes | bytearray | memoryview) -> bytes:
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise Invalid(f"{keyword}: {error}") from None
    # of a number bytes() makes as many zeros
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise wrong(keyword, "str or bytes", data)
    return bytes(data)


def _command(command: Program, input: str | bytes | None, options: Options, interactive: bool) -> _telexec.Command:
    data = None if input is None else _bytes("input", input)
    return _telexec.Command(command, input=data, interactive=interactive and input is None, **options)


def _result(ended: tuple[Exit, bytes, bytes], check: bool, text: bool) -> Result[Any]:
    exit, stdout, stderr = ended
    result: Result[Any]
    if text:
        result = Result(exit.exit_code, _text(stdout), _text(stderr), exit.cause, exit.signal, exit)
    else:
        result = Result(exit.exit_code, stdout, stderr, exit.cause, exit.signal, exit)
    return result.check() if check else result


def _signal(signal: str | int) -> str:
    if isinstance(signal, int):
        return str(int(signal))
    if not isinstance(signal, str):
        raise wrong("signal", "str or int", signal)
    return signal
