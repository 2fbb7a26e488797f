"""A command on many targets, for both kinds of API: which is next, and what came of it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any, AnyStr, Generic, TypedDict, Union

from . import _telexec
from ._arguments import wrong
from ._command import Result, _result
from ._errors import Error, Invalid

#: Names, `HOST[:PORT]`, ranges such as `web[1-3]` and groups such as `@web`, separated by commas; or several of these.
Targets = Union[str, Sequence[str]]


class Connecting(TypedDict, total=False):
    """How targets are connected to. What is not given is as for `connect`."""

    #: PEM: the client's certificate.
    cert: str | os.PathLike[str]
    #: Its private key.
    key: str | os.PathLike[str]
    #: The CA of the agents' certificates.
    ca: str | os.PathLike[str]
    #: A file with a JSON Web Token, instead of `cert` and `key`.
    access_token_file: str | os.PathLike[str]
    #: The socket of the SPIFFE Workload API to get certificates from, instead of files.
    spiffe_socket: str
    #: The SPIFFE ID to use, if it issues several.
    spiffe_id: str
    #: Seconds for the first connection to each.
    connect_timeout: float


@dataclasses.dataclass(frozen=True)
class Outcome(Generic[AnyStr]):
    """What came of a command on one target: one of `result` and `error` is not `None`."""

    target: str
    result: Result[AnyStr] | None
    error: Error | None


class _Progress:
    """Connects to each target and runs the command there; on so many at once."""

    def __init__(
        self,
        targets: _telexec.Targets,
        command: _telexec.Command,
        max_parallel: int,
        check: bool,
        text: bool,
        reconnect: float,
    ):
        if not isinstance(max_parallel, int):
            raise wrong("max_parallel", "int", max_parallel)
        if max_parallel < 1:
            raise Invalid(f"max_parallel: must be greater than 0, not {max_parallel}")
        self.race = _telexec.Race()
        self._targets = targets
        self._names = targets.names
        self._waiting: Iterator[int] = iter(range(len(self._names)))
        self._command = command
        self._check = check
        self._text = text
        self._reconnect = reconnect
        self._running = 0
        #: Of those that have ended.
        self.seen = 0
        for _ in range(max_parallel):
            if not self._begin():
                break

    @property
    def is_done(self) -> bool:
        return not self._running

    def _begin(self) -> bool:
        number = next(self._waiting, None)
        if number is None:
            return False
        self.race.add(number, self._targets.run(self._names[number], self._command, self._reconnect))
        self._running += 1
        return True

    def take(self, ended: tuple[int, Any, BaseException | None]) -> Outcome[Any]:
        """What came of one that has ended; another one begins."""
        self.seen += 1
        number, value, error = ended
        self._running -= 1
        self._begin()
        result = None
        if error is None:
            try:
                result = _result(value, self._check, self._text)
            except Error as failed:
                error = failed
        if error is not None and not isinstance(error, Error):
            raise error
        return Outcome(self._names[number], result, error)

    def stop(self) -> None:
        self._waiting = iter(())
        self._running = 0
