"""What no SDK sends: hostile.py BIN_DIRECTORY [PART...]

The agent is this machine's: nothing here may name a path outside of the sandbox's home in a call that removes or renames.
"""

import base64
import gzip
import json
import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import zlib

import httpx

from e2b_site import KEY, LIMIT, Site, free_port, run, states
from e2b import Sandbox

LIMIT_BYTES = 1024 * 1024
MARK = "never"
site = sandbox = None


def headers(**more):
    return {"E2b-Sandbox-Id": sandbox.sandbox_id, "X-Access-Token": sandbox._envd_access_token, **more}


def envelope(data, flags=0, length=None):
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    return struct.pack(">BI", flags, len(data) if length is None else length) + data


def unary(method, body, **more):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    with_type = {"Content-Type": "application/json", **more}
    return httpx.post(f"{site.url}/{method}", content=body, headers=headers(**with_type))


def stream(method, body, **more):
    """The error of a stream, which comes last."""
    answer = httpx.post(f"{site.url}/{method}", content=body, headers=headers(**{"Content-Type": "application/connect+json", **more}))
    if answer.status_code != 200:
        return answer.json()
    rest, messages = answer.content, []
    while rest:
        flags, length = struct.unpack(">BI", rest[:5])
        messages.append((flags, json.loads(rest[5 : 5 + length])))
        rest = rest[5 + length :]
    assert [flags for flags, _ in messages][-1] == 2 and all(flags == 0 for flags, _ in messages[:-1]), messages
    return messages[-1][1].get("error")


def refused(error, code, *words):
    error = error.json() if isinstance(error, httpx.Response) else error
    assert error and error["code"] == code and all(word in error["message"] for word in words), error


def raw(text, rest=0.3):
    """What is answered to these bytes, after which nothing comes."""
    with socket.create_connection(("127.0.0.1", site.port), LIMIT) as connection:
        connection.sendall(text)
        time.sleep(rest)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


def head(path, **more):
    lines = [f"{name}: {value}" for name, value in headers(Host="x", **more).items()]
    return ("\r\n".join([f"POST {path} HTTP/1.1", *lines]) + "\r\n\r\n").encode()


def nothing_ran():
    assert not sandbox.files.exists(MARK) and sandbox.commands.list() == []


START = {"process": {"cmd": "touch", "args": [MARK]}, "stdin": False}


def messages():
    """Malformed messages name the field."""
    start, invalid = "process.Process/Start", "invalid_argument"
    wrong = lambda **change: {**START, "process": {**START["process"], **change}}
    for message, field in [
        (wrong(args=["a", 1]), "process.args[1]"),
        (wrong(cmd=5), "process.cmd"),
        (wrong(envs={"A": []}), "process.envs.A"),
        (wrong(envs={"A=": "b"}), "environment"),
        (wrong(cmd=""), "argv"),
        (wrong(args=["a\0"]), "argv[1]"),
        (wrong(cwd="a\0"), "path"),
        ({}, "process"),
        ({**START, "stdin": "yes"}, "stdin"),
        ({**START, "pty": {}}, "pty.size"),
        ({**START, "pty": {"size": {"cols": 0, "rows": 5}}}, "pty.size"),
        ({**START, "pty": {"size": {"cols": -1, "rows": 5}}}, "pty.size.cols"),
        ({**START, "tag": "x" * 300}, "labels"),
    ]:
        refused(stream(start, envelope(message)), invalid, field)
    for text in [b"", b"{", b"[]", b"null", b"\xff", b'{"process": ' + b"[" * 100_000, b"{} {}"]:
        refused(stream(start, envelope(text)), invalid)
        if text != b"{} {}":
            refused(unary("process.Process/SendInput", text), invalid)
    pid = {"process": {"pid": 4_000_000}}
    for method, message, code, field in [
        ("SendInput", {**pid, "input": {"stdin": "%"}}, invalid, "input.stdin"),
        ("SendInput", {"process": {"pid": -1}, "input": {}}, invalid, "process.pid"),
        ("SendInput", {"process": {}, "input": {}}, invalid, "process"),
        ("SendInput", {**pid, "input": {"stdin": ""}}, "not_found", "4000000"),
        ("SendSignal", {**pid, "signal": "SIGNAL_SIGHUP"}, invalid, "signal"),
        ("SendSignal", {**pid, "signal": "SIGNAL_SIGKILL"}, "not_found", "4000000"),
        ("Update", {**pid, "pty": {"size": {"cols": 1, "rows": 1}}}, "not_found", "4000000"),
        ("Nothing", {}, "unimplemented", "Nothing"),
    ]:
        refused(unary(f"process.Process/{method}", message), code, field)
    for method, message, code in [
        ("Stat", {"path": "a\0b"}, invalid),
        ("Stat", {"path": 5}, invalid),
        ("Stat", {"path": "x" * 5000}, invalid),
        ("ListDir", {"path": ".", "depth": -1}, invalid),
        ("Move", {"source": "a"}, invalid),
        ("GetWatcherEvents", {"watcherId": "x"}, "not_found"),
        ("RemoveWatcher", {}, invalid),
        ("Nothing", {}, "unimplemented"),
    ]:
        answer = unary(f"filesystem.Filesystem/{method}", message)
        assert answer.json()["code"] == code, (method, answer.text)
        assert answer.status_code >= 400
    for time_limit in ("-1", "x", "99999999999", "1.5"):
        refused(stream(start, envelope(START), **{"Connect-Timeout-Ms": time_limit}), invalid, "connect-timeout-ms")
    nothing_ran()


