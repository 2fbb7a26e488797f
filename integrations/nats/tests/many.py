"""Many commands, to many agents, while servers, agents and telexec-nats are killed: each runs once, all is told.

many.py BIN_DIRECTORY NATS_SERVER COMMANDS AGENTS
"""

import asyncio
import base64
import random
import sys
import tempfile
import time

from nats_site import Events, Site, submit


async def main(bin_directory, nats_server, commands, agents):
    with tempfile.TemporaryDirectory(prefix="telexec-nats-") as directory:
        site = Site(directory, bin_directory, nats_server, agents)
        try:
            await run(site, commands)
        except BaseException:
            print(site.logs())
            raise
        finally:
            site.stop()


async def run(site, commands):
    (site.directory / "ran").mkdir()
    await site.start_server()
    for name in site.names[:-1]:
        site.start_agent(name)
    for name in site.names:
        site.start_bridge(name)
    client = await site.connect()
    await site.until_stream(client)
    js, chosen = client.jetstream(), random.Random(7)
    ids = {f"c{number}": chosen.choice(site.names) for number in range(commands)}

    async def publish(some):
        for id in some:
            text = f"printf x >> {site.directory}/ran/{id}; echo out {id}; echo err {id} >&2; sleep 0.{chosen.randrange(3)}; exit {int(id[1:]) % 7}"
            request = {"command": text, "shell": "sh", "execution_id": id}
            await submit(js, ids[id], request)
            if chosen.random() < 0.1:
                await submit(js, ids[id], request)
            if chosen.random() < 0.05:
                # as a repeat that comes after the server has forgotten the first
                await submit(js, ids[id], request, **{"Nats-Msg-Id": f"{id} again"})

    began = time.monotonic()
    order, events = list(ids), Events(js)
    publishing = asyncio.gather(*(publish(order[part::16]) for part in range(16)))
    reading = asyncio.ensure_future(events.read(commands, 330))
    for round in range(2):
        await progress(events, commands * (2 * round + 1) // 6)
        site.kill("nats")
        await site.start_server()
        await progress(events, commands * (2 * round + 2) // 6)
        name = site.names[round]
        site.kill(f"agent-{name}")
        site.start_agent(name)
        other = site.names[round + 2]
        site.kill(f"bridge-{other}")
        site.start_bridge(other)
    # which was not there until now
    site.start_agent(site.names[-1])
    await publishing
    await reading
    seconds = time.monotonic() - began
    aborted = sum(check(site, events, id) for id in ids)
    print(f"{commands} commands on {len(site.names)} agents in {seconds:.1f} s, {commands / seconds:.0f} a second, {aborted} were aborted")
    assert aborted <= 4 * 64 + commands // 100, "more than ran on what was killed"
    for name in site.names:
        await until_empty(js, f"agent-{name}")
    dead = await js.stream_info("TELEXEC_DEAD")
    assert dead.state.messages == 0, f"{dead.state.messages} requests are dead"
    await client.close()


async def until_empty(js, consumer):
    """Not of the stream: a server that is killed may keep a message there that the consumer has had acknowledged."""
    for _ in range(200):
        info = await js.consumer_info("TELEXEC_RUN", consumer)
        if not info.num_pending and not info.num_ack_pending:
            return
        await asyncio.sleep(0.5)
    raise SystemExit(f"requests are left: {info}")


async def progress(events, count):
    while len(events.ended) < count:
        await asyncio.sleep(0.05)


def check(site, events, id):
    """Whether it ended with its agent, or it is not known whether telexec-nats had begun it when that was killed."""
    path = site.directory / "ran" / id
    ran = path.stat().st_size if path.exists() else 0
    told = events.of[id]
    last, headers = told[-1]
    if headers.get("Telexec-Status") == "10":
        assert ran <= 1, f"{id}: aborted, and ran {ran} times"
        return True
    exited = last.get("exited")
    assert exited, f"{id}: ends with {last} {headers}"
    assert ran == 1, f"{id}: ran {ran} times"
    # zero is left out of JSON
    assert exited.get("exitCode", 0) == int(id[1:]) % 7, f"{id}: {exited}"
    assert sum("started" in event for event, _ in told) == 1, told
    position, output = 0, {"stdout": b"", "stderr": b""}
    for event, _ in told:
        for stream in output:
            if stream in event:
                assert int(event.get("position", 0)) == position, told
                data = base64.b64decode(event[stream])
                output[stream] += data
                position += len(data)
    assert output == {"stdout": f"out {id}\n".encode(), "stderr": f"err {id}\n".encode()}, (id, output)
    return False


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
