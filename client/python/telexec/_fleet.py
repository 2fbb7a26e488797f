"""A command on many targets, for the API that blocks."""

from __future__ import annotations

from types import TracebackType
from typing import Any, AnyStr, Generic, Literal, Unpack, overload

from . import _telexec
from ._arguments import all_named, named
from ._command import Options, Program, _command
from ._progress import Connecting, Outcome, Targets, _Progress

__all__ = ["Fleet", "Outcome", "Runs", "fleet"]


@named
def fleet(targets: Targets, **connecting: Unpack[Connecting]) -> Fleet:
    """Many targets: names, `HOST[:PORT]`, ranges such as `web[1-3]` and groups such as `@web`, or a list of these."""
    return Fleet(_telexec.Targets(targets, **connecting))


@all_named
class Fleet:
    """Many targets. Each is connected to when it is its turn."""

    def __init__(self, core: _telexec.Targets):
        self._core = core
        #: Each once, in the order in which they were given.
        self.targets = core.names

    @overload
    def run(
        self,
        command: Program,
        max_parallel: int = 32,
        *,
        input: str | bytes | None = None,
        check: bool = False,
        text: Literal[False] = False,
        reconnect: float = 30,
        **options: Unpack[Options],
    ) -> Runs[bytes]: ...

    @overload
    def run(
        self,
        command: Program,
        max_parallel: int = 32,
        *,
        input: str | bytes | None = None,
        check: bool = False,
        text: Literal[True],
        reconnect: float = 30,
        **options: Unpack[Options],
    ) -> Runs[str]: ...

    @overload
    def run(
        self,
        command: Program,
        max_parallel: int = 32,
        *,
        input: str | bytes | None = None,
        check: bool = False,
        text: bool,
        reconnect: float = 30,
        **options: Unpack[Options],
    ) -> Runs[Any]: ...

    def run(
        self,
        command: Program,
        max_parallel: int = 32,
        *,
        input: str | bytes | None = None,
        check: bool = False,
        text: bool = False,
        reconnect: float = 30,
        **options: Unpack[Options],
    ) -> Runs[Any]:
        """Runs a command on all, on `max_parallel` at once, and yields what came of it in the order in which it ends.

        A target that fails does not stop the others. With `check`, an exit code other than 0 is an error. `reconnect` is
        as of `connect`.
        """
        asked = _command(command, input, options, False)
        return Runs(_Progress(self._core, asked, max_parallel, check, text, reconnect))


class Runs(Generic[AnyStr]):
    """An iterator of outcomes. Losing the last reference, or leaving its `with` block, ends what still runs."""

    def __init__(self, progress: _Progress):
        self._progress = progress

    def __enter__(self) -> Runs[AnyStr]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Runs[AnyStr]:
        return self

    def __next__(self) -> Outcome[AnyStr]:
        if not self._progress.is_done:
            if ended := self._progress.race.next(self._progress.seen).wait():
                return self._progress.take(ended)
        raise StopIteration

    def close(self) -> None:
        """Ends what still runs."""
        self._progress.stop()
        self._progress.race.close().wait()
