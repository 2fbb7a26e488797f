"""What `telexec` does with targets behind a NATS server.

cli.py BIN_DIRECTORY NATS_SERVER
"""

import asyncio
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time

import nkeys

from nats_site import Site


class Cli:
    def __init__(self, site):
        self.site, self.server = site, site.url
        self.environment = {**os.environ, "TELEXEC_CONFIG": "/dev/null", "XDG_STATE_HOME": str(site.directory / "state")}

    def start(self, *words, **options):
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        words = [str(word).replace("@", self.server + "/") for word in words]
        return subprocess.Popen([self.site.bin / "telexec", *words], env=self.environment, **{**pipes, **options})

    def run(self, *words, input=None, **options):
        """Its exit code, standard output and standard error."""
        if input is not None:
            options["stdin"] = subprocess.PIPE
        process = self.start(*words, **options)
        try:
            stdout, stderr = process.communicate(input, timeout=90)
        except subprocess.TimeoutExpired:
            process.kill()
            raise SystemExit(f"{words} hangs: {process.communicate()}")
        return process.returncode, stdout, stderr

    def expect(self, code, stdout, *words, says="", **options):
        found = self.run(*words, **options)
        assert found[0] == code and (stdout is None or found[1] == stdout) and says in found[2], f"{words}: {found[0]} {found[1][-300:]} {found[2]}"
        return found[1]

    async def until(self, what, holds, limit=60):
        deadline = time.monotonic() + limit
        while not await asyncio.to_thread(holds):
            if time.monotonic() > deadline:
                raise SystemExit(f"waited in vain until {what}")
            await asyncio.sleep(0.1)


async def commands(site, cli):
    cli.expect(3, "out\n", "exec", "@a0", "-c", "echo out; echo err >&2; exit 3", says="err\n")
    data = "".join(f"line {number}\n" for number in range(200_000))
    cli.expect(0, data, "exec", "-i", "@a0", "cat", input=data)
    cli.expect(124, "", "exec", "--timeout", "1", "@a0", "sleep", "60", says="timed out")
    cli.expect(127, "", "exec", "@a0", "no-such-program", says="no-such-program")
    cli.expect(0, "hello\n", "tool", "@a0", "bash", '{"command": "echo hello"}')
    cli.expect(0, None, "info", "@a0")
    cli.expect(0, None, "ping", "@a0")
    # a label is any of the agents that have it
    cli.expect(4, "x\n", "exec", "-i", "@label:web", "-c", "cat; exit 4", input="x\n")
    cli.expect(125, "", "ps", "@label:web", says="name one")
    cli.expect(255, "", "exec", "@nobody", "true", says="no agent of this name is connected")
    cli.expect(255, "", "exec", "nats://127.0.0.1:1/a0", "true", says="the NATS server nats://127.0.0.1:1 cannot be used")
    cli.expect(2, "", "exec", "@a.b", "true", says="agent's name must be 1 to 64")
    cli.expect(2, "", "exec", "--queue", "1h", f"unix://{site.directory}/a0.sock", "true", says="--queue is for targets behind")
    cli.expect(2, "", "cp", "@a0:/etc/hostname", "/dev/null", says="files cannot be copied by way of NATS")
    cli.expect(2, "", "forward", "-L", "0:localhost:80", "@a0", says="connections cannot be forwarded by way of NATS")
    cli.expect(1, None, "tool", "@a0", "read_file", '{"path": "/etc/hostname"}')
    big = "x" * 1_100_000
    cli.expect(125, "", "exec", "@a0", "--env-file", file(site, f"A={big}"), "true", says="takes messages of 1048576 at most")


def file(site, text):
    path = site.directory / "file"
    path.write_text(text)
    return path


