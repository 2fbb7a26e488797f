"""Agents for the tests: real ones, with real processes.

TELEXEC_PROGRAMS is the directory of `telexec` and `telexecd`. What a test runs carries its mark in the environment, so that it
sees what is left of it.
"""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

import telexec

#: After which a test counts as hung.
LIMIT_SECONDS = 60.0

PROGRAMS = pathlib.Path(os.environ.get("TELEXEC_PROGRAMS", pathlib.Path(__file__).parents[3] / "target/debug"))
MARK = "TELEXEC_TEST_MARK"


def until(holds: Callable[[], bool], what: str) -> None:
    """Waits until something holds."""
    end = time.monotonic() + LIMIT_SECONDS
    while not holds():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)


def processes(mark: str) -> list[int]:
    """Those that carry a mark."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


class Daemon:
    """An agent on a Unix socket, and by mTLS."""

    def __init__(self, directory: pathlib.Path):
        self.directory = directory
        self.certs = directory / "certs"
        self._issue()
        self.socket = directory / "agent.sock"
        self.uri = f"unix://{self.socket}"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = directory / "log"
        self.receipt_key = directory / "receipt.pub"
        key = subprocess.run([PROGRAMS / "telexec", "receipt", "keygen", directory / "receipt.key"], check=True, capture_output=True)
        self.receipt_key.write_bytes(key.stdout)
        (directory / "telexecd.toml").write_text('receipt_key = "receipt.key"\n')
        self.process = subprocess.Popen(
            # without a keeper: what is killed is the agent
            [PROGRAMS / "telexecd", "--keeper", "off", "--config", "telexecd.toml", "--listen", self.uri, "--listen", f"tcp://127.0.0.1:{self.port}",
             "--tls-cert", self.certs / "agent.pem", "--tls-key", self.certs / "agent.key",
             "--client-ca", self.certs / "ca.pem"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log.open("wb"), cwd=directory,
        )  # fmt: skip
        until(self._listens, "the agent listens")

    def _issue(self) -> None:
        def certs(*words: str) -> None:
            subprocess.run([PROGRAMS / "telexec", "certs", *words], cwd=self.directory, check=True, capture_output=True)

        certs("init", "--dir", "certs")
        certs("issue", "--dir", "certs", "agent", "--server", "--ip", "127.0.0.1")
        certs("issue", "--dir", "certs", "client", "--client")

    def _listens(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return self.log.read_text().count("listening on") == 2

    def credentials(self) -> dict[str, pathlib.Path]:
        return {"cert": self.certs / "client.pem", "key": self.certs / "client.key", "ca": self.certs / "ca.pem"}

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(LIMIT_SECONDS)


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """No test finds the configuration of whoever runs it."""
    directory = tmp_path_factory.mktemp("home")
    names = [name for name in os.environ if name.startswith("TELEXEC_") and name != "TELEXEC_PROGRAMS"]
    with pytest.MonkeyPatch.context() as patch:
        for name in [*names, "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"]:
            patch.delenv(name, raising=False)
        patch.setenv("HOME", str(directory))
        yield directory


@pytest.fixture(scope="session")
def daemon(home: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("agent"))
    yield daemon
    daemon.stop()


@pytest.fixture(scope="session")
def configured(daemon: Daemon, home: pathlib.Path) -> None:
    """The target `web1`."""
    path = home / ".config/telexec/config.toml"
    path.parent.mkdir(parents=True)
    # a target for others is none for this package, and in nobody's way
    path.write_text(f"[targets.web1]\naddress = '{daemon.uri}'\n[targets.away]\naddress = 'nats://127.0.0.1:1/web2'\n")


@pytest.fixture
def agent(daemon: Daemon) -> telexec.Agent:
    return telexec.connect(daemon.uri)


@pytest.fixture
def mark() -> Iterator[str]:
    mark = uuid.uuid4().hex
    yield mark
    until(lambda: not processes(mark), "nothing is left")
