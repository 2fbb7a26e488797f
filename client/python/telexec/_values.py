"""What agents are given and report, for both kinds of API. The extension module makes what they report."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Generic, Literal, TypeVar

MatchT = TypeVar("MatchT")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that the processes of a command may use together. `None`: no limit of its own."""

    #: In bytes, page cache and tmpfs included.
    memory: int | None = None
    #: Processes and threads at once.
    processes: int | None = None
    #: Processors' worth of time: 0.5 is half of one.
    cpus: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """A piece of output."""

    #: Where it was written. "gap": output before `position` is not kept any more; only after an attach.
    stream: Literal["stdout", "stderr", "gap"]
    data: bytes
    #: Bytes of both streams before it.
    position: int


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What all processes of an execution together have used. `None`: its machine does not count it."""

    #: Processor time in seconds, also of processes that nobody waited for.
    user_time: float | None
    system_time: float | None
    #: The most bytes at any time, page cache included.
    peak_memory: int | None
    #: From block devices.
    read_bytes: int | None
    written_bytes: int | None
    #: The most processes and threads at any time.
    peak_processes: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended."""

    id: str
    #: -1: it has none, see `cause`.
    exit_code: int
    #: As of `Result`.
    cause: str
    signal: str | None
    core_dumped: bool
    #: In seconds, as the other times.
    wall_time: float
    user_time: float
    system_time: float
    #: Of the largest process, in bytes.
    max_rss: int
    #: Output beyond `max_output`.
    dropped_bytes: int
    #: Processes that it left running.
    surviving_processes: int
    usage: Usage
    #: With `receipt`: an in-toto statement in a DSSE envelope, as JSON; see `telexec receipt verify`. Agents that are older
    #: than receipts give none.
    receipt: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Info:
    """An execution that an agent knows."""

    id: str
    command: str
    #: `None`: it is a shell's text.
    argv: list[str] | None
    cwd: str
    user: str
    #: Who started it.
    identity: str
    terminal: bool
    labels: dict[str, str]
    #: "lingering": it has exited, and processes that it left behind run.
    state: Literal["running", "lingering", "exited"]
    pid: int
    start_time: datetime.datetime
    #: Bytes of output so far.
    position: int
    processes: int
    #: So far.
    usage: Usage
    exit: Exit | None


@dataclasses.dataclass(frozen=True, slots=True)
class FileInfo:
    """What is known of a file."""

    path: str
    kind: Literal["file", "directory", "symlink", "fifo", "socket", "character_device", "block_device"]
    size: int
    mode: int
    owner: str
    group: str
    modify_time: datetime.datetime
    link_target: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class FileChange:
    """A change of a file that is watched."""

    #: "lost": it was read too slowly, so list everything again.
    change: Literal["created", "written", "removed", "renamed", "attributes_changed", "lost"]
    #: `None`: "lost".
    path: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A line that a search has found."""

    #: Begins with that of the search.
    path: str
    #: The first one of a file is 1.
    number: int
    #: Without its end.
    text: bytes
    #: It does not match, but is near a line that does.
    is_context: bool
    #: It is longer, and this is its beginning.
    is_cut: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Found(Generic[MatchT]):
    """What a search has found, in the order of the names' bytes."""

    matches: list[MatchT]
    #: There is more: `max_matches`, or 16 MiB.
    limit_reached: bool
    files_searched: int
    #: Files that are no text.
    skipped_binary: int
    #: Files of more than 64 MiB.
    skipped_too_large: int
    #: Files and directories that the user may not read.
    skipped_unreadable: int
    #: Files and directories that the agent's policy denies.
    skipped_denied: int
