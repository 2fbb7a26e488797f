"""The same as `telexec`, for asyncio.

    agent = await telexec.aio.connect("web1")
    async with agent.start(["make", "all"]) as execution:
        async for event in execution: ...

A task that is cancelled while it runs a command, or follows one in its block, ends it with all its processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from types import TracebackType
from typing import Any, Generic, Literal, Protocol, TypeVar, Unpack, overload

from . import _telexec
from ._aio_fleet import Fleet as Fleet, Runs as Runs, fleet as fleet
from ._aio_forward import Connection as Connection, Forward as Forward
from ._arguments import all_named, named
from ._command import Options, Program, Result, _bytes, _command, _result, _signal
from ._searching import Searching
from ._values import Event, Exit, FileChange, FileInfo, Found, Info, Line

Path = str | os.PathLike[str]


@named
async def connect(
    target: str,
    *,
    cert: Path | None = None,
    key: Path | None = None,
    ca: Path | None = None,
    access_token_file: Path | None = None,
    spiffe_socket: str | None = None,
    spiffe_id: str | None = None,
    server_name: str | None = None,
    connect_timeout: float | None = None,
    reconnect: float = 30,
) -> Agent:
    """Connects to an agent: `unix:///PATH`, `HOST[:PORT]`, `vsock://CID:PORT`, or a name of telexec's configuration.

    What is not given is as the program `telexec` has it, by TELEXEC_CERT, TELEXEC_KEY, TELEXEC_CA, TELEXEC_SERVER_NAME,
    TELEXEC_ACCESS_TOKEN_FILE, TELEXEC_ACCESS_TOKEN, TELEXEC_SPIFFE_SOCKET, TELEXEC_SPIFFE_ID and the configuration.

    cert, key, ca: PEM files of the client's certificate and its key, and of the CA of the agent's; all or none
    access_token_file: a file with a JSON Web Token, read for each call, instead of cert and key
    spiffe_socket: the socket of the SPIFFE Workload API to get certificates from, instead of files
    spiffe_id: the SPIFFE ID to use, if it issues several; the first unless given
    server_name: the name in the agent's certificate, if it is not the host; or the agent's SPIFFE ID, with {host} for the target
    connect_timeout: seconds for the first connection
    reconnect: seconds for which a lost connection is made up for, before `Lost`; 0: not at all
    """
    call = _telexec.connect(
        target,
        cert=cert,
        key=key,
        ca=ca,
        access_token_file=access_token_file,
        spiffe_socket=spiffe_socket,
        spiffe_id=spiffe_id,
        server_name=server_name,
        connect_timeout=connect_timeout,
        reconnect=reconnect,
    )
    return Agent(await call)


@all_named
class Agent:
    """A connection to an agent. It is made again when it was lost."""

    def __init__(self, core: _telexec.Agent):
        self._core = core
        #: The files of the machine.
        self.files = Files(core.files())

    @property
    def target(self) -> str:
        return self._core.target

    @overload
    async def run(
        self,
        command: Program,
        *,
        input: str | bytes | None = None,
        check: bool = False,
        text: Literal[False] = False,
        **options: Unpack[Options],
    ) -> Result[bytes]: ...

    @overload
    async def run(
        self,
        command: Program,
        *,
        input: str | bytes | None = None,
        check: bool = False,
        text: Literal[True],
        **options: Unpack[Options],
    ) -> Result[str]: ...

    @overload
    async def run(
        self,
        command: Program,
        *,
        input: str | bytes | None = None,
        check: bool = False,
        text: bool,
        **options: Unpack[Options],
    ) -> Result[Any]: ...

    async def run(
        self,
        command: Program,
        *,
        input: str | bytes | None = None,
        check: bool = False,
        text: bool = False,
        **options: Unpack[Options],
    ) -> Result[Any]:
        """Runs a command to its end: a text by a shell, a list as it is.

        A lost connection is made up for. Cancelling this call ends the command with all its processes.
        """
        return _result(await self._core.run(_command(command, input, options, False)), check, text)

    def start(
        self, command: Program, *, input: str | bytes | None = None, **options: Unpack[Options]
    ) -> Opening[_telexec.Execution, Execution]:
        """Starts a command. Without `input`, `write()` writes to its standard input, until `close_input()`."""
        return Opening(self._core.start(_command(command, input, options, True)), Execution)

    def attach(self, id: str, position: int = 0) -> Opening[_telexec.Execution, Execution]:
        """Follows an execution, from a position in its output. To leave it changes nothing for it."""
        return Opening(self._core.attach(id, position), Execution)

    def dial(self, address: str, *, user: str | None = None) -> Opening[_telexec.Connection, Connection]:
        """Connects from the agent's machine, to `HOST:PORT` or `unix:///PATH`; to a Unix socket as `user` of that machine."""
        return Opening(self._core.dial(address, user), Connection)

    def forward(
        self, to: str, listen: str = "127.0.0.1:0", *, user: str | None = None
    ) -> Opening[_telexec.Forward, Forward]:
        """Listens here, and connects each connection to `to` as the agent's machine sees it: `ssh -L`.

        Both are `HOST:PORT` or `unix:///PATH`; port 0 is any that is free, and a Unix socket is for this user alone. Whoever
        listens on a Unix socket there sees `user`.
        """
        return Opening(self._core.forward(to, listen, user), Forward)

    def reverse(self, to: str, listen: str = "127.0.0.1:0") -> Opening[_telexec.Forward, Forward]:
        """Listens on the agent's machine, and connects each connection to `to` as seen from here: `ssh -R`."""
        return Opening(self._core.reverse(to, listen), Forward)

    async def get(self, id: str) -> Info:
        """Describes an execution."""
        return await self._core.get(id)

    async def list(self, *, all: bool = False, labels: Mapping[str, str] | None = None) -> list[Info]:
        """The executions that run, oldest first; with `all` also those that have ended and are remembered."""
        return await self._core.list(all, labels)


