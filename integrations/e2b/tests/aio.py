"""The asynchronous SDK for Python, as it comes: aio.py BIN_DIRECTORY"""

import asyncio
import sys

from e2b_site import Site
import e2b
from e2b import AsyncSandbox


async def fails(kind, awaited, *words):
    try:
        result = await awaited
    except kind as error:
        assert all(word in str(error) for word in words), f"{error!r} has not {words}"
        return error
    raise AssertionError(f"no {kind} but {result!r}")


async def commands(sandbox):
    result = await sandbox.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0), result
    many = await asyncio.gather(*(sandbox.commands.run(f"sleep 0.{n % 5}; echo {n}") for n in range(20)))
    assert [one.stdout for one in many] == [f"{n}\n" for n in range(20)]
    error = await fails(e2b.CommandExitException, sandbox.commands.run("exit 3"))
    assert error.exit_code == 3
    await fails(e2b.TimeoutException, sandbox.commands.run("sleep 300", timeout=1))

    handle = await sandbox.commands.run("cat", background=True, stdin=True)
    await sandbox.commands.send_stdin(handle.pid, "one\n")
    assert [one.pid for one in await sandbox.commands.list()] == [handle.pid]
    await sandbox.commands.close_stdin(handle.pid)
    assert (await handle.wait()).stdout == "one\n"

    handle = await sandbox.commands.run("sleep 0.5; echo late", background=True)
    await handle.disconnect()
    followed = await sandbox.commands.connect(handle.pid)
    assert (await followed.wait()).stdout == "late\n"
    handle = await sandbox.commands.run("sleep 300", background=True)
    assert await handle.kill() is True
    await fails(e2b.CommandExitException, handle.wait())
    assert await sandbox.commands.kill(handle.pid) is False

    # who is cancelled has dropped the stream: the command runs on
    waiting = asyncio.create_task(sandbox.commands.run("sleep 30"))
    while not (running := await sandbox.commands.list()):
        await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.sleep(0.3)
    assert [one.pid for one in await sandbox.commands.list()] == [running[0].pid]
    assert await sandbox.commands.kill(running[0].pid)


async def pty(sandbox):
    heard = bytearray()
    terminal = await sandbox.pty.create(e2b.PtySize(rows=30, cols=90), on_data=heard.extend)
    await sandbox.pty.resize(terminal.pid, e2b.PtySize(rows=31, cols=91))
    await sandbox.pty.send_stdin(terminal.pid, b"stty size; exit\n")
    assert (await terminal.wait()).exit_code == 0 and b"31 91" in heard, heard


async def files(sandbox):
    await sandbox.files.write("a/b", "text")
    assert await sandbox.files.read("a/b") == "text" and await sandbox.files.exists("a/b")

    async def chunks():
        for n in range(100):
            yield bytes([n]) * 10_000

    await sandbox.files.write("chunks", chunks())
    read = b"".join([chunk async for chunk in await sandbox.files.read("chunks", format="stream")])
    assert read == b"".join([chunk async for chunk in chunks()])
    assert [one.name for one in await sandbox.files.list("a")] == ["b"]
    await sandbox.files.rename("a/b", "a/c")
    await sandbox.files.remove("a/c")
    assert not await sandbox.files.exists("a/c") and await sandbox.files.make_dir("a/d")
    await fails(e2b.FileNotFoundException, sandbox.files.read("a/c"))


async def watches(sandbox):
    events, exits = [], []
    watch = await sandbox.files.watch_dir("a", on_event=events.append, on_exit=exits.append, recursive=True)
    await sandbox.files.write("a/d/file", "text")
    for _ in range(100):
        if any(event.name == "d/file" for event in events):
            break
        await asyncio.sleep(0.05)
    assert any(event.name == "d/file" and event.type.value == "create" for event in events), events
    await watch.stop()
    await fails(e2b.FileNotFoundException, sandbox.files.watch_dir("nowhere", on_event=events.append))


async def lifecycle(sandbox):
    assert await sandbox.is_running() and (await sandbox.get_info()).sandbox_id == sandbox.sandbox_id
    await sandbox.set_timeout(100)
    assert len(await sandbox.get_metrics()) == 1
    assert [one.sandbox_id for one in await AsyncSandbox.list().next_items()] == [sandbox.sandbox_id]
    waiting = asyncio.create_task(sandbox.commands.run("sleep 300"))
    await asyncio.sleep(0.5)
    assert await sandbox.kill() and not await sandbox.is_running()
    await fails(e2b.SandboxNotRunningException, waiting)


async def main():
    sandbox = await AsyncSandbox.create(timeout=300)
    for part in [commands, pty, files, watches, lifecycle]:
        await part(sandbox)
        print(f"{part.__name__} holds", flush=True)


if __name__ == "__main__":
    with Site(sys.argv[1]):
        asyncio.run(main())
