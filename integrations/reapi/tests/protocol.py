"""A server that leases what no honest one does, and says how it was answered: protocol.py BIN_DIRECTORY"""

import os
import shutil
import subprocess
import sys

import blake3
import grpc
from buildgrid._protos.build.bazel.remote.execution.v2 import remote_execution_pb2 as pb
from buildgrid._protos.google.devtools.remoteworkers.v1test2 import bots_pb2
from buildgrid._protos.google.rpc import code_pb2 as code

import reapi_client
import reapi_site
from fake_server import Server

BIN = sys.argv[1]
CONCURRENCY, SURPLUS = 3, 4


def payloads(server):
    """A lease that is no action is refused, and what follows it is run."""
    ok = server.action(["/bin/echo", "hello"])
    any_of = lambda url, value: bots_pb2.Lease(payload={"type_url": url, "value": value}).payload
    for payload, words in [
        (None, "no payload"),
        (pb.Directory(), "expected an Action"),
        (any_of("", b""), "expected an Action"),
        (any_of("type.googleapis.com/build.bazel.remote.execution.v2.Action", b"\xff\xff"), "none"),
        (pb.Action(), "digest is missing"),
        (pb.Digest(hash="abc", size_bytes=3), "no digest"),
        (pb.Digest(hash="a" * 64, size_bytes=-1), "no digest"),
        (server.put(b"\xff\xff"), "none"),
        (pb.Action(command_digest=server.put(b"\xff"), input_root_digest=ok.input_root_digest), "none"),
    ]:
        status, _ = server.lease(payload)
        assert status.code == code.INVALID_ARGUMENT and words in status.message, status
    for options in [{"output_paths": ["x" * 3_000_000]}, {"output_paths": ["a", "b", "a"]}]:
        status, _ = server.lease(server.action(["/bin/true"], **options))
        assert status.code == code.INVALID_ARGUMENT and len(status.message) < 5_000, status
    lacking = reapi_client.directory({f"f{n}": server.digest(b"%d" % n) for n in range(8_000)})
    status, _ = server.lease(server.action(["/bin/true"], root=server.put(lacking)))
    assert status.code == code.FAILED_PRECONDITION and status.ByteSize() < 1_000_000, status
    # a result that the server does not take is told as a failure
    server.limit = 100_000
    status, _ = server.lease(server.action(["/bin/sh", "-c", "head -c 60000 /dev/zero | tee /dev/stderr"]))
    assert status.code == code.RESOURCE_EXHAUSTED and "does not take" in status.message, status
    server.limit = 4_000_000
    # of a server that is busy for longer nothing is lost
    server.busy = 7
    status, result = server.lease(server.action(["/bin/sh", "-c", "head -c 20000 /dev/zero"]))
    assert status.code == 0 and len(result.stdout_raw) == 20_000 and server.busy == 0, status
    # many small entries are not kept
    empty = server.put(b"\x0a\x00" * 1_900_000)
    status, _ = server.lease(server.action(["/bin/true"], root=server.put(reapi_client.directory({}, {"d": empty}))))
    assert status.code == code.INVALID_ARGUMENT, status
    huge = pb.Digest(hash="a" * 64, size_bytes=1 << 60)
    status, _ = server.lease(huge)
    assert status.code == code.RESOURCE_EXHAUSTED, status
    for payload in [ok, server.put(ok)]:
        status, result = server.lease(payload)
        assert status.code == 0 and result.stdout_raw == b"hello\n", (status, result)


def crowds(server, site):
    """A server that leases more than there is room for gets it back."""
    count, gate = site.directory / "crowd", site.directory / "crowd-gate"
    count.mkdir()
    action = server.action(["/bin/sh", "-c", f"touch {count}/$$; until [ -e {gate} ]; do sleep 0.05; done"])
    server.crowd = [(f"crowd-{number}", action) for number in range(60)]
    with server.changed:
        server.changed.notify_all()
    ended = [server.result()[0] for _ in range(60 - CONCURRENCY - SURPLUS)]
    assert all(status.code == code.UNAVAILABLE and "as many leases" in status.message for status in ended), ended
    gate.touch()
    assert all(server.result()[0].code == 0 for _ in range(CONCURRENCY + SURPLUS))
    assert len(list(count.iterdir())) == CONCURRENCY + SURPLUS