def envelopes():
    """Bodies that are no messages, or not all of one."""
    start, whole = "process.Process/Start", envelope(START)
    for body, code, word in [
        (b"", "invalid_argument", "no message"),
        (whole[:3], "invalid_argument", "middle"),
        (whole[:-1], "invalid_argument", "middle"),
        (whole + whole[:2], "invalid_argument", "middle"),
        (whole + whole, "invalid_argument", "more than one"),
        (envelope(START, flags=1), "unimplemented", "compressed"),
        (envelope(START, flags=2), "invalid_argument", "flags 2"),
        (envelope(START, flags=255), "invalid_argument", "flags 255"),
        (envelope(b"", length=2**32 - 1), "resource_exhausted", "longer than"),
        (json.dumps(START).encode(), "invalid_argument", "flags"),
    ]:
        refused(stream(start, body), code, word)
    refused(stream(start, whole, **{"Content-Type": "application/connect+proto"}), "invalid_argument", "content type")
    refused(unary("process.Process/List", b"{}", **{"Content-Type": "application/proto"}), "invalid_argument", "content type")
    refused(unary("process.Process/SendInput", b" " * 17 * 1024 * 1024), "resource_exhausted", "longer than")
    data = lambda text: envelope({"data": {"input": {"stdin": base64.b64encode(text).decode()}}})
    refused(stream("process.Process/StreamInput", data(b"x")), "invalid_argument", "before start")
    refused(stream("process.Process/StreamInput", b""), "invalid_argument", "start")
    # a chunk, and then the connection ends
    kind = {"Content-Type": "application/connect+json"}
    for body in (whole, whole[:-1]):
        raw(head(f"/{start}", **kind, **{"Transfer-Encoding": "chunked"}) + f"{len(body):x}\r\n".encode() + body + b"\r\n")
        raw(head(f"/{start}", **kind, **{"Content-Length": len(whole) + 1}) + body)
    nothing_ran()


def streams():
    """Input that was cut off has arrived as far as it was whole."""
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    first = envelope({"start": {"process": {"pid": handle.pid}}})
    data = envelope({"data": {"input": {"stdin": base64.b64encode(b"one\n").decode()}}})
    refused(stream("process.Process/StreamInput", first + data + data[:-1]), "invalid_argument", "middle")
    wrong = envelope({"data": {"input": {"pty": "AAAA"}}})
    refused(stream("process.Process/StreamInput", first + wrong), "invalid_argument", "stdin")
    handle.close_stdin()
    assert handle.wait().stdout == "one\n"


