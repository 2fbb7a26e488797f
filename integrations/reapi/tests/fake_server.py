"""The Bots service and a CAS in memory, which lease what they are told to, and can be told to fail."""

import concurrent.futures
import hashlib
import queue
import threading
import time

import grpc
from buildgrid._protos.build.bazel.remote.execution.v2 import remote_execution_pb2 as pb
from buildgrid._protos.build.bazel.remote.execution.v2 import remote_execution_pb2_grpc as services
from buildgrid._protos.google.bytestream import bytestream_pb2, bytestream_pb2_grpc
from buildgrid._protos.google.devtools.remoteworkers.v1test2 import bots_pb2, bots_pb2_grpc
from buildgrid._protos.google.rpc import code_pb2 as code

LIMIT = 30


class Server(
    bots_pb2_grpc.BotsServicer, services.ContentAddressableStorageServicer, bytestream_pb2_grpc.ByteStreamServicer
):
    def __init__(self, port, function=hashlib.sha256, name="sha256", credentials=None):
        self.port, self.function, self.name, self.blobs = port, function, name, {}
        self.new, self.ended, self.sessions = {}, queue.Queue(), 0
        self.statuses, self.properties, self.begun = [], [], {}
        self.changed, self.corrupt, self.lost = threading.Condition(), False, False
        # of an update; and pieces after which a stream breaks, once
        self.limit, self.breaks = 4_000_000, []
        # how often an update is refused that has a result; and leases that are handed out whatever the capacity is
        self.busy, self.is_busy, self.crowd = 0, False, []
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
        bots_pb2_grpc.add_BotsServicer_to_server(self, self.server)
        services.add_ContentAddressableStorageServicer_to_server(self, self.server)
        bytestream_pb2_grpc.add_ByteStreamServicer_to_server(self, self.server)
        address = f"127.0.0.1:{port}"
        if credentials:
            assert self.server.add_secure_port(address, credentials)
        else:
            assert self.server.add_insecure_port(address)
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
        session = request.bot_session
        with self.changed:
            if self.lost or not session.name.endswith(f"-{self.sessions}"):
                self.lost = False
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such session")
            if request.ByteSize() > self.limit:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too large")
            ended = any(lease.state == bots_pb2.COMPLETED for lease in session.leases)
            if self.busy and (ended or self.is_busy):
                self.busy, self.is_busy = self.busy - 1, True
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
            self.is_busy = False
            self.statuses.append(session.status)
            for lease in session.leases:
                if lease.state == bots_pb2.COMPLETED:
                    self.begun.pop(lease.id, None)
                    self.ended.put(lease)
            # those too of which an answer was lost
            leases = list(self.begun.values())
            if not session.leases and not self.new:
                self.changed.wait_for(lambda: self.new, timeout=2)
            (capacity,) = (int(config.value) for config in session.worker.configs if config.key == "capacity")
            while self.crowd:
                id, action = self.crowd.pop()
                lease = bots_pb2.Lease(id=id, state=bots_pb2.PENDING)
                lease.payload.Pack(action)
                self.begun[id] = lease
                leases.append(lease)
            while self.new and len(leases) < capacity:
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
        for at in range(request.read_offset, len(blob), 1_000_000):
            if "read" in self.breaks and at > 2_000_000:
                self.breaks.remove("read")
                # as of a connection that is lost
                context.abort(grpc.StatusCode.UNKNOWN, "broken")
            yield bytestream_pb2.ReadResponse(data=blob[at : at + 1_000_000])

    def Write(self, requests, context):
        content, name = b"", None
        for request in requests:
            name = name or request.resource_name
            assert request.write_offset == len(content)
            content += request.data
            if "write" in self.breaks and len(content) > 2_000_000:
                self.breaks.remove("write")
                context.abort(grpc.StatusCode.UNAVAILABLE, "broken")
        assert self.put(content).hash == self.parts(name)
        return bytestream_pb2.WriteResponse(committed_size=len(content))
