"""Does what tests/benches/suite/python.rs asks for, a line each, and answers with the seconds that it took.

    driver.py TARGET [CERT KEY CA]

`run`: a short command. `gather N`: as many at once, by asyncio. `write PATH BYTES`, `read PATH`: a file.
"""

import asyncio
import sys
import time

import telexec
import telexec.aio

TRUE = ["/bin/true"]


class Driver:
    def __init__(self, target: str, *files: str):
        self.connection = {"target": target, **dict(zip(("cert", "key", "ca"), files))}
        self.agent = telexec.connect(**self.connection)
        self.loop = asyncio.new_event_loop()
        self.aio = self.loop.run_until_complete(telexec.aio.connect(**self.connection))

    def run(self) -> None:
        self.agent.run(TRUE)

    def gather(self, count: str) -> None:
        async def all() -> None:
            await asyncio.gather(*(self.aio.run(TRUE, check=True) for _ in range(int(count))))

        self.loop.run_until_complete(all())

    def write(self, path: str, size: str) -> None:
        self.agent.files.write(path, bytes(int(size)))

    def read(self, path: str) -> None:
        self.agent.files.read(path)


def main() -> None:
    driver = Driver(*sys.argv[1:])
    for line in sys.stdin:
        word, *arguments = line.split()
        began = time.perf_counter()
        getattr(driver, word)(*arguments)
        print(time.perf_counter() - began, flush=True)


main()