def callers():
    """Tokens, users and sandboxes that are not theirs."""
    body = json.dumps({"path": "."}).encode()
    at = f"{site.url}/filesystem.Filesystem/Stat"
    kind = {"Content-Type": "application/json"}
    post = lambda given: httpx.post(at, content=body, headers={**kind, **given})
    token = {"X-Access-Token": sandbox._envd_access_token}
    refused(post({"E2b-Sandbox-Id": sandbox.sandbox_id}), "unauthenticated", "X-Access-Token")
    refused(post({"E2b-Sandbox-Id": sandbox.sandbox_id, "X-Access-Token": "x"}), "unauthenticated")
    refused(post(token), "invalid_argument", "E2b-Sandbox-Id")
    gone = post({**token, "E2b-Sandbox-Id": "other"})
    assert gone.status_code == 502 and "was not found" in gone.json()["message"]
    port = post({**headers(), "E2b-Sandbox-Port": "8080"})
    assert port.status_code == 502 and "port is not open" in port.json()["message"]
    assert post({**token, "Host": f"49983-{sandbox.sandbox_id}.example.org"}).status_code == 200
    for user in ("Bearer x", "Basic %", "Basic " + base64.b64encode(b"x" * 300 + b":").decode()):
        assert post({**headers(), "Authorization": user}).status_code in (400, 401), user
    for key in ({}, {"X-API-KEY": ""}, {"X-API-KEY": KEY + "x"}):
        for method, path in [("GET", "/v2/sandboxes"), ("POST", "/v2/sandboxes"), ("DELETE", f"/sandboxes/{sandbox.sandbox_id}")]:
            answer = httpx.request(method, site.url + path, headers=key, content=b"{}" if method == "POST" else None)
            assert answer.status_code == 401, answer
    assert httpx.get(f"{site.url}/secrets").status_code == 501 and httpx.get(at, headers=headers()).status_code == 405
    assert httpx.get(f"{site.url}/health").status_code == 204
    assert sandbox.is_running()


def creations():
    key = {"X-API-KEY": KEY}
    for body, word in [
        (b"{", "JSON"),
        (b"{}", "templateID"),
        (b'{"templateID": 5}', "templateID"),
        (b'{"templateID": "base", "timeout": -1}', "timeout"),
        (b'{"templateID": "base", "timeout": 999999999}', "timeout"),
        (b'{"templateID": "base", "envVars": {"A": 5}}', "envVars.A"),
        (b'{"templateID": "base", "envVars": {"A=": "b"}}', "envVars"),
        (b'{"templateID": "base", "volumeMounts": [{"name": "x"}]}', "volumeMounts"),
        (b'{"templateID": "base", "autoPause": true}', "autoPause"),
    ]:
        answer = httpx.post(f"{site.url}/v2/sandboxes", content=body, headers=key)
        assert answer.status_code == 400 and word in answer.json()["message"], answer.text
    answer = httpx.post(f"{site.url}/v2/sandboxes", content=b" " * 2 * 1024 * 1024, headers=key)
    assert answer.status_code == 413, answer
    for path in ("/sandboxes/..%2F..", "/sandboxes/%00", "/sandboxes/" + "x" * 10_000, "/v2/sandboxes?limit=x"):
        assert httpx.get(site.url + path, headers=key).status_code in (400, 404), path