async def background(site, cli):
    id = cli.expect(0, None, "exec", "-d", "@a0", "-c", "echo begun; read line; echo got $line; exit 5", "-i").strip()
    assert id in cli.expect(0, None, "ps", "-q", "@a0")
    cli.expect(0, "begun\n", "logs", "@a0", id)
    cli.expect(0, "", "input", "@a0", id, "word")
    cli.expect(5, "begun\ngot word\n", "attach", "@a0", id)
    cli.expect(5, "", "wait", "@a0", id)
    # one that the agent was asked for directly
    own = f"unix://{site.directory}/a0.sock"
    cli.expect(0, None, "exec", "-d", "--id", "own", own, "-c", "for i in 1 2 3; do echo $i; sleep 0.2; done; exit 6")
    cli.expect(6, "1\n2\n3\n", "attach", "@a0", "own")
    cli.expect(125, "", "attach", "@a1", id, says=id)
    # an ID names one command
    cli.expect(0, "a\n", "exec", "--id", "named", "@a0", "echo", "a")
    cli.expect(0, "a\n", "exec", "--id", "named", "@a0", "echo", "a")
    cli.expect(125, "", "exec", "--id", "named", "@a0", "echo", "b", says="named")
    cli.expect(125, "", "exec", "--id", "named", "@a1", "echo", "a", says="named")
    cli.expect(125, "", "exec", "--id", "bad..id", "@a0", "echo", says="must not end with a dot")
    for _ in range(8):
        words = [word for name in "ABCDE" for word in ("-e", f"{name}={name}", "--label", f"{name}={name}")]
        cli.expect(0, "A\n", "exec", "--id", "variables", *words, "@a0", "-c", "echo $A")
    # a request that is refused ends no other with its ID
    cli.expect(0, None, "exec", "-d", "--id", "spared", "@a0", "-c", "read line; exit 7", "-i")
    cli.expect(125, "", "exec", "--id", "spared", "@a0", "--env-file", file(site, "A=" + "x" * 1_100_000), "true", says="at most")
    cli.expect(125, "", "exec", "--id", "spared", "@a0", "true", says="spared")
    cli.expect(0, "", "input", "@a0", "spared", "word")
    cli.expect(7, "", "wait", "@a0", "spared")