def storages(server):
    """A CAS that sends other blobs than it was asked for: nothing is run, and another bot may try."""
    action = server.action(["/bin/echo", "whole"])
    large = server.action(["/bin/cksum", "in"], root=server.put(reapi_client.directory({"in": server.put(b"x" * 6_000_000)})))
    server.corrupt = True
    for one in [action, large]:
        status, result = server.lease(one)
        assert status.code == code.UNAVAILABLE and "another blob" in status.message, status
    server.corrupt = False
    assert server.lease(action)[1].stdout_raw == b"whole\n"
    assert server.lease(large)[1].stdout_raw.endswith(b" 6000000 in\n")
    # streams that break go on
    server.breaks = ["read", "write"]
    again = server.put(b"z" * 6_000_000)
    root = server.put(reapi_client.directory({"in": again, "empty": server.digest(b"")}))
    copy = ["/bin/sh", "-c", "test -e empty -a ! -s empty && (cat in; echo) > out"]
    status, result = server.lease(server.action(copy, root=root, output_paths=["out"]))
    assert status.code == 0 and not server.breaks, (status, result)
    assert server.blobs[result.output_files[0].digest.hash] == b"z" * 6_000_000 + b"\n"
    # what cannot be laid out, and what is too large, is no fault of the target
    link = server.put(reapi_client.directory({}, {}, {"l": "x" * 5_000}))
    status, _ = server.lease(server.action(["/bin/true"], root=link))
    assert status.code == code.INVALID_ARGUMENT and "symlink" in status.message, status
    for text in ["truncate -s 200M out", "mkdir out; truncate -s 60M out/a out/b"]:
        status, _ = server.lease(server.action(["/bin/sh", "-c", text], output_paths=["out"]))
        assert status.code == code.RESOURCE_EXHAUSTED and "--max-output-size" in status.message, status
    # a bomb: each directory has the next one many times
    inner = server.put(pb.Directory())
    for _ in range(9):
        inner = server.put(reapi_client.directory({}, {f"d{n}": inner for n in range(10)}))
    status, _ = server.lease(server.action(["/bin/true"], root=inner))
    assert status.code == code.RESOURCE_EXHAUSTED, status
    inner = server.put(pb.Directory())
    for _ in range(200):
        inner = server.put(reapi_client.directory({}, {"d": inner}))
    status, _ = server.lease(server.action(["/bin/true"], root=inner))
    assert status.code == code.RESOURCE_EXHAUSTED, status


def directories(site):
    """A directory of somebody else's, or that others can write to, is not used, and nothing in it is removed."""
    victim = site.directory / "victim"
    victim.mkdir()
    (victim / "file").write_text("kept")
    cases = [("writable", lambda path: path.chmod(0o777), "written to by others")]
    cases.append(("linked", lambda path: (path.rmdir(), path.symlink_to(victim)), "not a directory"))
    if os.geteuid() == 0:
        cases.append(("planted", lambda path: shutil.chown(path, "nobody"), "another user"))
    for name, plant, words in cases:
        path = site.work(name)
        path.mkdir(exist_ok=True)
        plant(path)
        site.start_worker(name, ["a1"])
        site.until_logged(f"worker-{name}", words)
        assert "--work-dir" in site.log(f"worker-{name}")
        site.kill(f"worker-{name}", reapi_site.signal.SIGTERM)
    # the directory of actions, which is removed when a worker begins
    path = site.work("own")
    site.start_worker("own", ["a1"])
    site.until_ready("own")
    site.kill("worker-own", reapi_site.signal.SIGTERM)
    (actions,) = path.glob("*/actions")
    actions.rmdir()
    actions.symlink_to(victim)
    site.start_worker("own", ["a1"])
    site.until_logged("worker-own", "not a directory")
    actions.unlink()
    # what does not belong into the cache is removed
    (blobs,) = path.glob("*/cas.*/sha256")
    (blobs / "directory").mkdir()
    (blobs / "directory" / "file").touch()
    open(bytes(blobs) + b"/\xff", "w").close()
    site.until_ready("own", 2)
    assert not list(blobs.iterdir()) and (victim / "file").exists()
    site.kill("worker-own", reapi_site.signal.SIGTERM)


