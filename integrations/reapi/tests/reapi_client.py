"""A client of the Remote Execution API, by the stubs that BuildGrid comes with."""

import concurrent.futures
import hashlib
import itertools

import grpc
from buildgrid._protos.build.bazel.remote.execution.v2 import remote_execution_pb2 as pb
from buildgrid._protos.build.bazel.remote.execution.v2 import remote_execution_pb2_grpc as services
from buildgrid._protos.google.bytestream import bytestream_pb2, bytestream_pb2_grpc
from buildgrid._protos.google.longrunning import operations_pb2, operations_pb2_grpc

LIMIT = 60


def digest(blob):
    return pb.Digest(hash=hashlib.sha256(blob).hexdigest(), size_bytes=len(blob))


def directory(files=None, directories=None, symlinks=None):
    """A Directory, of names and digests; a name with a star can be executed."""
    made = pb.Directory()
    for name, file in sorted((files or {}).items()):
        made.files.add(name=name.rstrip("*"), digest=file, is_executable=name.endswith("*"))
    for name, inner in sorted((directories or {}).items()):
        made.directories.add(name=name, digest=inner)
    for name, target in sorted((symlinks or {}).items()):
        made.symlinks.add(name=name, target=target)
    return made


class Client:
    def __init__(self, address, digest=digest):
        self.channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        self.cas = services.ContentAddressableStorageStub(self.channel)
        self.execution = services.ExecutionStub(self.channel)
        self.cache = services.ActionCacheStub(self.channel)
        self.operations = operations_pb2_grpc.OperationsStub(self.channel)
        self.streams = bytestream_pb2_grpc.ByteStreamStub(self.channel)
        self.digest, self.numbers = digest, itertools.count()

    def put(self, blob):
        """Stores a blob or a message, and returns its digest."""
        blob = blob if isinstance(blob, bytes) else blob.SerializeToString()
        named = self.digest(blob)
        if len(blob) < 4_000_000:
            request = pb.BatchUpdateBlobsRequest()
            request.requests.add(digest=named, data=blob)
            (answer,) = self.cas.BatchUpdateBlobs(request, timeout=LIMIT).responses
            assert answer.status.code == 0, answer
        else:
            name = f"uploads/1/blobs/{named.hash}/{named.size_bytes}"
            pieces = range(0, len(blob), 1_000_000)
            requests = (
                bytestream_pb2.WriteRequest(
                    resource_name=name, write_offset=at, data=blob[at : at + 1_000_000], finish_write=at == pieces[-1]
                )
                for at in pieces
            )
            assert self.streams.Write(requests, timeout=LIMIT).committed_size == len(blob)
        return named

    def get(self, named):
        name = f"blobs/{named.hash}/{named.size_bytes}"
        request = bytestream_pb2.ReadRequest(resource_name=name)
        return b"".join(piece.data for piece in self.streams.Read(request, timeout=LIMIT))

    def action(self, argv, *, root=None, outputs=(), timeout=None, environment=None, platform=None, **command):
        """The digest of an action, stored with all that belongs to it."""
        command = pb.Command(arguments=argv, output_paths=list(outputs), **command)
        for name, value in sorted((environment or {"PATH": "/usr/bin:/bin"}).items()):
            command.environment_variables.add(name=name, value=value)
        action = pb.Action(command_digest=self.put(command), input_root_digest=root or self.put(pb.Directory()))
        # two that are the same would be one
        action.salt = str(next(self.numbers)).encode()
        for name, value in (platform or {}).items():
            action.platform.properties.add(name=name, value=value)
        if timeout is not None:
            action.timeout.FromMilliseconds(int(timeout * 1000))
        return self.put(action)

    def begin(self, action):
        """A call, which ends with the action, and the name of its operation."""
        request = pb.ExecuteRequest(action_digest=action, skip_cache_lookup=True)
        call = self.execution.Execute(request, timeout=LIMIT)
        # it may have ended already
        first = next(call)
        return itertools.chain([first], call), first.name

    def finish(self, call):
        for operation in call:
            if operation.done:
                response = pb.ExecuteResponse()
                assert operation.response.Unpack(response) or operation.HasField("error"), operation
                return response
        raise SystemExit("the operation has no end")

    def run(self, argv, **options):
        call, _ = self.begin(self.action(argv, **options))
        return self.finish(call)

    def running(self):
        """The names of operations that have no end yet."""
        listed = self.operations.ListOperations(operations_pb2.ListOperationsRequest(), timeout=LIMIT)
        return [operation.name for operation in listed.operations if not operation.done]

    def run_all(self, actions, at_once=32):
        """The responses of many, of which the server holds so many calls at once."""
        with concurrent.futures.ThreadPoolExecutor(at_once) as threads:
            return list(threads.map(lambda action: self.finish(self.begin(action)[0]), actions))
