"""Agents and telexec-e2b, as processes that can be killed and started again, below one directory.

Agents are this machine's: as root they would do to it whatever a test asks for by mistake, so they run as nobody then.
"""

import contextlib
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

LIMIT = 60
KEY = "e2b_" + "0" * 40
IS_ROOT = os.geteuid() == 0
AS_NOBODY = {"user": "nobody", "group": "nogroup", "extra_groups": []} if IS_ROOT else {}


def free_port():
    """Not one of those that systems give to whoever asks for any: it is to stay free while a gateway is restarted."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port


class Site:
    """With one gateway, of the agents that are named."""

    def __init__(self, bin_directory, agents=("one",)):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="e2b-"))
        self.directory.chmod(0o755)
        self.bin = pathlib.Path(bin_directory).absolute()
        # which may be where only root may go
        self.agent = shutil.copy(self.bin / "telexecd", self.directory)
        self.agents, self.processes, self.port = list(agents), {}, free_port()
        self.keys = self.directory / "keys"
        self.keys.write_text(f"# one a line\n{KEY}\n")
        os.environ.update(E2B_API_URL=self.url, E2B_SANDBOX_URL=self.url, E2B_API_KEY=KEY)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        for name in self.agents:
            self.start_agent(name)
        self.start_gateway()
        return self

    def __exit__(self, kind, error, trace):
        if error is not None:
            for log in sorted(self.directory.glob("*.log")):
                print(f"--- {log.stem}\n{log.read_text(errors='replace')[-4000:]}", file=sys.stderr)
        for key in sorted(self.processes, key=lambda key: key.startswith("agent")):
            self.processes[key].terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self, key, *command, home=None, **options):
        home = home or self.directory
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TELEXEC_CONFIG": "/dev/null", "TMPDIR": str(home)}
        with open(self.directory / f"{key}.log", "ab") as log:
            self.processes[key] = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=home, **options
            )

    def kill(self, key, how=signal.SIGKILL):
        process = self.processes.pop(key)
        process.send_signal(how)
        return process.wait(30)

    def socket(self, name):
        return self.home(name) / f"{name}.sock"

    def home(self, name):
        return self.directory / f"{name}.home"

    def own(self, directory):
        """A directory of the agents' user."""
        directory.mkdir(exist_ok=True)
        if IS_ROOT:
            shutil.chown(directory, AS_NOBODY["user"], AS_NOBODY["group"])
        return directory

    def start_agent(self, name, settings=""):
        home = self.own(self.home(name))
        config = self.directory / f"{name}.toml"
        config.write_text(f'working_directory = "{home}"\n{settings}\n')
        state = ["--config", config, "--state-dir", self.own(self.directory / f"{name}.state")]
        listen = ["--listen", f"unix://{self.socket(name)}"]
        self.start(f"agent-{name}", self.agent, *listen, *state, home=home, **AS_NOBODY)
        self.until(f"agent {name}", self.socket(name).exists)

    def start_gateway(self, *options, key="gateway", port=None, wait=True, agents=None):
        port = port or self.port
        agents = self.agents if agents is None else agents
        targets = [word for name in agents for word in ("--target", f"unix://{self.socket(name)}")]
        listen = ["--listen", f"tcp://127.0.0.1:{port}", "--token-file", self.keys]
        ready = self.log(key).count(": ready")
        self.start(key, self.bin / "telexec-e2b", *listen, *targets, *options)
        if wait:
            self.until("the gateway", lambda: self.log(key).count(": ready") >= ready + len(agents))

    @contextlib.contextmanager
    def frozen(self, *names):
        """These agents do nothing, and look as if they did."""
        for name in names:
            self.processes[f"agent-{name}"].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for name in names:
                self.processes[f"agent-{name}"].send_signal(signal.SIGCONT)

    def logs(self, key):
        return self.directory / f"{key}.log"

    def log(self, key):
        path = self.logs(key)
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, what, done, limit=LIMIT):
        """Events of other programs that can only be looked for."""
        end = time.monotonic() + limit
        while True:
            found = done()
            if found:
                return found
            if time.monotonic() > end:
                raise SystemExit(f"{what}: not within {limit} s")
            time.sleep(0.05)


def states(mark):
    """Of the processes with this in their command lines: S when they sleep, T when they are stopped."""
    found = subprocess.run(["pgrep", "-f", mark], capture_output=True, text=True).stdout.split()
    return {pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] for pid in found}


def fails(kind, call, *words):
    """It raises this, with these words in its message."""
    try:
        result = call()
    except kind as error:
        assert all(word in str(error) for word in words), f"{error!r} has not {words}"
        return error
    raise AssertionError(f"no {kind} but {result!r}")


def run(parts):
    """Each part, by its name; those that are named on the command line, if any are."""
    for part in parts:
        if len(sys.argv) < 3 or part.__name__ in sys.argv[2:]:
            part()
            print(f"{part.__name__} holds", flush=True)
