"""The API that blocks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Unpack, overload

from . import _telexec
from ._arguments import all_named, named
from ._command import Options, Program, Result, _bytes, _command, _result, _signal
from ._forward import Connection, Forward
from ._searching import Searching
from ._values import Event, Exit, FileChange, FileInfo, Found, Info, Line

Path = str | os.PathLike[str]


@named
def connect(
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
    return Agent(call.wait())


@all_named
class Agent:
    """A connection to an agent, for any number of threads. It is made again when it was lost."""

    def __init__(self, core: _telexec.Agent):
        self._core = core
        #: The files of the machine.
        self.files = Files(core.files())

    @property
    def target(self) -> str:
        return self._core.target

    @overload
    def run(
        self,
        command: Program,
        *,
        input: str | bytes | None = None,
        check: bool = False,
        text: Literal[False] = False,
        **options: Unpack[Options],
    ) -> Result[bytes]: ...

    @overload
    def run(
        self,
        command: Program,
        *,
        input: str | bytes | None = None,
        check: bool = False,
        text: Literal[True],
        **options: Unpack[Options],
    ) -> Result[str]: ...

    @overload
    def run(
        self,
        command: Program,
        *,
        input: str | bytes | None = None,
        check: bool = False,
        text: bool,
        **options: Unpack[Options],
    ) -> Result[Any]: ...

    def run(
        self,
        command: Program,
        *,
        input: str | bytes | None = None,
        check: bool = False,
        text: bool = False,
        **options: Unpack[Options],
    ) -> Result[Any]:
        """Runs a command to its end: a text by a shell, a list as it is.

        A lost connection is made up for. What interrupts this call, such as Ctrl-C, ends the command with all its processes.
        """
        return _result(self._core.run(_command(command, input, options, False)).wait(), check, text)

    def start(
        self, command: Program, *, input: str | bytes | None = None, **options: Unpack[Options]
    ) -> Execution:
        """Starts a command. Without `input`, `write()` writes to its standard input, until `close_input()`."""
        return Execution(self._core.start(_command(command, input, options, True)).wait())

    def attach(self, id: str, position: int = 0) -> Execution:
        """Follows an execution, from a position in its output. To leave it changes nothing for it."""
        return Execution(self._core.attach(id, position).wait())

    def dial(self, address: str, *, user: str | None = None) -> Connection:
        """Connects from the agent's machine, to `HOST:PORT` or `unix:///PATH`; to a Unix socket as `user` of that machine."""
        return Connection(self._core.dial(address, user).wait())

    def forward(self, to: str, listen: str = "127.0.0.1:0", *, user: str | None = None) -> Forward:
        """Listens here, and connects each connection to `to` as the agent's machine sees it: `ssh -L`.

        Both are `HOST:PORT` or `unix:///PATH`; port 0 is any that is free, and a Unix socket is for this user alone. Whoever
        listens on a Unix socket there sees `user`.
        """
        return Forward(self._core.forward(to, listen, user).wait())

    def reverse(self, to: str, listen: str = "127.0.0.1:0") -> Forward:
        """Listens on the agent's machine, and connects each connection to `to` as seen from here: `ssh -R`."""
        return Forward(self._core.reverse(to, listen).wait())

    def get(self, id: str) -> Info:
        """Describes an execution."""
        return self._core.get(id).wait()

    def list(self, *, all: bool = False, labels: Mapping[str, str] | None = None) -> list[Info]:
        """The executions that run, oldest first; with `all` also those that have ended and are remembered."""
        return self._core.list(all, labels).wait()


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

    def __enter__(self) -> Execution:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Execution:
        return self

    def __next__(self) -> Event:
        found = self._core.next(self._seen).wait()
        if found is None:
            raise StopIteration
        self._seen, event = found
        return event

    def wait(self) -> Exit:
        """Waits for the end. Output that was not read is left out."""
        return self._core.wait().wait()

    def write(self, data: str | bytes) -> None:
        """Writes to standard input, waiting until there is room."""
        self._core.write(_bytes("data", data), False).wait()

    def close_input(self) -> None:
        """Ends standard input."""
        self._core.write(b"", True).wait()

    def signal(self, signal: str | int) -> None:
        """Sends a signal, such as "INT", to all its processes."""
        self._core.signal(_signal(signal)).wait()

    def close(self) -> None:
        """Follows it no more; see above."""
        self._core.close().wait()


@all_named
class Files:
    """The files of a machine. A relative path begins at the home directory of the user."""

    def __init__(self, core: _telexec.Files):
        self._core = core

    def read(self, path: Path, *, user: str | None = None, offset: int = 0, length: int = 0) -> bytes:
        """Reads a file from `offset` on, `length` bytes at most; 0: to the end."""
        return self._core.read(path, user=user, offset=offset, length=length).wait()

    def write(
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
        return self._core.write(
            path, _bytes("data", data), user=user, mode=mode, make_parents=make_parents, exclusive=exclusive
        ).wait()

    def list(self, path: Path, *, user: str | None = None) -> list[FileInfo]:
        """The entries of a directory; their paths are names."""
        return self._core.list(path, user=user).wait()

    def info(self, path: Path, *, user: str | None = None) -> FileInfo:
        """Describes a file; of a symbolic link, the link itself."""
        return self._core.info(path, user=user).wait()

    def make_directory(
        self, path: Path, mode: int | None = None, parents: bool = False, *, user: str | None = None
    ) -> None:
        """Makes a directory. `parents`: also those that it is in, and it may exist."""
        self._core.make_directory(path, mode, parents, user=user).wait()

    def rename(self, path: Path, to: Path, *, user: str | None = None, replace: bool = False) -> None:
        """Renames a file or a directory, on the same file system. `replace`: what is called `to` may exist, as of rename(2)."""
        self._core.rename(path, to, user=user, replace=replace).wait()

    def glob(self, path: Path, glob: str, **searching: Unpack[Searching]) -> Found[FileInfo]:
        """Finds files below a directory by a glob as in .gitignore: `*.py` at any depth, `src/**/*.py` from `path` on."""
        return self._core.search(path, glob=glob, **searching).wait()

    def search(
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
        return self._core.search(
            path,
            regex=regex,
            glob=glob,
            multiline=multiline,
            before_context=before_context,
            after_context=after_context,
            **searching,
        ).wait()

    def remove(self, path: Path, *, user: str | None = None, recursive: bool = False) -> None:
        """Removes a file, or a directory; `recursive`: one that is not empty."""
        self._core.remove(path, user=user, recursive=recursive).wait()

    def watch(self, path: Path, *, user: str | None = None, recursive: bool = False) -> Watch:
        """Watches a file, or a directory and its entries. No change after this is missed."""
        return Watch(self._core.watch(path, user=user, recursive=recursive).wait())


class Watch:
    """An iterator of changes, until it is closed or what is watched is gone (`FileNotFoundError`)."""

    def __init__(self, core: _telexec.Watch):
        self._core = core
        #: Changes that were returned: what was not is returned again after a wait that was interrupted.
        self._seen = 0

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> FileChange:
        change = self._core.next(self._seen).wait()
        if change is None:
            raise StopIteration
        self._seen += 1
        return change

    def close(self) -> None:
        """Ends the watch."""
        self._core.close().wait()
