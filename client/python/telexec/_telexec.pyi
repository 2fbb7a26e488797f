"""The extension module; see src/lib.rs."""

import os
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Generic, TypeVar, final

from ._values import Event, Exit, FileChange, FileInfo, Found, Info, Limits

__version__: str

T_co = TypeVar("T_co", covariant=True)

@final
class Call(Generic[T_co]):
    def wait(self) -> T_co: ...
    def __await__(self) -> Generator[Any, Any, T_co]: ...

@final
class Command:
    def __new__(
        cls,
        command: str | Sequence[str],
        *,
        input: bytes | None = None,
        interactive: bool = False,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        clear_env: bool = False,
        cwd: str | None = None,
        user: str | None = None,
        limits: Limits | None = None,
        detach: bool = False,
        merge: bool = False,
        shell: str | None = None,
        login: bool = False,
        terminal: tuple[int, int] | None = None,
        kill_grace: float | None = None,
        kill_descendants: bool = False,
        no_new_privileges: bool = False,
        receipt: bool = False,
        max_output: int | None = None,
        labels: Mapping[str, str] | None = None,
        reason: str | None = None,
        id: str | None = None,
    ) -> Command: ...

@final
class Execution:
    @property
    def id(self) -> str: ...
    def next(self, seen: int) -> Call[tuple[int, Event] | None]: ...
    def wait(self) -> Call[Exit]: ...
    def write(self, data: bytes, close: bool) -> Call[None]: ...
    def signal(self, signal: str) -> Call[None]: ...
    def close(self) -> Call[None]: ...

@final
class Files:
    def read(
        self, path: str | os.PathLike[str], *, user: str | None = None, offset: int = 0, length: int = 0
    ) -> Call[bytes]: ...
    def write(
        self,
        path: str | os.PathLike[str],
        data: bytes,
        *,
        user: str | None = None,
        mode: int | None = None,
        make_parents: bool = False,
        exclusive: bool = False,
    ) -> Call[FileInfo]: ...
    def list(self, path: str | os.PathLike[str], *, user: str | None = None) -> Call[list[FileInfo]]: ...
    def info(self, path: str | os.PathLike[str], *, user: str | None = None) -> Call[FileInfo]: ...
    def make_directory(
        self,
        path: str | os.PathLike[str],
        mode: int | None = None,
        parents: bool = False,
        *,
        user: str | None = None,
    ) -> Call[None]: ...
    def rename(
        self,
        path: str | os.PathLike[str],
        to: str | os.PathLike[str],
        *,
        user: str | None = None,
        replace: bool = False,
    ) -> Call[None]: ...
    def search(
        self,
        path: str | os.PathLike[str],
        *,
        glob: str = "",
        regex: str | None = None,
        user: str | None = None,
        case_insensitive: bool = False,
        multiline: bool = False,
        before_context: int = 0,
        after_context: int = 0,
        include_hidden: bool = False,
        include_ignored: bool = False,
        follow_links: bool = False,
        max_matches: int = 0,
    ) -> Call[Found[Any]]: ...
    def remove(
        self, path: str | os.PathLike[str], *, user: str | None = None, recursive: bool = False
    ) -> Call[None]: ...
    def watch(
        self, path: str | os.PathLike[str], *, user: str | None = None, recursive: bool = False
    ) -> Call[Watch]: ...

@final
class Watch:
    def next(self, seen: int) -> Call[FileChange | None]: ...
    def close(self) -> Call[None]: ...

@final
class Connection:
    def read(self, n: int, seen: int) -> Call[bytes]: ...
    def write(self, data: bytes) -> Call[None]: ...
    def close_write(self) -> Call[None]: ...
    def close(self) -> Call[None]: ...

@final
class Forward:
    @property
    def address(self) -> tuple[str, int] | str: ...
    def wait(self) -> Call[None]: ...
    def close(self) -> Call[None]: ...

@final
class Targets:
    def __new__(
        cls,
        targets: str | Sequence[str],
        *,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        ca: str | os.PathLike[str] | None = None,
        access_token_file: str | os.PathLike[str] | None = None,
        spiffe_socket: str | None = None,
        spiffe_id: str | None = None,
        connect_timeout: float | None = None,
    ) -> Targets: ...
    @property
    def names(self) -> list[str]: ...
    def run(self, target: str, command: Command, reconnect: float) -> Call[tuple[Exit, bytes, bytes]]: ...

@final
class Race:
    def __new__(cls) -> Race: ...
    def add(self, number: int, call: Call[Any]) -> None: ...
    def next(self, seen: int) -> Call[tuple[int, Any, BaseException | None] | None]: ...
    def close(self) -> Call[None]: ...

@final
class Agent:
    @property
    def target(self) -> str: ...
    def files(self) -> Files: ...
    def run(self, command: Command) -> Call[tuple[Exit, bytes, bytes]]: ...
    def start(self, command: Command) -> Call[Execution]: ...
    def attach(self, id: str, position: int) -> Call[Execution]: ...
    def dial(self, address: str, user: str | None) -> Call[Connection]: ...
    def forward(self, to: str, listen: str, user: str | None) -> Call[Forward]: ...
    def reverse(self, to: str, listen: str) -> Call[Forward]: ...
    def get(self, id: str) -> Call[Info]: ...
    def list(self, all: bool, labels: Mapping[str, str] | None) -> Call[list[Info]]: ...

def connect(
    target: str,
    *,
    cert: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    ca: str | os.PathLike[str] | None = None,
    access_token_file: str | os.PathLike[str] | None = None,
    spiffe_socket: str | None = None,
    spiffe_id: str | None = None,
    server_name: str | None = None,
    connect_timeout: float | None = None,
    reconnect: float = 30.0,
) -> Call[Agent]: ...
def shut_down() -> None: ...