async def terminals(site, cli):
    master, slave = pty.openpty()
    # in another directory than the echo of what is typed can show
    shell = cli.start("exec", "-it", "@a0", "sh", stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    os.write(master, b"tty; expr 20 + 22; exit 9\n")
    shown, deadline = b"", time.monotonic() + 60
    while b"42" not in shown:
        assert await asyncio.to_thread(select.select, [master], [], [], deadline - time.monotonic()) != ([], [], []), shown
        shown += os.read(master, 4096)
    assert await asyncio.to_thread(shell.wait, 60) == 9 and b"/dev/pts/" in shown, shown


async def ends(site, cli):
    """A caller that goes leaves nothing."""
    mark, seconds = site.directory / "mark", 100_000 + os.getpid()
    for how, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        run = cli.start("exec", "@a0", "-c", f"(setsid sleep {seconds} &) ; touch {mark}; sleep {seconds}", start_new_session=True)
        await cli.until("it runs", mark.exists)
        run.send_signal(how)
        assert await asyncio.to_thread(run.wait, 30) == code
        await cli.until("nothing is left", lambda: subprocess.run(["pgrep", "-f", f"^sleep {seconds}"], stdout=subprocess.DEVNULL).returncode == 1)
        mark.unlink()


async def queues(site, cli):
    """Agents that are away."""
    ran = site.directory / "ran"
    # nobody takes it in time: it is withdrawn, and never runs
    cli.expect(255, "", "exec", "--queue", "1s", "@late", "-c", f"echo expired >> {ran}", says="it is withdrawn")
    # nor does what its caller has given up
    run = cli.start("exec", "--queue", "1h", "--id", "given-up", "@late", "-c", f"echo given up >> {ran}")
    client = await site.connect()

    def pending():
        found = subprocess.run([sys.executable, "-c", PENDING, site.url], capture_output=True, text=True, check=True)
        return int(found.stdout)

    await cli.until("it is in the queue", lambda: pending() == 1)
    run.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(run.wait, 30) == 130
    id = cli.expect(0, None, "exec", "-d", "--queue", "1h", "@late", "-c", f"echo queued | tee -a {ran}; exit 7").strip()
    cli.expect(255, "", "attach", "--queue", "1s", "@late", id, says="may still be in the queue")
    waiting = cli.start("attach", "--queue", "1h", "@late", id)
    following = cli.start("exec", "--queue", "1h", "@late", "-c", f"echo followed | tee -a {ran}; exit 8")
    await cli.until("two are in the queue, and nothing else", lambda: pending() == 2)
    site.start_agent("late")
    site.start_bridge("late", "--label", "web")
    stdout, stderr = await asyncio.to_thread(waiting.communicate, timeout=60)
    assert (waiting.returncode, stdout) == (7, "queued\n"), (stdout, stderr)
    stdout, stderr = await asyncio.to_thread(following.communicate, timeout=60)
    assert (following.returncode, stdout) == (8, "followed\n"), (stdout, stderr)
    cli.expect(7, "", "wait", "--queue", "1h", "@late", id)
    assert sorted(ran.read_text().split()) == ["followed", "queued"]
    await client.close()


# in a process of its own, since what waits here blocks
PENDING = """
import asyncio, nats, sys
async def main():
    client = await nats.connect(sys.argv[1])
    print((await client.jetstream().stream_info("TELEXEC_RUN")).state.messages)
    await client.close()
asyncio.run(main())
"""


async def fleets(site, cli):
    hosts = cli.expect(0, None, "fleet", "--list-hosts", "-w", "@label:web").split()
    assert hosts == [f"{site.url}/{name}" for name in ("a0", "a1", "late")], hosts
    cli.expect(0, None, "fleet", "-w", "@label:web", "true", says="3 of 3 ok")
    cli.expect(0, None, "fleet", "-w", "@a[0-1]", "true", says="2 of 2 ok")
    cli.expect(255, "", "fleet", "-w", "nats://127.0.0.1:1/label:web", "true", says="cannot be used")
    cli.expect(2, "", "fleet", "-w", "@label:none", "true", says="no agent has this label")
    # one is away: known all the same, and waited for if that is wanted
    site.kill("bridge-late", signal.SIGTERM)
    cli.expect(1, None, "fleet", "-w", "@label:web", "true", says="2 of 3 ok, 1 unreachable")
    fleet = cli.expect(0, None, "fleet", "-d", "--queue", "1h", "-w", "@label:web", "-c", "echo ran").strip()
    attached = cli.start("fleet", "attach", "--queue", "1h", fleet)
    site.start_bridge("late", "--label", "web")
    stdout, stderr = await asyncio.to_thread(attached.communicate, timeout=60)
    assert attached.returncode == 0 and stdout.count(": ran") == 3, (stdout, stderr)


async def faults(site, cli):
    """Whatever is killed, the output is exact, and each command runs once."""
    text = "i=0; while [ $i -lt 60 ]; do echo $i; i=$((i + 1)); sleep 0.05; done; exit 11"
    ran = site.directory / "once"
    run = cli.start("exec", "@a0", "-c", f"echo x >> {ran}; {text}")
    await cli.until("it runs", ran.exists)
    site.kill("nats")
    await site.start_server()
    await asyncio.sleep(0.5)
    site.kill("bridge-a0")
    site.start_bridge("a0", "--label", "web")
    stdout, stderr = await asyncio.to_thread(run.communicate, timeout=90)
    assert (run.returncode, stdout) == (11, "".join(f"{n}\n" for n in range(60))), (run.returncode, stdout, stderr)
    assert ran.read_text() == "x\n"


async def signatures(site, cli):
    seed = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)
    key = nkeys.from_seed(seed).public_key.decode()
    path = site.directory / "caller.nk"
    path.write_bytes(seed + b"\n")
    site.start_agent("strict")
    site.start_bridge("strict", "--caller", key)
    cli.environment["TELEXEC_NATS_SIGNING_KEY"] = str(path)
    await cli.until("it answers", lambda: cli.run("ping", "@strict")[0] == 0)
    cli.expect(12, "x\n", "exec", "-i", "@strict", "-c", "cat; exit 12", input="x\n")
    cli.expect(0, "a\n", "exec", "--id", "signed", "@strict", "echo", "a")
    cli.expect(0, "a\n", "exec", "--id", "signed", "@strict", "echo", "a")
    del cli.environment["TELEXEC_NATS_SIGNING_KEY"]
    cli.expect(255, "", "exec", "@strict", "true", says="this agent accepts signed messages only")


async def main(bin_directory, nats_server):
    with tempfile.TemporaryDirectory(prefix="telexec-nats-") as directory:
        site = Site(directory, bin_directory, nats_server, 2)
        cli = Cli(site)
        try:
            await site.start_server()
            for name in site.names:
                site.start_agent(name)
                site.start_bridge(name, "--label", "web")
            await cli.until("agents answer", lambda: all(cli.run("ping", f"@{name}")[0] == 0 for name in site.names))
            for part in (commands, background, terminals, ends, queues, fleets, faults, signatures):
                began = time.monotonic()
                await asyncio.wait_for(part(site, cli), 200)
                print(f"{part.__name__} hold ({time.monotonic() - began:.1f} s)", flush=True)
        except BaseException:
            print(site.logs())
            raise
        finally:
            site.stop()


asyncio.run(main(*sys.argv[1:]))
