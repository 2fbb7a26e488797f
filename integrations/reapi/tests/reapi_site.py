"""PostgreSQL, BuildGrid, agents, telexec-reapi and Bazel, as processes that can be killed and started again."""

import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import grpc

POSTGRES = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
LIMIT = 60

CONFIG = """
server:
  - !channel
    address: "127.0.0.1:{port}"
    insecure-mode: true

thread-pool-size: 100

connections:
  - !sql-connection &sql
    connection-string: {dsn}
    pool-size: 20
    max-overflow: 20

storages:
  - !disk-storage &storage
    path: {directory}/cas

caches:
  - !lru-action-cache &actions
    storage: *storage
    max-cached-refs: 4096
    allow-updates: true
    cache-failed-actions: false

schedulers:
  - !sql-scheduler &scheduler
    sql: *sql
    storage: *storage
    action-cache: *actions
    property-set:
      !dynamic-property-set
      match-property-keys: [OSFamily, ISA, pool]
      wildcard-property-keys: [user, memory, cpus, pids, unknown]
    poll-interval: 0.2
    bot-poll-interval: 0.2
    bot-session-keepalive-timeout: {keepalive}
    session-expiry-timer-interval: 1
    max-job-attempts: 5
    assigners:
      - !priority-age-assigner
        count: 8
        interval: 0.2

instances:
  - name: ''
    services:
      - !action-cache
        cache: *actions
      - !execution
        scheduler: *scheduler
      - !cas
        storage: *storage
      - !bytestream
        storage: *storage
"""


def free_port():
    """Not one of those that systems give to whoever asks for any: it is to stay free while a server is restarted."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port


class Site:
    """Everything is below one directory, and ends with it."""

    def __init__(self, bin_directory, keepalive=120):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="reapi-"))
        self.directory.chmod(0o755)
        self.bin = pathlib.Path(bin_directory).absolute()
        self.bgd = pathlib.Path(sys.executable).with_name("bgd")
        self.keepalive, self.port = keepalive, free_port()
        self.processes = {}

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if error is not None:
            print(self.logs(), file=sys.stderr)
        self.stop()
        # what an action of another user has made
        shutil.rmtree(self.directory, ignore_errors=True)

    # processes

    def start(self, key, *command, **options):
        log = open(self.directory / f"{key}.log", "ab")
        environment = {**os.environ, "TELEXEC_CONFIG": "/dev/null", **options.pop("environment", {})}
        self.processes[key] = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=self.directory,
            **options,
        )
        return self.processes[key]

    def kill(self, key, how=signal.SIGKILL):
        process = self.processes.pop(key)
        process.send_signal(how)
        return process.wait(30)

    def stop(self):
        """Workers first: they give back what they have; PostgreSQL last."""
        order = ["worker", "agent", "bazel", "buildgrid", "postgres"]
        rank = lambda key: next((at for at, name in enumerate(order) if key.startswith(name)), 0)
        for key in sorted(self.processes, key=rank):
            how = signal.SIGINT if key == "postgres" else signal.SIGTERM
            try:
                self.kill(key, how)
            except subprocess.TimeoutExpired:
                pass
        for process in self.processes.values():
            process.kill()

    def log(self, key):
        path = self.directory / f"{key}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def logs(self):
        return "".join(f"--- {log.stem}\n{self.log(log.stem)[-4000:]}" for log in sorted(self.directory.glob("*.log")))

    def until(self, what, done, limit=LIMIT):
        """Events of other programs that can only be looked for."""
        end = time.monotonic() + limit
        while True:
            found = done()
            if found:
                return found
            if time.monotonic() > end:
                raise SystemExit(f"{what}: not within {limit} s")
            time.sleep(0.02)

    def until_logged(self, key, pattern, count=1):
        self.until(f"{pattern!r} in the log of {key}", lambda: len(re.findall(pattern, self.log(key))) >= count)

    # BuildGrid

    def start_postgres(self):
        programs, data = POSTGRES[-1], self.directory / "pg"
        as_postgres = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
        data.mkdir()
        if as_postgres:
            shutil.chown(data, "postgres", "postgres")
        run = lambda *command: subprocess.run(
            [str(word) for word in command], check=True, stdout=subprocess.DEVNULL, cwd=data, **as_postgres
        )
        run(programs / "initdb", "-D", data / "db", "-A", "trust", "-U", "postgres", "--no-sync")
        quick = ["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"]
        sockets = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={data}", "-c", "max_connections=200"]
        self.start("postgres", programs / "postgres", "-D", data / "db", *sockets, *quick, **as_postgres)
        ready = lambda: subprocess.run([programs / "pg_isready", "-q", "-h", data]).returncode == 0
        self.until("PostgreSQL", ready)
        run(programs / "createdb", "-h", data, "-U", "postgres", "bgd")
        # psycopg 3, which BuildGrid would take for "postgresql://", makes its clients wait for ever
        self.dsn = f"postgresql+psycopg2://postgres@/bgd?host={data}"
        subprocess.run([self.bgd, "migrate", "apply", self.dsn], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def start_buildgrid(self):
        config = CONFIG.format(port=self.port, dsn=self.dsn, directory=self.directory, keepalive=self.keepalive)
        (self.directory / "buildgrid.yml").write_text(config)
        self.start("buildgrid", self.bgd, "server", "start", self.directory / "buildgrid.yml")
        with grpc.insecure_channel(self.address) as channel:
            grpc.channel_ready_future(channel).result(LIMIT)

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    # agents and workers

    def start_agent(self, name, *arguments):
        # without a keeper: what is killed is the agent
        agent = [self.bin / "telexecd", "--keeper", "off", "--listen", f"unix://{self.directory}/{name}.sock"]
        self.start(f"agent-{name}", *agent, *arguments)

    def start_worker(self, name, agents, *arguments, server=None, scheme="grpc"):
        targets = [word for agent in agents for word in ("--target", f"unix://{self.directory}/{agent}.sock")]
        command = [self.bin / "telexec-reapi", "--bots", f"{scheme}://{server or self.address}", "--name", name]
        self.start(f"worker-{name}", *command, *targets, "--work-dir", self.work(name), *arguments)

    def work(self, name):
        return self.directory / f"work-{name}"

    def until_ready(self, name, count=1):
        self.until_logged(f"worker-{name}", "the server knows this bot", count)


@contextlib.contextmanager
def site(bin_directory, **options):
    with Site(bin_directory, **options) as this:
        this.start_postgres()
        this.start_buildgrid()
        yield this


def command_line(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def processes(mark):
    """Those with this text in their command line."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return [pid for pid in found if pid != os.getpid()]


def watchdog(seconds):
    """Ends this process if it hangs."""
    timer = threading.Timer(seconds, lambda: os._exit(3))
    timer.daemon = True
    timer.start()