def uploads():
    """Bombs, cut bodies and forms: the file is as it was."""
    url, octets = f"{site.url}/files", {"Content-Type": "application/octet-stream"}
    sandbox.files.write("kept", "before")
    post = lambda content, **more: httpx.post(url, params={"path": "kept"}, content=content, headers=headers(**{**octets, **more}))
    packed = {"Content-Encoding": "gzip"}
    answer = post(bytes(LIMIT_BYTES + 1))
    assert answer.status_code == 413 and "more than" in answer.json()["message"], answer.text
    bomb = gzip.compress(gzip.compress(bytes(1))) and zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(bomb.compress(bytes(1 << 20)) for _ in range(512)) + bomb.flush()
    began = time.monotonic()
    answer = post(bomb, **packed)
    assert answer.status_code == 413 and time.monotonic() - began < 20, answer
    good = gzip.compress(os.urandom(10_000))
    for body in (good[:-1], good[:100], b"", good[:-8] + bytes(8), b"plain", good + b"rest"):
        answer = post(body, **packed)
        assert answer.status_code == 400 and "gzip" in answer.json()["message"], (body[:20], answer.text)
    assert post(b"x", **{"Content-Encoding": "br"}).status_code == 400
    assert post(b"x", **{"Content-Type": "text/plain"}).status_code == 400
    path = "/files?path=kept"
    raw(head(path, **octets, **{"Content-Length": 100}) + b"cut")
    raw(head(path, **octets, **{"Transfer-Encoding": "chunked"}) + b"3\r\ncut\r\n")
    raw(head(path, **octets, **{"Transfer-Encoding": "chunked"}) + b"zz\r\ncut\r\n")
    kept = sandbox.files.read("kept")
    assert kept == "before", kept

    form = lambda body, query="": httpx.post(url + query, content=body, headers=headers(**{"Content-Type": "multipart/form-data; boundary=B"}))
    part = lambda name, content: f'--B\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n{content}'.encode()
    for body in (b"", b"--B--\r\n", part("kept", "cut"), part("kept", "cut\r\n--"), b"x" * 1000):
        answer = form(body)
        assert answer.status_code == 400 and "form" in answer.json()["message"], (body[:50], answer.text)
    # the part was whole, and the form was not
    assert form(part("other part", "whole\r\n--B")).status_code == 400
    assert form(b'--B\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n--B--\r\n').status_code == 400
    two = part("kept", "first\r\n") + part("other", "second\r\n--B--\r\n")
    assert form(two, "?path=new").status_code == 400 and not sandbox.files.exists("other")
    endless = b"--B\r\nContent-Disposition: " + b"x" * (8 << 20)
    assert form(endless).status_code == 413
    assert form(b"x" * (8 << 20)).status_code in (400, 413)
    assert form(part("kept", "x" * (LIMIT_BYTES + 1) + "\r\n--B--\r\n")).status_code == 413
    kept = sandbox.files.read("kept")
    assert kept == "before", kept[:100]
    # a big one takes no more memory than a small one
    memory = lambda: int(next(line for line in open(f"/proc/{site.processes['gateway'].pid}/status") if "VmHWM" in line).split()[1])
    assert memory() < 400_000, memory()


def connections():
    """Bytes that are no requests."""
    for text in (b"\0" * 1000, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000 + b"\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET"):
        try:
            raw(text)
        except OSError:
            pass
    assert sandbox.commands.run("echo still").stdout == "still\n"


def holding(path, kind, begun=b"", **more):
    """A call whose body is not over yet."""
    connection = socket.create_connection(("127.0.0.1", site.port), LIMIT)
    chunk = b"%x\r\n%s\r\n" % (len(begun), begun) if begun else b""
    connection.sendall(head(f"/{path}", **{"Content-Type": kind, "Transfer-Encoding": "chunked", **more}) + chunk)
    return connection


def latecomers():
    """Calls that hold their bodies back until the sandbox has ended."""
    global sandbox
    form = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\na\r\n--x\r\n'
    calls = [
        ("process.Process/Start", "application/connect+json", b""),
        ("filesystem.Filesystem/MakeDir", "application/json", b'{"path":'),
        ("files", "multipart/form-data; boundary=x", form),
    ]
    held = [holding(*call) for call in calls]
    # the first file of the form is written before its second one comes
    site.until("the calls have begun", lambda: sandbox.files.exists("a"))
    assert sandbox.kill()
    for connection in held:
        with connection:
            assert b"The sandbox was not found" in connection.recv(65536)
    sandbox = Sandbox.create(timeout=300)