class _Closable(Protocol):
    async def close(self) -> None: ...


CoreT = TypeVar("CoreT")
OpenT = TypeVar("OpenT", bound=_Closable)


class Opening(Generic[CoreT, OpenT]):
    """What is opened by `async with`, and closed after its block; or by `await`."""

    def __init__(self, call: _telexec.Call[CoreT], make: Callable[[CoreT], OpenT]):
        self._call = call
        self._make = make
        self._opened: OpenT | None = None

    async def _open(self) -> OpenT:
        return self._make(await self._call)

    def __await__(self) -> Generator[Any, Any, OpenT]:
        return self._open().__await__()

    async def __aenter__(self) -> OpenT:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.close()


@all_named
class Execution:
    """A command that was started: an iterator of its output.

    The command waits while its output is not read. Leaving its `with` block, or losing the last reference, ends it with all
    its processes, unless it was started with `detach=True` or is attached to.
    """

    def __init__(self, core: _telexec.Execution):
        self._core = core
        self._seen = 0

    @property
    def id(self) -> str:
        return self._core.id

    async def __aenter__(self) -> Execution:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Execution:
        return self

    async def __anext__(self) -> Event:
        found = await self._core.next(self._seen)
        if found is None:
            raise StopAsyncIteration
        self._seen, event = found
        return event

    async def wait(self) -> Exit:
        """Waits for the end. Output that was not read is left out."""
        return await self._core.wait()

    async def write(self, data: str | bytes) -> None:
        """Writes to standard input, waiting until there is room."""
        await self._core.write(_bytes("data", data), False)

    async def close_input(self) -> None:
        """Ends standard input."""
        await self._core.write(b"", True)

    async def signal(self, signal: str | int) -> None:
        """Sends a signal, such as "INT", to all its processes."""
        await self._core.signal(_signal(signal))

    async def close(self) -> None:
        """Follows it no more; see above."""
        await self._core.close()


@all_named
class Files:
    """The files of a machine. A relative path begins at the home directory of the user."""

    def __init__(self, core: _telexec.Files):
        self._core = core

    async def read(self, path: Path, *, user: str | None = None, offset: int = 0, length: int = 0) -> bytes:
        """Reads a file from `offset` on, `length` bytes at most; 0: to the end."""
        return await self._core.read(path, user=user, offset=offset, length=length)

    async def write(
        self,
        path: Path,
        data: str | bytes,
        *,
        user: str | None = None,
        mode: int | None = None,
        make_parents: bool = False,
        exclusive: bool = False,
    ) -> FileInfo:
        """Writes a file: whoever opens it finds the old one or the new one. `exclusive`: there must be none."""
        return await self._core.write(
            path, _bytes("data", data), user=user, mode=mode, make_parents=make_parents, exclusive=exclusive
        )

    async def list(self, path: Path, *, user: str | None = None) -> list[FileInfo]:
        """The entries of a directory; their paths are names."""
        return await self._core.list(path, user=user)

    async def info(self, path: Path, *, user: str | None = None) -> FileInfo:
        """Describes a file; of a symbolic link, the link itself."""
        return await self._core.info(path, user=user)

    async def make_directory(
        self, path: Path, mode: int | None = None, parents: bool = False, *, user: str | None = None
    ) -> None:
        """Makes a directory. `parents`: also those that it is in, and it may exist."""
        await self._core.make_directory(path, mode, parents, user=user)

    async def rename(self, path: Path, to: Path, *, user: str | None = None, replace: bool = False) -> None:
        """Renames a file or a directory, on the same file system. `replace`: what is called `to` may exist, as of rename(2)."""
        await self._core.rename(path, to, user=user, replace=replace)

    async def glob(self, path: Path, glob: str, **searching: Unpack[Searching]) -> Found[FileInfo]:
        """Finds files below a directory by a glob as in .gitignore: `*.py` at any depth, `src/**/*.py` from `path` on."""
        return await self._core.search(path, glob=glob, **searching)

    async def search(
        self,
        path: Path,
        regex: str,
        *,
        glob: str = "",
        multiline: bool = False,
        before_context: int = 0,
        after_context: int = 0,
        **searching: Unpack[Searching],
    ) -> Found[Line]:
        """Finds lines in the files below a directory, in those that match `glob`; as ripgrep does.

        `multiline`: a match may span lines. `before_context`, `after_context`: lines around each match.
        """
        return await self._core.search(
            path,
            regex=regex,
            glob=glob,
            multiline=multiline,
            before_context=before_context,
            after_context=after_context,
            **searching,
        )

    async def remove(self, path: Path, *, user: str | None = None, recursive: bool = False) -> None:
        """Removes a file, or a directory; `recursive`: one that is not empty."""
        await self._core.remove(path, user=user, recursive=recursive)

    def watch(self, path: Path, *, user: str | None = None, recursive: bool = False) -> Opening[_telexec.Watch, Watch]:
        """Watches a file, or a directory and its entries. No change after this is missed."""
        return Opening(self._core.watch(path, user=user, recursive=recursive), Watch)


class Watch:
    """An iterator of changes, until it is closed or what is watched is gone (`FileNotFoundError`)."""

    def __init__(self, core: _telexec.Watch):
        self._core = core
        #: Changes that were returned: what was not is returned again after a wait that was interrupted.
        self._seen = 0

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> FileChange:
        change = await self._core.next(self._seen)
        if change is None:
            raise StopAsyncIteration
        self._seen += 1
        return change

    async def close(self) -> None:
        """Ends the watch."""
        await self._core.close()
