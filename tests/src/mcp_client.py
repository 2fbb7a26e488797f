"""A client of the Model Context Protocol: the official SDK, driven by lines of JSON, and printing what it receives.

    python mcp_client.py auto|legacy PROGRAM ARG...

It starts the program as its server, and reads such as
    {"id": 1, "list": true}
    {"id": 2, "call": "bash", "arguments": {"command": "ls"}, "progress": true, "meta": {}}
    {"id": 2, "cancel": true}
At the end of its input it closes the connection as the SDK does, and reports that.
"""

import json
import os
import sys

import anyio
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError


def send(**event):
    print(json.dumps(event), flush=True)


def plain(model):
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


async def ask(client, request, scope):
    id = request["id"]

    async def progress(position, _total, message):
        send(id=id, progress=position, message=message)

    with scope:
        try:
            if request.get("list"):
                result = await client.list_tools()
            else:
                callback = progress if request.get("progress") else None
                arguments, meta = request.get("arguments"), request.get("meta")
                result = await client.call_tool(request["call"], arguments, progress_callback=callback, meta=meta)
            send(id=id, result=plain(result))
        except MCPError as error:
            send(id=id, error={"code": error.code, "message": error.message})
    if scope.cancelled_caught:
        send(id=id, cancelled=True)


async def main(mode, program, *args):
    server = StdioServerParameters(command=program, args=args, env=dict(os.environ))
    async with Client(server, mode=mode) as client:
        send(server=plain(client.server_info), protocol=client.protocol_version, instructions=client.instructions)
        scopes = {}
        async with anyio.create_task_group() as tasks:
            async for line in anyio.wrap_file(sys.stdin):
                request = json.loads(line)
                if request.get("cancel"):
                    scopes[request["id"]].cancel()
                else:
                    scopes[request["id"]] = scope = anyio.CancelScope()
                    tasks.start_soon(ask, client, request, scope)
            tasks.cancel_scope.cancel()
    send(closed=True)


anyio.run(main, *sys.argv[1:])
