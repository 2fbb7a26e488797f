#!/usr/bin/env python3
"""Runs a command on an agent as if it ran here: execute.py TARGET TEXT [SECONDS]

TARGET is unix:///PATH, or HOST:PORT with the files in TELEXEC_CERT, TELEXEC_KEY and TELEXEC_CA. Ctrl-C, or SECONDS later,
ends the command and all that it started. README.md beside this folder says how to make the two modules of telexec.v1.
"""

import os
import sys

import grpc
from telexec.v1 import execution_pb2 as pb
from telexec.v1 import execution_pb2_grpc as rpc


def connect(target):
    if target.startswith("unix:"):
        # the agent asks the kernel who we are; a path, which would be the default, is not a valid :authority
        return grpc.insecure_channel(target, [("grpc.default_authority", "localhost")])
    read = lambda name: open(os.environ[name], "rb").read()
    tls = grpc.ssl_channel_credentials(read("TELEXEC_CA"), read("TELEXEC_KEY"), read("TELEXEC_CERT"))
    name = os.environ.get("TELEXEC_SERVER_NAME")
    return grpc.secure_channel(target, tls, [("grpc.ssl_target_name_override", name)] if name else [])


def follow(events):
    """Writes the output where it belongs, and gives the exit code."""
    for event in events:
        match event.WhichOneof("event"):
            case "stdout":
                sys.stdout.buffer.write(event.stdout)
                sys.stdout.buffer.flush()
            case "stderr":
                sys.stderr.buffer.write(event.stderr)
                sys.stderr.buffer.flush()
            case "exited":
                return exit_code(event.exited)
    return 255


def exit_code(exited):
    """As shells have it, and timeout(1)."""
    match exited.cause:
        case pb.EXIT_CAUSE_EXITED:
            return exited.exit_code
        case pb.EXIT_CAUSE_TIMED_OUT | pb.EXIT_CAUSE_DEADLINE_EXCEEDED:
            return 124
        case pb.EXIT_CAUSE_SIGNALED | pb.EXIT_CAUSE_OUT_OF_MEMORY if exited.signal:
            return 128 + exited.signal
        case _:
            return 255


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: execute.py TARGET TEXT [SECONDS]")
    target, text, *seconds = sys.argv[1:]
    with connect(target) as channel:
        # the agent keeps the deadline too: the command ends also if this program is gone by then
        timeout = float(seconds[0]) if seconds else None
        events = rpc.ExecutionServiceStub(channel).Execute(pb.ExecuteRequest(command=text), timeout=timeout)
        try:
            return follow(events)
        except KeyboardInterrupt:
            events.cancel()
            return 130
        except grpc.RpcError as error:
            print(f"execute.py: {error.code().name}: {error.details()}", file=sys.stderr)
            return {grpc.StatusCode.DEADLINE_EXCEEDED: 124, grpc.StatusCode.UNAVAILABLE: 255}.get(error.code(), 125)


if __name__ == "__main__":
    sys.exit(main())
