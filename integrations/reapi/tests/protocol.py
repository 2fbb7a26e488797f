"""A server that leases what no honest one does, and says how it was answered: protocol.py BIN_DIRECTORY"""

import concurrent.futures
import hashlib
import queue
import sys
import threading
import time

import blake3
import grpc
from buildgrid._protos.build.bazel.remote.execution.v2 import remote_execution_pb2 as pb
from buildgrid._protos.build.bazel.remote.execution.v2 import remote_execution_pb2_grpc as services
from buildgrid._protos.google.bytestream import bytestream_pb2, bytestream_pb2_grpc
from buildgrid._protos.google.devtools.remoteworkers.v1test2 import bots_pb2, bots_pb2_grpc
from buildgrid._protos.google.rpc import code_pb2 as code

import reapi_client
import reapi_site

BIN = sys.argv[1]
LIMIT = 30


class Server(
    bots_pb2_grpc.BotsServicer, services.ContentAddressableStorageServicer, bytestream_pb2_grpc.ByteStreamServicer
):
    """The Bots service and a CAS in memory, which can be told to fail."""

    def __init__(self, port, function=hashlib.sha256, name="sha256"):
        self.function, self.name, self.blobs = function, name, {}
        self.new, self.ended, self.sessions = {}, queue.Queue(), 0
        self.statuses, self.properties, self.begun = [], [], {}
        self.changed, self.corrupt, self.lost = threading.Condition(), False, False
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
        bots_pb2_grpc.add_BotsServicer_to_server(self, self.server)
        services.add_ContentAddressableStorageServicer_to_server(self, self.server)
        bytestream_pb2_grpc.add_ByteStreamServicer_to_server(self, self.server)
        assert self.server.add_insecure_port(f"127.0.0.1:{port}")
        self.server.start()

    def digest(self, blob):
        return pb.Digest(hash=self.function(blob).hexdigest(), size_bytes=len(blob))

    def put(self, blob):
        blob = blob if isinstance(blob, bytes) else blob.SerializeToString()
        named = self.digest(blob)
        self.blobs[named.hash] = blob
        return named

    # bots

    def CreateBotSession(self, request, context):
        with self.changed:
            self.sessions += 1
            session = request.bot_session
            self.properties = [(pair.key, pair.value) for pair in session.worker.devices[0].properties]
            self.statuses.append(session.status)
            session.name = f"{request.parent}/session-{self.sessions}"
            return session

    def UpdateBotSession(self, request, context):
        session, leases = request.bot_session, []
        with self.changed:
            if self.lost or not session.name.endswith(f"-{self.sessions}"):
                self.lost = False
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such session")
            self.statuses.append(session.status)
            for lease in session.leases:
                if lease.state == bots_pb2.COMPLETED:
                    self.begun.pop(lease.id, None)
                    self.ended.put(lease)
                elif lease.id in self.begun:
                    leases.append(lease)
            if not session.leases and not self.new:
                self.changed.wait_for(lambda: self.new, timeout=2)
            while self.new:
                id, payload = self.new.popitem()
                lease = bots_pb2.Lease(id=id, state=bots_pb2.PENDING)
                if payload is not None:
                    lease.payload.CopyFrom(payload)
                self.begun[id] = lease
                leases.append(lease)
        del session.leases[:]
        session.leases.extend(leases)
        return session

    def lease(self, payload, id=None):
        """What comes of a lease: its status and its result."""
        self.begin(payload, id or f"lease-{time.monotonic_ns()}")
        return self.result()

    def begin(self, payload, id):
        if payload is not None and payload.DESCRIPTOR.full_name != "google.protobuf.Any":
            packed = bots_pb2.Lease()
            packed.payload.Pack(payload)
            payload = packed.payload
        with self.changed:
            self.new[id] = payload
            self.changed.notify_all()

    def result(self):
        lease = self.ended.get(timeout=LIMIT)
        result = pb.ActionResult()
        lease.result.Unpack(result)
        return lease.status, result

    def action(self, argv, **options):
        root = options.pop("root", None) or self.put(pb.Directory())
        command = self.put(pb.Command(arguments=argv, **options))
        return pb.Action(command_digest=command, input_root_digest=root)

    # the CAS

    def blob(self, hash):
        blob = self.blobs.get(hash)
        return blob + b"!" if blob and self.corrupt else blob

    def BatchReadBlobs(self, request, context):
        answer = pb.BatchReadBlobsResponse()
        assert pb.DigestFunction.Value.Name(request.digest_function).lower() == self.name
        for named in request.digests:
            blob = self.blob(named.hash)
            answer.responses.add(digest=named, data=blob or b"").status.code = code.OK if blob is not None else code.NOT_FOUND
        return answer

    def FindMissingBlobs(self, request, context):
        missing = [named for named in request.blob_digests if named.hash not in self.blobs]
        return pb.FindMissingBlobsResponse(missing_blob_digests=missing)

    def BatchUpdateBlobs(self, request, context):
        answer = pb.BatchUpdateBlobsResponse()
        for one in request.requests:
            assert self.put(one.data) == one.digest
            answer.responses.add(digest=one.digest)
        return answer

    def parts(self, name):
        function = [] if self.name == "sha256" else [self.name]
        parts = name.split("/")
        assert parts[:-2][-len(function) - 1 :] == ["blobs", *function], name
        return parts[-2]

    def Read(self, request, context):
        blob = self.blob(self.parts(request.resource_name))
        if blob is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such blob")
        for at in range(0, len(blob), 1_000_000):
            yield bytestream_pb2.ReadResponse(data=blob[at : at + 1_000_000])

    def Write(self, requests, context):
        content, name = b"", None
        for request in requests:
            name = name or request.resource_name
            assert request.write_offset == len(content)
            content += request.data
        assert self.put(content).hash == self.parts(name)
        return bytestream_pb2.WriteResponse(committed_size=len(content))


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
    huge = pb.Digest(hash="a" * 64, size_bytes=1 << 60)
    status, _ = server.lease(huge)
    assert status.code == code.RESOURCE_EXHAUSTED, status
    for payload in [ok, server.put(ok)]:
        status, result = server.lease(payload)
        assert status.code == 0 and result.stdout_raw == b"hello\n", (status, result)


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


def main():
    reapi_site.watchdog(120)
    with reapi_site.Site(BIN) as site:
        site.start_agent("a1")
        server = Server(site.port)
        site.start_worker("w", ["a1"], "--property", "pool=x", "--instance", "some/where")
        for part, words in [(payloads, ()), (storages, ()), (sessions, (site,))]:
            part(server, *words)
            print(f"{part.__name__} holds", flush=True)
        assert {("OSFamily", "linux"), ("pool", "x")} < set(server.properties), server.properties
        assert server.statuses[0] == bots_pb2.UNHEALTHY and bots_pb2.OK in server.statuses
        assert site.kill("worker-w", reapi_site.signal.SIGTERM) == 0
        assert server.statuses[-1] == bots_pb2.BOT_TERMINATING, server.statuses
        server.server.stop(0)

        port = reapi_site.free_port()
        server = Server(port, blake3.blake3, "blake3")
        site.start_worker("b", ["a1"], "--digest-function", "blake3", server=f"127.0.0.1:{port}")
        functions(server)
        print("functions holds", flush=True)
        assert "panicked" not in site.logs()
        server.server.stop(0)


main()
