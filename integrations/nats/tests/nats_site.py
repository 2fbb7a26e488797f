"""A NATS server, agents and telexec-nats beside each, as processes that can be killed and started again."""

import asyncio
import json
import os
import pathlib
import random
import signal
import socket
import subprocess

import nats
from nats.js.api import ConsumerConfig, DeliverPolicy


def free_port():
    """Not one of those that systems give to whoever asks for any: it is to stay free while the server is restarted."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


class Site:
    def __init__(self, directory, bin_directory, nats_server, agents, arguments=()):
        self.directory, self.bin = pathlib.Path(directory), pathlib.Path(bin_directory).absolute()
        self.nats_server = nats_server
        self.names, self.arguments = [f"a{number}" for number in range(agents)], list(arguments)
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.processes = {}

    def _start(self, key, *command, ready=None):
        log = open(self.directory / f"{key}.log", "ab")
        environment = {**os.environ, "TELEXEC_CONFIG": "/dev/null"}
        self.processes[key] = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self.directory
        )

    async def start_server(self, *also):
        self._start("nats", self.nats_server, "-js", "-a", "127.0.0.1", "-p", str(self.port), "-sd", str(self.directory / "js"), *also)
        await self.until_open()

    async def until_open(self):
        for _ in range(600):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return
            except OSError:
                await asyncio.sleep(0.05)
        raise SystemExit("the NATS server does not listen: " + (self.directory / "nats.log").read_text())

    def start_agent(self, name):
        path = self.directory / f"{name}.sock"
        # without a keeper: what is killed is the agent
        self._start(f"agent-{name}", str(self.bin / "telexecd"), "--keeper", "off", "--listen", f"unix://{path}")

    def start_bridge(self, name, *also):
        target = f"unix://{self.directory / name}.sock"
        command = [str(self.bin / "telexec-nats"), "--url", self.url, "--target", target, "--name", name]
        self._start(f"bridge-{name}", *command, *self.arguments, *also)

    def kill(self, key, how=signal.SIGKILL):
        process = self.processes.pop(key)
        process.send_signal(how)
        process.wait(30)

    def stop(self):
        for key in sorted(self.processes, key=lambda key: not key.startswith("bridge")):
            try:
                self.kill(key, signal.SIGTERM)
            except subprocess.TimeoutExpired:
                pass

    async def connect(self, **options):
        async def lost(_):
            """Expected; the default prints a traceback."""

        return await nats.connect(self.url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=lost, **options)

    async def until_stream(self, client):
        """The first telexec-nats makes the streams."""
        for _ in range(600):
            try:
                info = await client.jetstream().stream_info("TELEXEC_RUN")
                # which comes after it
                await client.jetstream().find_stream_name_by_subject("telexec.out.any")
                return info
            except nats.errors.Error:
                await asyncio.sleep(0.1)
        raise SystemExit("no stream")

    def logs(self):
        return "".join(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in sorted(self.directory.glob("*.log")))


async def submit(js, to, request, **headers):
    """Retries until the server has it: a repeat has the same message id."""
    headers = {"Nats-Msg-Id": request["execution_id"], "Content-Type": "application/json", **headers}
    while True:
        try:
            return await js.publish(f"telexec.run.{to}", json.dumps(request).encode(), headers=headers, timeout=5)
        except (nats.errors.Error, asyncio.TimeoutError):
            await asyncio.sleep(0.2)


class Events:
    """All that is said of executions, by their ids."""

    def __init__(self, js):
        self.js, self.of, self.ended, self.seen = js, {}, set(), 0

    async def read(self, expected, limit):
        """Until as many executions have ended."""
        subscription = await self.js.subscribe("telexec.out.>", ordered_consumer=True)
        deadline = asyncio.get_running_loop().time() + limit
        while len(self.ended) < expected:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise SystemExit(f"only {len(self.ended)} of {expected} have ended")
            try:
                message = await subscription.next_msg(timeout=min(left, 5))
            except (asyncio.TimeoutError, nats.errors.TimeoutError):
                continue
            self.add(message)
        await subscription.unsubscribe()

    def add(self, message):
        id = message.subject.removeprefix("telexec.out.")
        event = json.loads(message.data) if message.data else {}
        headers = message.headers or {}
        of = self.of.setdefault(id, [])
        assert id not in self.ended, f"{id}: something follows its end: {event} {headers}"
        of.append((event, headers))
        if "exited" in event or "alreadyRunning" in event or "Telexec-Status" in headers:
            self.ended.add(id)

    async def one(self, id, limit=30):
        """Until this one has ended; its last event and headers."""
        subscription = await self.js.subscribe(f"telexec.out.{id}", ordered_consumer=True)
        while id not in self.ended:
            self.add(await subscription.next_msg(timeout=limit))
        await subscription.unsubscribe()
        return self.of[id][-1]