def starters():
    """Commands that are being started when their sandbox ends: none outlives it."""
    mark = "9876.54321"

    def start(one):
        message = {"process": {"cmd": "sleep", "args": [mark]}, "stdin": False}
        sent = {**headers(**{"Content-Type": "application/connect+json"}), "E2b-Sandbox-Id": one.sandbox_id}
        sent["X-Access-Token"] = one._envd_access_token
        for _ in range(100):
            try:
                with httpx.stream("POST", f"{site.url}/process.Process/Start", content=envelope(message), headers=sent) as answer:
                    if answer.status_code != 200:
                        return
                    next(answer.iter_raw(), None)
            except httpx.HTTPError:
                return

    global sandbox
    sandbox.kill()
    for round in range(5):
        one = Sandbox.create(timeout=300)
        starting = [threading.Thread(target=start, args=[one]) for _ in range(8)]
        for thread in starting:
            thread.start()
        site.until("commands run", lambda: subprocess.run(["pgrep", "-f", mark], capture_output=True).returncode == 0)
        assert one.kill()
        alive = subprocess.run(["pgrep", "-af", mark], capture_output=True, text=True)
        assert alive.returncode == 1, alive.stdout
        for thread in starting:
            thread.join(LIMIT)
    sandbox = Sandbox.create(timeout=300)


def pauses():
    """Calls that begin before a pause, and would reach the target after it."""
    nap = "sleep 9876.54322"
    start = {"process": {"cmd": "sleep", "args": [nap.split()[1]]}, "stdin": False}
    whole = envelope(start)
    starting = holding("process.Process/Start", "application/connect+json", whole[:10])
    writing = holding("files?path=late", "application/octet-stream", b"late")
    time.sleep(0.5)
    assert sandbox.pause()
    for connection, rest in ((starting, whole[10:]), (writing, b"r")):
        with connection:
            try:
                connection.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(rest), rest))
            except OSError:
                pass
            assert b"The sandbox was not found" in connection.recv(65536)
    assert states(nap) == set()
    sandbox.connect(timeout=300)
    assert not sandbox.files.exists("late") and sandbox.commands.run("echo on").stdout == "on\n"
    # what is being started is stopped too
    for _ in range(3):
        start_all = [threading.Thread(target=lambda: stream_begin("process.Process/Start", whole)) for _ in range(8)]
        for one in start_all:
            one.start()
        site.until("commands run", lambda: states(nap))
        assert sandbox.pause()
        for one in start_all:
            one.join(LIMIT)
        assert states(nap) == {"T"}, states(nap)
        sandbox.connect(timeout=300)
        for process in sandbox.commands.list():
            sandbox.commands.kill(process.pid)
        site.until("their end", lambda: not states(nap))


def stream_begin(method, body):
    """Begins a stream, over and over, until it is refused."""
    sent = headers(**{"Content-Type": "application/connect+json"})
    for _ in range(100):
        with httpx.stream("POST", f"{site.url}/{method}", content=body, headers=sent) as answer:
            if answer.status_code != 200 or b"not found" in next(answer.iter_raw(), b""):
                return


def closed():
    """Directories that nobody may change or enter: they go with the sandbox, and its target is free."""
    global sandbox
    for harm in (
        "mkdir -p go/pkg/mod/x; touch go/pkg/mod/x/f; chmod -R a-w go",
        "mkdir -p a/b/c; touch a/b/c/d; chmod 000 a/b/c a/b a",
        "mkdir a; chmod 000 a .. .",
    ):
        home = site.home("one") / "telexec-e2b" / sandbox.sandbox_id
        sandbox.commands.run(harm)
        assert sandbox.kill() and not home.exists(), harm
        sandbox = Sandbox.create(timeout=300, retries=0)


def memory():
    """Of the gateway, in KiB."""
    return int(next(line for line in open(f"/proc/{site.processes['gateway'].pid}/status") if "VmRSS" in line).split()[1])


