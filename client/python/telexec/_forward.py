"""Connections and sockets of the network of an agent's machine, for the API that blocks."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from . import _telexec
from ._arguments import all_named
from ._command import _bytes


@all_named
class Connection:
    """A connection from the agent's machine: a stream of bytes in both directions.

    Leaving its `with` block, or losing the last reference, closes it. What was written is delivered if the other side closes
    it within a second; to be sure, call `close_write()` and read to the end.
    """

    def __init__(self, core: _telexec.Connection):
        self._core = core
        #: Bytes that were read: what is not is read again after a wait that was interrupted.
        self._seen = 0

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, n: int = -1) -> bytes:
        """Waits for data, and returns at most `n` bytes of it; b"": the end. Without `n`: all, to the end."""
        data = self._core.read(n, self._seen).wait()
        self._seen += len(data)
        return data

    def write(self, data: str | bytes) -> None:
        """Writes all of it, waiting until there is room."""
        self._core.write(_bytes("data", data)).wait()

    def close_write(self) -> None:
        """Ends the direction from here; the other one stays open."""
        self._core.close_write().wait()

    def close(self) -> None:
        """Ends both directions."""
        self._core.close().wait()


class Forward:
    """A socket that listens, whose connections go to the other side.

    Leaving its `with` block, or losing the last reference, closes it and resets its connections. A connection that cannot be
    made to where it is to go is reset.
    """

    def __init__(self, core: _telexec.Forward):
        self._core = core

    @property
    def address(self) -> Any:
        """Where it listens: a tuple of host and port, or a path, as `socket.connect` takes them."""
        return self._core.address

    def __enter__(self) -> Forward:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait(self) -> None:
        """Waits until it is closed; raises why, once the agent listens no more and cannot be made to again."""
        self._core.wait().wait()

    def close(self) -> None:
        """Listens no more, on the agent's machine from a moment later on, and resets its connections."""
        self._core.close().wait()
