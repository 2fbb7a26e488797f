"""What can go wrong. The extension module raises these too."""

from __future__ import annotations

import asyncio
import errno as _errno
import os
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._command import Result


class Error(Exception):
    """What telexec raises."""


class Invalid(Error, ValueError):
    """A target, a command or the configuration is malformed: nothing was asked of an agent."""


class Refused(Error):
    """The agent does not let this caller do that."""

    #: Another identity has to approve the command first (`telexec approve TARGET ID`); then it can be run again. `None`: that
    #: would not help.
    approval_id: str | None = None


class NotStarted(Error):
    """The command could not be started: nothing ran."""

    #: The step that failed on the agent's machine, such as "exec", "chdir" or "user"; `None`: it came to no step.
    stage: str | None = None
    #: The system's error number of that step.
    errno: int | None = None


class Unreachable(Error):
    """The agent could not be reached, or does not trust this side, or this side not it: nothing ran."""


class Lost(Error):
    """The connection was lost, and did not come back in time: what became of the command is not known."""


class NotFound(Error, LookupError):
    """There is no such execution of this caller, or it is forgotten."""


class _SystemError(Error, OSError):
    """An `OSError` whose text is complete."""

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        # what `OSError` has is not in __dict__
        system = {"errno": self.errno, "strerror": self.strerror, "filename": self.filename}
        return type(self), self.args, {**self.__dict__, **system}


class FileError(_SystemError):
    """Something could not be done with a file. `errno` and `filename` say what, as of `OSError`.

    It is a `FileNotFoundError`, `FileExistsError`, `PermissionError`, `IsADirectoryError` or `NotADirectoryError` too, where
    the agent's machine says so.
    """


class ForwardError(_SystemError):
    """A connection or a listening socket failed, here or on the agent's machine. `errno` says how, as of `OSError`.

    It is a `ConnectionRefusedError`, `ConnectionResetError`, `BrokenPipeError`, `TimeoutError`, `PermissionError`,
    `FileNotFoundError` or `socket.gaierror` too, where that applies.
    """

    #: As it was asked for.
    address: str


class CommandFailed(Error):
    """A command has not exited with code 0, and `check=True` was given; `result` has its output."""

    def __init__(self, message: str, result: Result[Any]):
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.result), self.__dict__


class TimedOut(CommandFailed):
    """Its timeout ended the command, and `check=True` was given; `result` has the output until then."""


class _FileNotFound(FileError, FileNotFoundError): ...


class _FileExists(FileError, FileExistsError): ...


class _PermissionDenied(FileError, PermissionError): ...


class _IsADirectory(FileError, IsADirectoryError): ...


class _NotADirectory(FileError, NotADirectoryError): ...


_FILE_ERRORS: dict[int, type[FileError]] = {
    _errno.ENOENT: _FileNotFound,
    _errno.EEXIST: _FileExists,
    _errno.EACCES: _PermissionDenied,
    _errno.EPERM: _PermissionDenied,
    _errno.EISDIR: _IsADirectory,
    _errno.ENOTDIR: _NotADirectory,
}


def _file_error(message: str, *, errno: int, path: str) -> FileError:
    error = _FILE_ERRORS.get(errno, FileError)(message)
    error.errno, error.strerror, error.filename = errno, os.strerror(errno), path
    return error


class _ConnectionRefused(ForwardError, ConnectionRefusedError): ...


class _ConnectionReset(ForwardError, ConnectionResetError): ...


class _BrokenPipe(ForwardError, BrokenPipeError): ...


class _ForwardTimeout(ForwardError, TimeoutError): ...


class _ForwardDenied(ForwardError, PermissionError): ...


class _SocketNotFound(ForwardError, FileNotFoundError): ...


class _UnknownHost(ForwardError, socket.gaierror): ...


_FORWARD_ERRORS: dict[int, type[ForwardError]] = {
    _errno.ECONNREFUSED: _ConnectionRefused,
    _errno.ECONNRESET: _ConnectionReset,
    _errno.EPIPE: _BrokenPipe,
    _errno.ETIMEDOUT: _ForwardTimeout,
    _errno.EACCES: _ForwardDenied,
    _errno.EPERM: _ForwardDenied,
    _errno.ENOENT: _SocketNotFound,
}


def _forward_error(message: str, *, errno: str, address: str) -> ForwardError:
    """`errno` is its name."""
    if errno == "EAI_NONAME":
        error: ForwardError = _UnknownHost(message)
        error.errno = socket.EAI_NONAME
    else:
        found = getattr(_errno, errno, None)
        number: int = found if isinstance(found, int) else _errno.EIO
        error = _FORWARD_ERRORS.get(number, ForwardError)(message)
        error.errno, error.strerror = number, os.strerror(number)
    error.address = address
    return error


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    """Gives a future its result, unless it was cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
