"""A client of the Model Context Protocol: the official SDK, driven by lines of JSON, and printing what it receives.

    python mcp_client.py auto|legacy PROGRAM ARG...
    python mcp_client.py auto|legacy URL

It starts the program as its server, or calls the one at that address, with what MCP_TOKEN, MCP_CA, MCP_CERT and MCP_KEY
name. It reads such as
    {"id": 1, "list": true}
    {"id": 2, "call": "bash", "arguments": {"command": "ls"}, "progress": true, "meta": {}}
    {"id": 2, "cancel": true}
At the end of its input it closes the connection as the SDK does, and reports that.
"""

import json
import os
import ssl
import sys

import anyio
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
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


def http(url):
    token, ca, cert = (os.environ.get(name) for name in ["MCP_TOKEN", "MCP_CA", "MCP_CERT"])
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    verify = ssl.create_default_context(cafile=ca)
    if cert:
        verify.load_cert_chain(cert, os.environ["MCP_KEY"])
    client = httpx2.AsyncClient(headers=headers, verify=verify, timeout=httpx2.Timeout(30, read=300))
    return streamable_http_client(url, http_client=client)


async def main(mode, program, *args):
    if program.startswith("http"):
        server = http(program)
    else:
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
