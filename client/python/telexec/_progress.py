"""A command on many targets, for both kinds of API: which is next, and what came of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, AnyStr, Generic, TypedDict, Union

from . import _telexec
from ._command import Result, _result
from ._errors import Error, Invalid

#: Names, `HOST[:PORT]`, ranges such as `web[1-3]` and groups such as `@web`, separated by commas; or several of these.
Targets = Union[str, Sequence[str]]


class Connecting(TypedDict, total=False):
    """How targets are connected to. What is not given is as for `connect`."""

    cert: str
    key: str
    ca: str
    connect_timeout: float


@dataclasses.dataclass(frozen=True)
class Outcome(Generic[AnyStr]):
    """What came of a command on one target: one of `result` and `error` is not `None`."""

    target: str
    result: Result[AnyStr] | None
    error: Error | None


def _targets(targets: Targets) -> list[str]:
    return _telexec.expand([targets] if isinstance(targets, str) else list(targets))


class _Progress:
    """Connects to each target and runs the command there; on so many at once."""

    def __init__(
        self,
        targets: list[str],
        connecting: Connecting,
        command: _telexec.Command,
        max_parallel: int,
        check: bool,
        text: bool,
    ):
        if max_parallel < 1:
            raise Invalid(f"max_parallel: must be greater than 0, not {max_parallel}")
        self.race = _telexec.Race()
        self._targets = targets
        self._waiting: Iterator[int] = iter(range(len(targets)))
        self._connecting = connecting
        self._command = command
        self._check = check
        self._text = text
        self._running = 0
        #: Of those that have ended.
        self.seen = 0
        self._failed: list[Outcome[Any]] = []
        for _ in range(min(max_parallel, len(targets))):
            self._begin()

    @property
    def is_done(self) -> bool:
        return not self._running and not self._failed

    def failed(self) -> Outcome[Any] | None:
        """One of those that could not even be asked."""
        return self._failed.pop(0) if self._failed else None

    def _begin(self) -> None:
        for number in self._waiting:
            try:
                call = _telexec.run_on(self._targets[number], self._command, **self._connecting)
            except Error as error:
                self._failed.append(Outcome(self._targets[number], None, error))
                continue
            self._running += 1
            self.race.add(number, call)
            return

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
        return Outcome(self._targets[number], result, error)

    def stop(self) -> None:
        self._waiting = iter(())
        self._running = 0
        self._failed.clear()
