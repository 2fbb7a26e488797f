"""The extension module; see src/lib.rs."""

import datetime
import os
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, final

T_co = TypeVar("T_co", covariant=True)

@final
class Call(Generic[T_co]):
    def wait(self) -> T_co: ...
    def __await__(self) -> Generator[Any, Any, T_co]: ...

@final
class Limits:
    """The most that the processes of a command may use together."""

    def __new__(
        cls, *, memory: int | None = None, processes: int | None = None, cpus: float | None = None
    ) -> Limits: ...
    @property
    def memory(self) -> int | None:
        """In bytes, page cache and tmpfs included."""
    @property
    def processes(self) -> int | None:
        """Processes and threads at once."""
    @property
    def cpus(self) -> float | None:
        """Processors' worth of time: 0.5 is half of one."""

@final
class Event:
    """A piece of output."""

    @property
    def stream(self) -> Literal["stdout", "stderr", "gap"]:
        """Where it was written. "gap": output before `position` is not kept any more; only after an attach."""
    @property
    def data(self) -> bytes: ...
    @property
    def position(self) -> int:
        """Bytes of both streams before it."""

@final
class Usage:
    """What all processes of an execution together have used. `None`: its machine does not count it."""

    @property
    def user_time(self) -> float | None:
        """Processor time in seconds, also of processes that nobody waited for."""
    @property
    def system_time(self) -> float | None: ...
    @property
    def peak_memory(self) -> int | None:
        """The most bytes at any time, page cache included."""
    @property
    def read_bytes(self) -> int | None:
        """From block devices."""
    @property
    def written_bytes(self) -> int | None: ...
    @property
    def peak_processes(self) -> int | None:
        """The most processes and threads at any time."""

@final
class Exit:
    """How a command ended."""

    @property
    def id(self) -> str: ...
    @property
    def exit_code(self) -> int:
        """-1: it has none, see `cause`."""
    @property
    def cause(self) -> str:
        """As of `Result`."""
    @property
    def signal(self) -> str | None: ...
    @property
    def core_dumped(self) -> bool: ...
    @property
    def wall_time(self) -> float:
        """In seconds, as the other times."""
    @property
    def user_time(self) -> float: ...
    @property
    def system_time(self) -> float: ...
    @property
    def max_rss(self) -> int:
        """Of the largest process, in bytes."""
    @property
    def dropped_bytes(self) -> int:
        """Output beyond `max_output`."""
    @property
    def surviving_processes(self) -> int:
        """Processes that it left running."""
    @property
    def usage(self) -> Usage: ...

@final
class Info:
    """An execution that an agent knows."""

    @property
    def id(self) -> str: ...
    @property
    def command(self) -> str: ...
    @property
    def argv(self) -> list[str] | None:
        """`None`: it is a shell's text."""
    @property
    def cwd(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def identity(self) -> str:
        """Who started it."""
    @property
    def terminal(self) -> bool: ...
    @property
    def labels(self) -> dict[str, str]: ...
    @property
    def state(self) -> Literal["running", "lingering", "exited"]:
        """"lingering": it has exited, and processes that it left behind run."""
    @property
    def pid(self) -> int: ...
    @property
    def start_time(self) -> datetime.datetime: ...
    @property
    def position(self) -> int:
        """Bytes of output so far."""
    @property
    def processes(self) -> int: ...
    @property
    def usage(self) -> Usage:
        """So far."""
    @property
    def exit(self) -> Exit | None: ...

@final
class FileInfo:
    """What is known of a file."""

    @property
    def path(self) -> str: ...
    @property
    def kind(
        self,
    ) -> Literal["file", "directory", "symlink", "fifo", "socket", "character_device", "block_device"]: ...
    @property
    def size(self) -> int: ...
    @property
    def mode(self) -> int: ...
    @property
    def owner(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def modify_time(self) -> datetime.datetime: ...
    @property
    def link_target(self) -> str | None: ...

@final
class FileChange:
    """A change of a file that is watched."""

    @property
    def change(self) -> Literal["created", "written", "removed", "renamed", "attributes_changed", "lost"]:
        """"lost": it was read too slowly, so list everything again."""
    @property
    def path(self) -> str | None:
        """`None`: "lost"."""

@final
class Command:
    def __new__(
        cls,
        program: str | Sequence[str],
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
    def read(self, length: int | None, seen: int) -> Call[bytes]: ...
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
    def dial(self, to: str, user: str | None) -> Call[Connection]: ...
    def forward(self, to: str, listen: str, user: str | None) -> Call[Forward]: ...
    def reverse(self, to: str, listen: str) -> Call[Forward]: ...
    def get(self, id: str) -> Call[Info]: ...
    def list(self, include_exited: bool, labels: dict[str, str]) -> Call[list[Info]]: ...

def connect(
    target: str,
    *,
    cert: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    ca: str | os.PathLike[str] | None = None,
    server_name: str | None = None,
    connect_timeout: float | None = None,
) -> Call[Agent]: ...
def run_on(
    target: str,
    command: Command,
    *,
    cert: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    ca: str | os.PathLike[str] | None = None,
    connect_timeout: float | None = None,
) -> Call[tuple[Exit, bytes, bytes]]: ...
def expand(sets: Sequence[str]) -> list[str]: ...
def shut_down() -> None: ...