def hoards():
    """Messages that are not over take a limited part of memory, whoever sends them, and of time."""
    before = memory()
    begun = struct.pack(">BI", 0, 16 * LIMIT_BYTES) + bytes(15 * LIMIT_BYTES)
    held, full = [], 0
    for _ in range(30):
        connection = holding("process.Process/StreamInput", "application/connect+json")
        held.append(connection)
        try:
            connection.sendall(b"%x\r\n%s\r\n" % (len(begun), begun))
        except OSError:
            full += 1
    time.sleep(1)
    grown = memory() - before
    assert grown < 200_000, grown
    assert sandbox.commands.run("echo still").stdout == "still\n"
    for connection in held[5:]:
        connection.settimeout(LIMIT)
        try:
            assert b"resource_exhausted" in connection.recv(65536)
        except ConnectionResetError:
            pass
        connection.close()
    began = time.monotonic()
    with held[0] as connection:
        connection.settimeout(90)
        assert b"deadline_exceeded" in connection.recv(65536)
    assert time.monotonic() - began < 75
    for connection in held[1:5]:
        connection.close()
    # names and paths as long as they can be
    sandbox.commands.run(
        "d=$(printf 'd%.0s' $(seq 250)); for n in $(seq 14); do mkdir $d; cd $d; done;"
        "f=$(printf 'f%.0s' $(seq 240)); seq -f $f%.0f 8000 | xargs touch",
        timeout=120,
    )
    path = "/".join(["d" * 250] * 14)
    refused(unary("filesystem.Filesystem/ListDir", {"path": path}), "resource_exhausted", "smaller depth")
    sandbox.commands.run("rm -r d*", timeout=120)


def crowds():
    """Connections that say nothing: those of one peer are few, end soon, and hold up nobody else."""
    known = httpx.Client(headers={"X-API-KEY": KEY})
    assert known.get(f"{site.url}/v2/sandboxes").status_code == 200
    silent = []
    for _ in range(300):
        connection = socket.create_connection(("127.0.0.1", site.port), LIMIT)
        connection.send(b"G")
        silent.append(connection)
    began = time.monotonic()
    other = httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.2"), headers={"X-API-KEY": KEY})
    assert other.get(f"{site.url}/v2/sandboxes").status_code == 200
    assert known.get(f"{site.url}/v2/sandboxes").status_code == 200
    time.sleep(1)
    open_still = []
    for connection in silent:
        connection.setblocking(False)
        try:
            connection.recv(1)
        except BlockingIOError:
            open_still.append(connection)
        except OSError:
            pass
    assert 200 < len(open_still) <= 256, len(open_still)
    for connection in open_still:
        connection.settimeout(LIMIT)
        assert connection.recv(1) == b""
    assert time.monotonic() - began < 30
    for connection in silent:
        connection.close()
    # nor are those that ask without a key known
    asked = []
    for _ in range(300):
        connection = socket.create_connection(("127.0.0.1", site.port), LIMIT)
        asked.append(connection)
        try:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        except OSError:
            pass
    assert other.get(f"{site.url}/v2/sandboxes").status_code == 200
    site.until("a place", lambda: refuses(asked) >= 44)
    for connection in asked:
        connection.close()
    site.until("places", lambda: answers(f"{site.url}/health"))


def refuses(connections):
    """How many of them were closed without an answer."""
    count = 0
    for connection in connections:
        connection.setblocking(False)
        try:
            count += connection.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            pass
        except OSError:
            count += 1
    return count


def answers(url):
    try:
        return httpx.get(url).status_code == 204
    except httpx.HTTPError:
        return False


def unread():
    """A short body is read, even if nobody asks for it; a long one ends the connection, and its answer says so."""
    wrong = head("/files?path=kept", **{"X-Access-Token": "wrong", "Content-Length": 4})
    with socket.create_connection(("127.0.0.1", site.port), LIMIT) as connection:
        for part in (wrong, b"late", wrong + b"soon"):
            connection.sendall(part)
            time.sleep(0.1)
        answers = b""
        while answers.count(b"HTTP/1.1 401") < 2:
            part = connection.recv(65536)
            assert part, answers
            answers += part
        assert b"connection: close" not in answers, answers
    for rest in ({"Content-Length": 4}, {"Content-Length": 4, "Expect": "100-continue"}, {"Transfer-Encoding": "chunked"}):
        answer = raw(head("/files?path=kept", **{"X-Access-Token": "wrong"}, **rest))
        assert answer.startswith(b"HTTP/1.1 401") and b"connection: close" in answer, answer
    for wrong in ({"X-Access-Token": "wrong"}, {"E2b-Sandbox-Id": "other"}):
        answer = unary("filesystem.Filesystem/Stat", b" " * LIMIT_BYTES, **wrong)
        assert answer.status_code in (401, 502) and answer.headers["connection"] == "close", answer.headers
    answer = unary("filesystem.Filesystem/Stat", {"path": "."})
    assert answer.status_code == 200 and "connection" not in answer.headers, answer.headers


