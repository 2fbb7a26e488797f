"""Runs commands on other machines, by way of telexec's agents.

    agent = telexec.connect("web1")
    print(agent.run("uname -a", text=True).stdout)
    for outcome in telexec.fleet("web[1-3]").run("uptime"): ...

`telexec.aio` is the same for asyncio. `telexec.dask` has Dask clusters, `telexec.inspect` is a sandbox of Inspect.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._blocking import Agent, Execution, Files, Watch, connect
    from ._command import Options, Result
    from ._errors import (
        CommandFailed,
        Error,
        FileError,
        ForwardError,
        Invalid,
        Lost,
        NotFound,
        NotStarted,
        Refused,
        TimedOut,
        Unreachable,
    )
    from ._fleet import Fleet, Outcome, Runs, fleet
    from ._forward import Connection, Forward
    from ._telexec import __version__ as __version__
    from ._values import Event, Exit, FileChange, FileInfo, Found, Info, Limits, Line, Usage

__all__ = [
    "Agent",
    "CommandFailed",
    "Connection",
    "Error",
    "Event",
    "Execution",
    "Exit",
    "FileChange",
    "FileError",
    "FileInfo",
    "Files",
    "Fleet",
    "Forward",
    "ForwardError",
    "Found",
    "Info",
    "Invalid",
    "Limits",
    "Line",
    "Lost",
    "NotFound",
    "NotStarted",
    "Options",
    "Outcome",
    "Refused",
    "Result",
    "Runs",
    "TimedOut",
    "Unreachable",
    "Usage",
    "Watch",
    "connect",
    "fleet",
]


def __getattr__(name: str) -> Any:
    # not at once: `telexec.dask` needs the program alone, and runs from a checkout without the extension module
    if name in __all__ or name == "__version__":
        for module in ("_errors", "_command", "_values", "_blocking", "_fleet", "_telexec"):
            found = getattr(importlib.import_module(f".{module}", __name__), name, None)
            if found is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