def flags(site):
    """What makes no sense is refused, and who is not there is waited for."""
    for name, more, code, words in [
        ("twice", ["--target", f"unix://{site.directory}/a1.sock"], 1, "twice"),
        ("plain", ["--tls-ca", "/dev/null"], 1, "grpcs"),
        ("own-property", ["--property", "user=root"], 2, "user is reserved"),
    ]:
        site.start_worker(name, ["a1"], *more)
        assert site.processes.pop(f"worker-{name}").wait(20) == code
        assert words in site.log(f"worker-{name}"), site.log(f"worker-{name}")
    # which may be made meanwhile
    site.start_worker("nobody", ["a1"], "--allow-user", "no-such-user")
    site.until_logged("worker-nobody", "not ready.*no-such-user")
    site.kill("worker-nobody", reapi_site.signal.SIGTERM)


def sessions(server, site):
    """A server that forgets the session gets another one, and no result of the old one."""
    before = server.sessions
    gate = site.directory / "gate"
    server.begin(server.action(["/bin/sh", "-c", f"touch {gate}; sleep 1000"]), "old")
    site.until("the action", gate.exists)
    with server.changed:
        server.begun.clear()
        server.lost = True
    site.until("another session", lambda: server.sessions > before)
    status, result = server.lease(server.action(["/bin/echo", "new"]))
    assert result.stdout_raw == b"new\n" and server.ended.empty()
    site.until("no process of the old one", lambda: not reapi_site.processes(f"touch {gate}"))


def functions(server):
    """BLAKE3: inputs, outputs and trees have its names."""
    large = b"y" * 5_000_000
    root = server.put(reapi_client.directory({"in": server.put(large)}))
    action = server.action(["/bin/cp", "-r", "in", "out"], root=root, output_paths=["out"])
    status, result = server.lease(action)
    assert status.code == 0 and result.output_files[0].digest == server.digest(large), (status, result)
    status, result = server.lease(server.action(["/bin/sh", "-c", "head -c 5000001 /dev/zero; mkdir d; echo 1 > d/f"], output_paths=["d"]))
    assert server.blobs[result.stdout_digest.hash] == b"\0" * 5_000_001, status
    tree = pb.Tree.FromString(server.blobs[result.output_directories[0].tree_digest.hash])
    assert server.blobs[tree.root.files[0].digest.hash] == b"1\n"


def secured(site):
    """TLS, with certificates on both sides."""
    key, cert = site.directory / "tls.key", site.directory / "tls.pem"
    request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=server"
    extensions = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run(["openssl", *request.split(), "-keyout", key, "-out", cert, *extensions], check=True, capture_output=True)
    pair, port = (key.read_bytes(), cert.read_bytes()), reapi_site.free_port()
    server = Server(port, credentials=grpc.ssl_server_credentials([pair], pair[1], require_client_auth=True))
    own = ["--tls-ca", cert, "--tls-cert", cert, "--tls-key", key]
    site.start_worker("secured", ["a1"], *own, server=f"127.0.0.1:{port}", scheme="grpcs")
    assert server.lease(server.action(["/bin/echo", "secured"]))[1].stdout_raw == b"secured\n"
    site.start_worker("unknown", ["a1"], "--tls-ca", cert, server=f"127.0.0.1:{port}", scheme="grpcs")
    site.until_logged("worker-unknown", "cannot begin a session")
    server.server.stop(0)


def main():
    reapi_site.watchdog(180)
    with reapi_site.Site(BIN) as site:
        site.start_agent("a1")
        server = Server(site.port)
        own = ["--property", "pool=x", "--max-output-size", "100MiB", "--concurrency", str(CONCURRENCY)]
        site.start_worker("w", ["a1"], *own, "--instance", "some/where")
        for part, words in [(payloads, ()), (crowds, (site,)), (storages, ()), (sessions, (site,))]:
            part(server, *words)
            print(f"{part.__name__} holds", flush=True)
        assert {("OSFamily", "linux"), ("pool", "x")} < set(server.properties), server.properties
        assert server.statuses[0] == bots_pb2.UNHEALTHY and bots_pb2.OK in server.statuses
        assert site.kill("worker-w", reapi_site.signal.SIGTERM) == 0
        assert server.statuses[-1] == bots_pb2.BOT_TERMINATING, server.statuses
        for part in [directories, flags]:
            part(site)
            print(f"{part.__name__} holds", flush=True)
        server.server.stop(0)

        port = reapi_site.free_port()
        server = Server(port, blake3.blake3, "blake3")
        site.start_worker("b", ["a1"], "--digest-function", "blake3", server=f"127.0.0.1:{port}")
        functions(server)
        print("functions holds", flush=True)
        secured(site)
        print("secured holds", flush=True)
        assert "panicked" not in site.logs()
        server.server.stop(0)


main()
