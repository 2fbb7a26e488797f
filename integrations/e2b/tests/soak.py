"""Many sandboxes at once, by the asynchronous SDK: soak.py BIN_DIRECTORY [SANDBOXES] [SECONDS]

Each is created, used, and killed in the middle of things; then comes the next, until the time is over. Nothing may be left of any.
"""

import asyncio
import os
import pathlib
import random
import subprocess
import sys
import time

from e2b_site import KEY, Site
import e2b
from e2b import AsyncSandbox

# nobody else on this machine sleeps as long
NAP = os.getpid()
SAMPLE_SECONDS = 30


class Soak:
    def __init__(self, site, count, seconds):
        self.site, self.count, self.seconds = site, count, seconds
        self.end = time.monotonic() + seconds
        self.sandboxes = self.calls = 0
        self.at_once = self.most_at_once = 0
        self.all_have_one = asyncio.Barrier(count)

    async def user(self):
        """Whoever has one sandbox after the other."""
        is_first = True
        while is_first or time.monotonic() < self.end:
            sandbox = await AsyncSandbox.create(timeout=self.seconds + 600)
            self.sandboxes += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            if is_first:
                await self.all_have_one.wait()
            is_first = False
            for _ in range(random.randrange(2, 12)):
                deed = random.choice((self.run, self.run, self.write, self.leave, self.time_out))
                await deed(sandbox)
                self.calls += 1
            assert await sandbox.kill()
            self.at_once -= 1

    async def run(self, sandbox):
        number = random.randrange(10**9)
        result = await sandbox.commands.run(f"pwd; echo {number} >&2")
        assert result.stdout.strip().endswith(sandbox.sandbox_id) and result.stderr == f"{number}\n", result

    async def write(self, sandbox):
        data = random.randbytes(random.randrange(1, 200_000))
        await sandbox.files.write("file", data)
        read = await sandbox.files.read("file", format="bytes")
        assert bytes(read) == data
        assert [entry.name for entry in await sandbox.files.list(".") if not entry.name.startswith(".")] == ["file"]

    async def leave(self, sandbox):
        """What is still running when the sandbox is killed."""
        await sandbox.commands.run(f"setsid sleep {NAP}0 & sleep {NAP}1", background=True)

    async def time_out(self, sandbox):
        try:
            await sandbox.commands.run(f"setsid sleep {NAP}2 & sleep {NAP}3", timeout=1)
        except e2b.TimeoutException:
            return
        raise AssertionError("it has not timed out")

    async def watch(self):
        """Says how it is, until it is cancelled."""
        began = time.monotonic()
        while True:
            memory, files = self.usage()
            print(f"{time.monotonic() - began:4.0f} s: {self.sandboxes} sandboxes, {self.at_once} now, {self.calls} calls, "
                  f"the gateway has {memory} MiB and {files} descriptors", flush=True)  # fmt: skip
            await asyncio.sleep(SAMPLE_SECONDS)

    def usage(self):
        process = pathlib.Path(f"/proc/{self.site.processes['gateway'].pid}")
        (line,) = [line for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS")]
        return int(line.split()[1]) // 1024, len(list((process / "fd").iterdir()))

    async def go(self):
        watch = asyncio.create_task(self.watch())
        async with asyncio.TaskGroup() as users:
            for _ in range(self.count):
                users.create_task(self.user())
        watch.cancel()
        sandboxes = AsyncSandbox.list()
        assert not await sandboxes.next_items()
        self.site.until("the end of all processes", lambda: not processes())
        homes = [path for path in self.site.directory.glob("*.home/telexec-e2b/*")]
        assert not homes, homes
        assert self.most_at_once == self.count, self.most_at_once
        memory, files = self.usage()
        print(f"{self.sandboxes} sandboxes, {self.most_at_once} at once, {self.calls} calls: nothing is left; "
              f"the gateway has {memory} MiB and {files} descriptors")  # fmt: skip


def processes():
    found = subprocess.run(["pgrep", "-f", f"^sleep {NAP}[0-3]$"], capture_output=True, text=True)
    return found.stdout.split()


def main(bin_directory, count="100", seconds="600"):
    names = [f"a{number}" for number in range(int(count))]
    with Site(bin_directory, names) as site:
        os.environ["E2B_API_KEY"] = KEY
        asyncio.run(Soak(site, int(count), int(seconds)).go())


main(*sys.argv[1:])