def listening():
    """Not for everyone without keys; and with TLS."""
    gateway = [site.bin / "telexec-e2b", "--target", f"unix://{site.socket('one')}"]
    port = free_port()
    refused = subprocess.run([*gateway, "--listen", f"tcp://0.0.0.0:{port}"], capture_output=True, text=True, timeout=30)
    assert refused.returncode != 0 and "--token-file" in refused.stderr, refused
    empty = site.directory / "empty"
    empty.write_text("# nothing\n")
    refused = subprocess.run([*gateway, "--token-file", empty], capture_output=True, text=True, timeout=30)
    assert refused.returncode != 0 and "has no key" in refused.stderr, refused
    assert shutil.which("openssl"), "openssl is missing"
    cert, key = site.directory / "web.pem", site.directory / "web.key"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "1"]
    subprocess.run([*make, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    options = ["--tls-cert", cert, "--tls-key", key, "--name", "tls"]
    site.start_gateway(*options, key="tls", port=port)
    trusted = ssl.create_default_context(cafile=str(cert))
    url = f"https://127.0.0.1:{port}/v2/sandboxes"
    assert httpx.get(url, headers={"X-API-KEY": KEY}, verify=trusted).json() == []
    assert httpx.get(url, verify=trusted).status_code == 401
    site.kill("tls", signal.SIGTERM)


def pages():
    """Without keys programs of this machine may ask, but no web page that is shown on it."""
    port = free_port()
    gateway = [site.bin / "telexec-e2b", "--target", f"unix://{site.socket('one')}", "--listen", f"tcp://127.0.0.1:{port}"]
    site.start("keyless", *gateway, "--name", "keyless")
    site.until("the gateway", lambda: ": ready" in site.log("keyless"))
    for url in ("http://127.0.0.1", "http://localhost"):
        assert httpx.get(f"{url}:{port}/v2/sandboxes").json() == []
    assert httpx.get(f"http://127.0.0.1:{port}/v2/sandboxes", headers={"Origin": "http://localhost:8080"}).status_code == 200
    create = json.dumps({"templateID": "base"})
    for sent in ({"Host": "example.org"}, {"Origin": "https://example.org"}, {"Origin": "null", "Content-Type": "text/plain"}):
        answer = httpx.post(f"http://127.0.0.1:{port}/sandboxes", content=create, headers=sent)
        assert answer.status_code == 403 and "--token-file" in answer.json()["message"], answer.text
    site.kill("keyless", signal.SIGTERM)


def floods():
    """Changes that nobody asks for: what is kept of them is limited in bytes, and what is not is said to be lost."""
    sandbox.files.make_dir("flood")
    watcher = unary("filesystem.Filesystem/CreateWatcher", {"path": "flood"}).json()
    name = "x" * 200
    sandbox.commands.run(f"cd flood; for i in $(seq 4000); do : > {name}$i; done")
    seen, lost = 0, None
    while lost is None:
        answer = unary("filesystem.Filesystem/GetWatcherEvents", watcher)
        if answer.status_code == 200:
            assert len(answer.content) < 2 * LIMIT_BYTES
            seen += len(answer.json()["events"])
        else:
            lost = answer
    refused(lost, "data_loss", "list the directory again")
    assert 0 < seen < 8000, seen
    sandbox.files.remove("flood")


if __name__ == "__main__":
    with Site(sys.argv[1]) as site:
        site.kill("gateway", signal.SIGTERM)
        site.start_gateway("--max-file-size", "1MiB")
        sandbox = Sandbox.create(timeout=300)
        run([messages, envelopes, streams, callers, creations, uploads, connections, latecomers, starters, pauses, closed, hoards, crowds, unread, listening, pages, floods])
