"""How many actions of `true` run in a second, and where the time goes: rate.py BIN_DIRECTORY [ACTIONS]

BuildGrid has no bot of its own any more, so beside telexec-reapi there are two in Python, which do what one must do: `nothing`
answers at once (what is left is the server), `host` fetches, runs in a temporary directory on this machine, and uploads.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import grpc
from buildgrid._protos.build.bazel.remote.execution.v2 import remote_execution_pb2 as pb
from buildgrid._protos.google.devtools.remoteworkers.v1test2 import bots_pb2, bots_pb2_grpc

import reapi_site
from fake_server import Server
from reapi_client import Client

BIN = sys.argv[1]
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 300
SLOTS = 8


class Bot:
    """As many sessions as there are slots, each with one lease at a time."""

    def __init__(self, address, run):
        self.address, self.run, self.stop = address, run, threading.Event()
        self.threads = [threading.Thread(target=self.serve, args=[n], daemon=True) for n in range(SLOTS)]
        for thread in self.threads:
            thread.start()

    def serve(self, number):
        channel = grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])
        stub, client = bots_pb2_grpc.BotsStub(channel), Client(self.address)
        session = bots_pb2.BotSession(bot_id=f"{self.run.__name__}-{number}", status=bots_pb2.UNHEALTHY)
        device = session.worker.devices.add(handle="host")
        device.properties.add(key="OSFamily", value="linux")
        session = stub.CreateBotSession(bots_pb2.CreateBotSessionRequest(bot_session=session), timeout=10)
        session.status = bots_pb2.OK
        is_over = False
        while not is_over:
            if self.stop.is_set():
                # or else the server would go on to count on it
                session.status = bots_pb2.BOT_TERMINATING
            request = bots_pb2.UpdateBotSessionRequest(name=session.name, bot_session=session)
            session = stub.UpdateBotSession(request, timeout=5)
            is_over = session.status == bots_pb2.BOT_TERMINATING and not session.leases
            for lease in session.leases:
                action = pb.Action()
                lease.payload.Unpack(action)
                lease.result.Pack(self.run(client, action))
                lease.state = bots_pb2.COMPLETED
                lease.status.code = 0


def nothing(client, action):
    return pb.ActionResult()


def host(client, action):
    command = pb.Command.FromString(client.get(action.command_digest))
    pb.Directory.FromString(client.get(action.input_root_digest))
    environment = {pair.name: pair.value for pair in command.environment_variables}
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(list(command.arguments), cwd=directory, env=environment, capture_output=True)
    return pb.ActionResult(exit_code=done.returncode, stdout_raw=done.stdout, stderr_raw=done.stderr)


def measure(name, client):
    actions = [client.action(["true"]) for _ in range(COUNT)]
    client.run_all(actions[: SLOTS])
    began = time.monotonic()
    responses = client.run_all(actions[SLOTS:])
    took = time.monotonic() - began
    assert all(response.status.code == 0 and response.result.exit_code == 0 for response in responses)
    print(f"{name:14} {len(responses) / took:6.1f} actions/s", flush=True)


def steps(log):
    """Medians of what telexec-reapi says of each action."""
    pattern = r"inputs ([\d.]+) ms, run ([\d.]+) ms \(([\d.]+) ms of it the command\), outputs ([\d.]+) ms"
    rows = [[float(number) for number in row] for row in re.findall(pattern, log)][SLOTS:]
    inputs, run, command, outputs = (statistics.median(column) for column in zip(*rows))
    print(f"an action of telexec-reapi, medians: fetch and lay out {inputs:.1f} ms, start, follow and end {run:.1f} ms")
    print(f"    (the command itself {command:.1f} ms), outputs {outputs:.1f} ms")


def alone(site):
    """With a server that has all leases at hand: the limit of telexec-reapi and one agent."""
    server = Server(reapi_site.free_port())
    action = server.action(["true"])
    for number in range(COUNT):
        server.begin(action, f"lease-{number}")
    began = time.monotonic()
    site.start_worker("alone", ["a1"], "--concurrency", str(SLOTS), server=f"127.0.0.1:{server.port}")
    for _ in range(COUNT):
        status, result = server.result()
        assert status.code == 0 and result.exit_code == 0, status
    print(f"{'without queue':14} {COUNT / (time.monotonic() - began):6.1f} actions/s, its start included", flush=True)


def main():
    print(f"{COUNT - SLOTS} actions of `true`, {SLOTS} at once, on {os.cpu_count()} processors with the server and its client")
    with reapi_site.site(BIN) as site:
        client = Client(site.address)
        for run in [nothing, host]:
            bot = Bot(site.address, run)
            measure(run.__name__, client)
            bot.stop.set()
            for thread in bot.threads:
                thread.join(30)
        site.start_agent("a1")
        site.start_worker("w", ["a1"], "--concurrency", str(SLOTS))
        site.until_ready("w")
        measure("telexec-reapi", client)
        steps(site.log("worker-w"))
        site.kill("worker-w", reapi_site.signal.SIGTERM)
        alone(site)
        steps(site.log("worker-alone"))


main()
