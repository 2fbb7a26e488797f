"""Does what tests/benches/suite/python.rs asks for, a line each, and answers with the seconds that it took.

    bench.py gateway TELEXEC_E2B AGENT    a sandbox of this gateway, in front of this agent
    bench.py fake                         a server that runs nothing and answers at once

`run`: `commands.run("true")`, by the unmodified SDK.
"""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from e2b_site import KEY, free_port

ANSWER = b"HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s"
SANDBOX = b'{"sandboxID":"fake-000000000000","templateID":"base","clientID":"fake","envdVersion":"0.6.7","envdAccessToken":"x"}'
EVENTS = (
    (0, b'{"event":{"start":{"pid":1}}}'),
    (0, b'{"event":{"end":{"exitCode":0,"exited":true,"status":"exit status 0"}}}'),
    (2, b"{}"),
)
RUN = b"".join(bytes([flag]) + len(data).to_bytes(4, "big") + data for flag, data in EVENTS)


def answer(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    waiting = b""
    while data := connection.recv(65536):
        waiting += data
        if waiting.startswith(b"POST /process.Process/Start "):
            if waiting.endswith(b"\r\n0\r\n\r\n"):
                connection.sendall(ANSWER % (b"200 OK", b"application/connect+json", len(RUN), RUN))
                waiting = b""
        elif waiting.endswith(b"}") or waiting.startswith(b"DELETE"):
            connection.sendall(ANSWER % (b"201 Created", b"application/json", len(SANDBOX), SANDBOX))
            waiting = b""


def serve_fake():
    """In a process of its own, as the gateway is."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            threading.Thread(target=answer, args=listener.accept()[:1], daemon=True).start()


def fake():
    process = subprocess.Popen([sys.executable, __file__, "serve-fake"], stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline())


def gateway(program, agent):
    port = free_port()
    state = tempfile.mkdtemp(prefix="e2b-bench-")
    listen = ["--listen", f"tcp://127.0.0.1:{port}", "--target", agent, "--state-dir", state]
    process = subprocess.Popen([program, *listen], stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
            return process, port
        except OSError:
            time.sleep(0.05)


def main(kind, *arguments):
    if kind == "serve-fake":
        return serve_fake()
    process, port = fake() if kind == "fake" else gateway(*arguments)
    try:
        os.environ.update(E2B_API_URL=f"http://127.0.0.1:{port}", E2B_SANDBOX_URL=f"http://127.0.0.1:{port}", E2B_API_KEY=KEY)
        from e2b import Sandbox

        sandbox = Sandbox.create()
        for line in sys.stdin:
            assert line == "run\n", line
            began = time.perf_counter()
            sandbox.commands.run("true")
            print(time.perf_counter() - began, flush=True)
        sandbox.kill()
    finally:
        process.terminate()
        process.wait()


main(*sys.argv[1:])
